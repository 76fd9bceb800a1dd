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

from tests.faults.proxy import Mode, Trap
from tests.faults.scene import COMMITS, PARTS, ROWS, Scene, Server
from tests.integration.service_process import wait_for
from tests.services.processes import descendants, kill, told

LASTS_SECONDS = 8.0
"""Of a fault that ends by itself."""
FROZEN_SECONDS = 15.0
HTTP = (Mode.STATUS_500, Mode.STATUS_503, Mode.STATUS_429)
TCP = (Mode.REFUSE, Mode.HANG, Mode.CUT, Mode.SLOW)
BEFORE, DURING = "before the run", "during the run"


@dataclass(frozen=True)
class Harm:
    """What is done to the process of a server, for how long, and what ends it."""

    begin: Callable[[Server], None]
    seconds: float
    end: Callable[[Server], None]


KILLED = Harm(Server.kill, LASTS_SECONDS, Server.start)
FROZEN = Harm(Server.freeze, FROZEN_SECONDS, Server.thaw)


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


def announce_all(scene: Scene, table: str) -> None:
    snapshot = scene.site.view(table).snapshot
    assert snapshot is not None
    scene.site.publish(scene.site.event(table, snapshot_id=snapshot.snapshot_id, timestamp_ms=snapshot.timestamp_ms))


def run_has_begun(scene: Scene, table: str) -> bool:
    return any(record.name == table for record in scene.records.all())


def make_due(scene: Scene, table: str, when: str, *, announce: bool = True) -> None:
    """Make all partitions due; `DURING` waits until the run has begun."""
    commit(scene, table, announce=announce)
    if when == DURING:
        wait_for("the run", lambda: run_has_begun(scene, table), every=0.005)


def proxied(component: str, mode: Mode, when: str, scene: Scene, table: str) -> None:
    """The network between the service and a component."""
    proxy = scene.servers[component].proxy
    if when == BEFORE:
        proxy.mode = mode
        commit(scene, table, announce=component != "broker")
    else:
        make_due(scene, table, when)
        proxy.mode = mode
    time.sleep(LASTS_SECONDS)
    proxy.mode = Mode.PASS
    if component == "broker":
        announce_all(scene, table)


def process_broken(component: str, harm: Harm, when: str, scene: Scene, table: str) -> None:
    """The process of a server is killed or stands still, and comes back."""
    server = scene.servers[component]
    make_due(scene, table, when, announce=when == DURING)
    harm.begin(server)
    time.sleep(harm.seconds)
    harm.end(server)
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


def service_frozen(when: str, scene: Scene, table: str) -> None:
    make_due(scene, table, when)
    freeze(scene.service.pid, FROZEN_SECONDS)


def freeze(pid: int, seconds: float) -> None:
    """A process stands still."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


def jvm(scene: Scene) -> int:
    return next(pid for pid in descendants(scene.service.pid) if told(pid, "comm").strip() == b"java")


def jvm_killed(when: str, scene: Scene, table: str) -> None:
    """The service ends with its JVM; an orchestrator starts it again."""
    make_due(scene, table, when)
    os.kill(jvm(scene), signal.SIGKILL)
    wait_for("the end of the service", lambda: scene.service._process.poll() is not None)
    scene.start_service()


def jvm_frozen(when: str, scene: Scene, table: str) -> None:
    make_due(scene, table, when)
    freeze(jvm(scene), FROZEN_SECONDS)


def workers_killed(when: str, scene: Scene, table: str) -> None:
    """All Python processes below the JVM are killed, as by the kernel."""
    make_due(scene, table, when)
    kill(descendants(jvm(scene)))


def volume_full(when: str, scene: Scene, table: str) -> None:
    make_due(scene, table, when, announce=when == DURING)
    filler = fill(scene.volume)
    announce_all(scene, table)
    time.sleep(LASTS_SECONDS)
    filler.unlink()


def fill(volume: Path) -> Path:
    """Fill a volume; removing the file makes room again."""
    filler = volume / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


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
    """In an order in which the faults of one component follow each other."""
    cells, still = list[Cell](), f"frozen for {FROZEN_SECONDS:.0f} s"

    def add(component: str, fault: str, act: Callable[[str, Scene, str], None]) -> None:
        cells.extend(Cell(component, fault, when, partial(act, when)) for when in (BEFORE, DURING))

    for component, modes in (("broker", TCP), ("catalog", TCP + HTTP), ("store", TCP + HTTP)):
        for mode in modes:
            add(component, f"network: {mode.value}", partial(proxied, component, mode))
        add(component, "process killed, started again", partial(process_broken, component, KILLED))
        add(component, f"process {still}", partial(process_broken, component, FROZEN))
    cells.extend(Cell("service", "kill -9", f"when {step}", partial(service_killed, step)) for step in STEPS)
    add("service", still, service_frozen)
    add("JVM", "killed", jvm_killed)
    add("JVM", still, jvm_frozen)
    add("Python workers", "killed", workers_killed)
    add("checkpoint volume", "full", volume_full)
    cells += [
        Cell("topic", "deleted and created again", BEFORE, topic_recreated),
        Cell("topic", "a record that Spark cannot read", BEFORE, record_that_spark_cannot_read),
        Cell("topic", "partitions added", BEFORE, partitions_added),
        Cell("topic", "events removed by retention while the service is down", BEFORE, retention_exceeded),
    ]
    cells.extend(Cell("checkpoint", f"{files} damaged", BEFORE, partial(damaged, files)) for files in DAMAGED)
    return cells
