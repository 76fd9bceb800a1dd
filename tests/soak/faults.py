"""One fault a minute, chosen by the seed from those of `tests.faults`.

Faults that end the service come in the first third only: growth is judged in one long life, beside all the others.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tests.faults.cells import FROZEN, HTTP, KILLED, TCP, Harm, fill, freeze, jvm
from tests.faults.proxy import Mode
from tests.faults.scene import Scene
from tests.services.faulty_catalog import FaultyCatalog
from tests.services.processes import descendants, kill
from tests.soak.writers import Writer, held

SHORTEST, LONGEST = 3.0, 20.0  # seconds
DEADLY_PART = 1 / 3


@dataclass(frozen=True)
class Stage:
    """What faults are done to."""

    scene: Scene
    writers: Sequence[Writer]
    rollback: FaultyCatalog


@dataclass(frozen=True)
class Fault:
    """`act` breaks one component for `seconds`, and repairs it. `deadly`: the service ends and is started again."""

    name: str
    act: Callable[[Stage, float], None]
    deadly: bool = False


def network(component: str, mode: Mode, stage: Stage, seconds: float) -> None:
    proxy = stage.scene.servers[component].proxy
    proxy.mode = mode
    time.sleep(seconds)
    proxy.mode = Mode.PASS


def server(component: str, harm: Harm, stage: Stage, seconds: float) -> None:
    """The writers wait while their catalog or store is gone."""
    with held(stage.writers):
        harm.begin(stage.scene.servers[component])
        time.sleep(seconds)
        harm.end(stage.scene.servers[component])
        stage.rollback.upstream = stage.scene.catalog_uri


def process_frozen(pid: Callable[[Scene], int], stage: Stage, seconds: float) -> None:
    freeze(pid(stage.scene), seconds)


def service_killed(stage: Stage, _seconds: float) -> None:
    stage.scene.service.kill()
    stage.scene.start_service()


def jvm_killed(stage: Stage, _seconds: float) -> None:
    kill([jvm(stage.scene)])
    stage.scene.service.ended()
    stage.scene.start_service()


def workers_killed(stage: Stage, _seconds: float) -> None:
    kill(descendants(jvm(stage.scene)))


def volume_full(stage: Stage, seconds: float) -> None:
    filler = fill(stage.scene.volume)
    time.sleep(seconds)
    filler.unlink()


def all_faults() -> list[Fault]:
    """Every kind once: each is equally likely."""
    modes = [(component, mode) for component in ("catalog", "store") for mode in TCP + HTTP]
    modes += [("broker", mode) for mode in TCP]
    faults = [Fault(f"{component}: {mode.value}", partial(network, component, mode)) for component, mode in modes]
    for component in ("broker", "catalog", "store"):
        faults.append(Fault(f"{component}: killed", partial(server, component, KILLED)))
        faults.append(Fault(f"{component}: frozen", partial(server, component, FROZEN)))
    return [
        *faults,
        Fault("service: frozen", partial(process_frozen, lambda scene: scene.service.pid)),
        Fault("JVM: frozen", partial(process_frozen, jvm)),
        Fault("Python workers: killed", workers_killed),
        Fault("checkpoint volume: full", volume_full),
        Fault("service: kill -9", service_killed, deadly=True),
        Fault("JVM: killed", jvm_killed, deadly=True),
    ]


def next_fault(rng: random.Random, passed: float) -> tuple[Fault, float]:
    """The fault and its seconds. `passed`: the part of the whole time that is over."""
    faults = [each for each in all_faults() if passed < DEADLY_PART or not each.deadly]
    return rng.choice(faults), rng.uniform(SHORTEST, LONGEST)


def broken(stage: Stage, fault: Fault, seconds: float) -> None:
    """Do it, and see the service ready afterwards."""
    try:
        fault.act(stage, seconds)
    finally:
        stage.scene.well()
    stage.scene.service.wait_ready()
