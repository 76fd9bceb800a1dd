"""One fault a minute, chosen by the seed from those of `tests.faults`.

Faults that end the service come in the first third only: growth is judged in one long life, beside all the others.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from tests.faults.cells import Harm, harms
from tests.faults.scene import Scene
from tests.services.faulty_catalog import FaultyCatalog
from tests.soak.writers import Writer, held

SHORTEST, LONGEST = 3.0, 20.0  # seconds
DEADLY_PART = 1 / 3


@dataclass(frozen=True)
class Stage:
    """What faults are done to."""

    scene: Scene
    writers: Sequence[Writer]
    rollback: FaultyCatalog


def all_faults() -> list[Harm]:
    """Every kind once: each is equally likely."""
    killed = Harm("service", "kill -9", lambda scene: scene.service.kill(), Scene.start_service, deadly=True)
    return [*harms(), killed]


def next_fault(rng: random.Random, passed: float) -> tuple[Harm, float]:
    """The fault and its seconds. `passed`: the part of the whole time that is over."""
    faults = [each for each in all_faults() if passed < DEADLY_PART or not each.deadly]
    return rng.choice(faults), rng.uniform(SHORTEST, LONGEST)


def broken(stage: Stage, fault: Harm, seconds: float) -> None:
    """Do it, and see the service ready afterwards. The writers wait while the process of a server is gone."""
    with held(stage.writers) if fault.fault.startswith("process") else nullcontext():
        try:
            fault.begin(stage.scene)
            time.sleep(0 if fault.deadly else seconds)
            fault.end(stage.scene)
            stage.rollback.upstream = stage.scene.catalog_uri
        finally:
            stage.scene.well()
    stage.scene.service.wait_ready()
