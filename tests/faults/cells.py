"""The cells of the table: a component, what is done to it, and when. Each breaks the real component once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewPartitions, NewTopic

from streaming.commit_events.decoder import TableChanged
from tests.faults.proxy import Mode, Trap
from tests.faults.scene import COMMITS, PARTS, ROWS, Scene, Server
from tests.services.processes import descendants, kill, told
from tests.services.waiting import wait_for

LASTS_SECONDS = 8.0
"""Of a fault that ends by itself."""
FROZEN_SECONDS = 15.0
HTTP = (Mode.STATUS_500, Mode.STATUS_503, Mode.STATUS_429)
TCP = (Mode.REFUSE, Mode.HANG, Mode.CUT, Mode.SLOW)
BEFORE, DURING = "before the run", "during the run"
STILL = f"process frozen for {FROZEN_SECONDS:.0f} s"
SERVER_ACTS = (Server.kill, Server.start, Server.freeze, Server.thaw)


@dataclass(frozen=True)
class Harm:
    """What is done to one component for some seconds, and what repairs it. `deadly`: the service ends meanwhile."""

    component: str
    fault: str
    begin: Callable[[Scene], object]
    end: Callable[[Scene], object] = lambda _scene: None
    seconds: float = LASTS_SECONDS
    deadly: bool = False


@dataclass(frozen=True)
class Cell:
    """`act` breaks the component beside the commits of `table`, and repairs it; `prepare` comes first."""

    component: str
    fault: str
    when: str
    act: Callable[[Scene, str], None]
    prepare: Callable[[Scene], object] = lambda _scene: None

    @property
    def name(self) -> str:
        return f"{self.component}: {self.fault}, {self.when}"


def commit(scene: Scene, table: str, *, announce: bool = True) -> None:
    """Make all partitions of the table due."""
    events = scene.site.append(table, commits=COMMITS, parts=PARTS, rows=ROWS)
    if announce:
        scene.site.publish(*events)


def head_event(scene: Scene, table: str) -> TableChanged:
    snapshot = scene.site.view(table).snapshot
    assert snapshot is not None
    return scene.site.event(table, snapshot_id=snapshot.snapshot_id, timestamp_ms=snapshot.timestamp_ms)


def announce_all(scene: Scene, table: str) -> None:
    scene.site.publish(head_event(scene, table))


def run_has_begun(scene: Scene, table: str) -> bool:
    return any(record.name == table for record in scene.records.all())


def make_due(scene: Scene, table: str, when: str, *, announce: bool = True) -> None:
    """Make all partitions due; `DURING` waits until the run has begun."""
    commit(scene, table, announce=announce)
    if when == DURING:
        wait_for("the run", lambda: run_has_begun(scene, table), every=0.005)


def harmed(harm: Harm, when: str, scene: Scene, table: str) -> None:
    """The service hears of the commits while the component is broken, or works on them when it breaks."""
    make_due(scene, table, when, announce=when == DURING)
    event = head_event(scene, table)
    harm.begin(scene)
    if when == BEFORE and harm.component != "broker":
        scene.site.publish(event)
    time.sleep(harm.seconds)
    harm.end(scene)
    announce_all(scene, table)


def outputs(scene: Scene, table: str, before: set[Path]) -> int:
    return len(scene.written(table) - before)


def service_killed(step: str, scene: Scene, table: str) -> None:
    """kill -9 of the service at one step of a run; the next life goes on."""
    service, catalog = scene.service, scene.servers["catalog"].proxy
    done = [False]

    def kill() -> None:
        service.kill()
        done[0] = True

    if step in ("the commit is on its way", "the commit has landed and its answer is lost"):
        pattern = f"POST /v1/namespaces/db/tables/{table} HTTP".encode()
        catalog.trap = Trap(pattern, delivered=step != "the commit is on its way", sprung=kill)
    commit(scene, table, announce=False)
    before = scene.written(table)
    announce_all(scene, table)
    if catalog.trap is not None:
        wait_for("the commit", lambda: done[0], every=0.01)
        catalog.trap = None
    else:
        reached: dict[str, Callable[[], bool]] = {
            "its outputs are on record": lambda: run_has_begun(scene, table),
            "the first output exists": lambda: outputs(scene, table, before) >= 1,
            "all outputs exist": lambda: outputs(scene, table, before) >= PARTS,
            "it has committed": lambda: scene.site.operations(table)[-1] == "replace",
        }
        wait_for(step, reached[step], every=0.002)
        kill()
    scene.start_service()


def jvm(scene: Scene) -> int:
    return next(pid for pid in descendants(scene.service.pid) if told(pid, "comm").strip() == b"java")


def kill_jvm(scene: Scene) -> None:
    """The service ends with it; an orchestrator starts it again."""
    kill([jvm(scene)])
    scene.service.ended()


def fill(scene: Scene) -> None:
    """Fill the volume of the checkpoint."""
    with suppress(OSError), (scene.volume / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def stand_still(pid: Callable[[Scene], int]) -> tuple[Callable[[Scene], None], Callable[[Scene], None]]:
    """What stops a process, and what lets it go on."""
    return (lambda scene: os.kill(pid(scene), signal.SIGSTOP)), (lambda scene: os.kill(pid(scene), signal.SIGCONT))


def network(component: str, mode: Mode) -> Harm:
    def pass_as(mode: Mode, scene: Scene) -> None:
        scene.servers[component].proxy.mode = mode

    return Harm(component, f"network: {mode.value}", partial(pass_as, mode), partial(pass_as, Mode.PASS))


def servers(component: str) -> list[Harm]:
    """The writers wait, too, while a server is gone."""

    def server(act: Callable[[Server], None], scene: Scene) -> None:
        act(scene.servers[component])

    killed, started, frozen, thawed = (partial(server, act) for act in SERVER_ACTS)
    return [
        Harm(component, "process killed, started again", killed, started),
        Harm(component, STILL, frozen, thawed, FROZEN_SECONDS),
    ]


def harms() -> list[Harm]:
    """In an order in which the faults of one component follow each other."""
    found = list[Harm]()
    for component, modes in (("broker", TCP), ("catalog", TCP + HTTP), ("store", TCP + HTTP)):
        found += [*(network(component, mode) for mode in modes), *servers(component)]
    still = STILL.removeprefix("process ")
    return [
        *found,
        Harm("service", still, *stand_still(lambda scene: scene.service.pid), FROZEN_SECONDS),
        Harm("JVM", "killed", kill_jvm, Scene.start_service, 0.0, deadly=True),
        Harm("JVM", still, *stand_still(jvm), FROZEN_SECONDS),
        Harm("Python workers", "killed", lambda scene: kill(descendants(jvm(scene))), seconds=0.0),
        Harm("checkpoint volume", "full", fill, lambda scene: (scene.volume / "filler").unlink()),
    ]


def admin(scene: Scene) -> KafkaAdminClient:
    return KafkaAdminClient(bootstrap_servers=scene.site.broker)


def topic_recreated(scene: Scene, table: str) -> None:
    client = admin(scene)
    client.delete_topics([scene.site.topic])
    wait_for("the deletion", lambda: scene.site.topic not in client.list_topics())
    commit(scene, table, announce=False)
    client.create_topics([NewTopic(scene.site.topic, 1, 1)], wait_for_metadata=True)
    client.close()
    announce_all(scene, table)


def record_that_spark_cannot_read(scene: Scene, table: str) -> None:
    """A producer wrote its timestamp in nanoseconds. The event of the table comes behind it."""
    client = admin(scene)
    any_time = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, scene.site.topic, any_time)])
    client.close()
    scene.site.producer.send(scene.site.topic, value=b"{}", timestamp_ms=time.time_ns()).get(timeout=30)
    commit(scene, table)


def partitions_added(scene: Scene, table: str) -> None:
    client = admin(scene)
    known = len(client.describe_topics([scene.site.topic])[0]["partitions"])
    client.create_partitions({scene.site.topic: NewPartitions(known + 2)})
    client.close()
    commit(scene, table)


def retention_exceeded(scene: Scene, table: str) -> None:
    """Events are removed while the service is down."""
    scene.service.kill()
    commit(scene, table)
    client = admin(scene)
    numbers = range(len(client.describe_topics([scene.site.topic])[0]["partitions"]))
    client.delete_records({TopicPartition(scene.site.topic, number): -1 for number in numbers})
    client.close()
    scene.start_service()


def damaged(pattern: str, scene: Scene, table: str) -> None:
    """Files of the checkpoint are overwritten while the service is down."""
    code, _seconds = scene.service.terminate()
    assert code == 0
    found = [path for path in (scene.volume / "checkpoint").glob(pattern) if path.is_file()]
    assert found, pattern
    for path in found:
        path.write_bytes(b"damaged" * 20)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    commit(scene, table)
    scene.start_service()


STEPS = (
    "its outputs are on record",
    "the first output exists",
    "all outputs exist",
    "the commit is on its way",
    "the commit has landed and its answer is lost",
    "it has committed",
)
DAMAGED = (
    "events-v3/metadata",
    "events-v3/offsets/[0-9]*",
    "events-v3/commits/[0-9]*",
    "ledger-v3*.sqlite*",
)


def all_cells() -> list[Cell]:
    """Each harm before and during a run, then what can be done to the service, its topic and its checkpoint alone."""
    cells = [
        Cell(harm.component, harm.fault, when, partial(harmed, harm, when))
        for harm in harms()
        for when in (BEFORE, DURING)
    ]
    cells.extend(Cell("service", "kill -9", f"when {step}", partial(service_killed, step)) for step in STEPS)
    cells += [
        Cell("topic", "deleted and created again", BEFORE, topic_recreated),
        Cell("topic", "a record that Spark cannot read", BEFORE, record_that_spark_cannot_read),
        Cell("topic", "partitions added", BEFORE, partitions_added),
        Cell("topic", "events removed by retention while the service is down", BEFORE, retention_exceeded),
    ]
    cells.extend(Cell("checkpoint", f"{files} damaged", BEFORE, partial(damaged, files)) for files in DAMAGED)
    return cells
