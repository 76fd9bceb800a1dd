"""Cells of the service's surroundings: the clock of its host, a second instance, executors of a cluster."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

from compactor.commit.in_flight import InFlightRecords, Owner
from compactor.commit.sweep import sweep
from compactor.manifests.cache import ManifestCache
from tests.faults.cells import BEFORE, DURING, Cell, announce_all, commit, make_due
from tests.faults.scene import Scene
from tests.integration.service_process import wait_for
from tests.services.processes import session_members, told
from tests.services.quick_java import SPARK_CONF
from tests.services.shifted_clock import ShiftedClock
from tests.services.spark_cluster import SparkCluster, spark_cluster

NEARLY_A_MINUTE = 50  # Iceberg refuses snapshots that are a minute older than the one before, or newer than the catalog
HOUR = 3600
WRONG_SECONDS = 20.0  # until somebody sets a clock that differs so much that the store refuses all requests
CLOCKS = {
    "50 s ahead": NEARLY_A_MINUTE,
    "50 s back": -NEARLY_A_MINUTE,
    "an hour ahead for 20 s": HOUR,
    "an hour back for 20 s": -HOUR,
}


# --- the clock --------------------------------------------------------------------------------------------------------


def with_a_clock(scene: Scene) -> None:
    """Start the service again, under a clock that can be set."""
    if scene.clock is None:
        scene.service.terminate()
        scene.clock = ShiftedClock.made(scene.folder)
        scene.start_service()
    scene.clock.set(0)


def clock_set(seconds: int, when: str, scene: Scene, table: str) -> None:
    """The clock jumps: by less than a minute for good, by an hour until it is right; catalog and store refuse that."""
    assert scene.clock is not None
    if when == DURING:
        make_due(scene, table, when)
    scene.clock.set(seconds)
    if when == BEFORE:
        make_due(scene, table, when)
    if abs(seconds) >= HOUR:
        time.sleep(WRONG_SECONDS)
        scene.clock.set(0)
    announce_all(scene, table)


# --- a second instance ------------------------------------------------------------------------------------------------


def second_waits(when: str, scene: Scene, table: str) -> None:
    """A second service on the same checkpoint is a standby, and goes."""
    scene.use_own_clock()
    make_due(scene, table, when)
    second = scene.site.start()
    wait_for("the standby", lambda: "This service waits" in second.log_text)
    code, _seconds = second.terminate()
    assert code == 0


def second_takes_over(scene: Scene, table: str) -> None:
    """The active service stands still during a run; the standby takes over; the first wakes up and must not commit."""
    first, second = scene.service, scene.site.start()
    wait_for("the standby", lambda: "This service waits" in second.log_text)
    make_due(scene, table, DURING)
    os.kill(first.pid, signal.SIGSTOP)
    try:
        second.wait_ready()
    finally:
        os.kill(first.pid, signal.SIGCONT)
    scene.service = second
    wait_for("the first to end", lambda: first._process.poll() is not None)
    announce_all(scene, table)


def second_works_too(scene: Scene, table: str) -> None:
    """A second service with a checkpoint of its own rewrites the same tables; it goes when the table is compacted."""
    checkpoint = f"file://{scene.folder}/second"
    second = scene.site.started(FIRNLINE_STATE__CHECKPOINT=checkpoint)
    commit(scene, table)
    wait_for("a rewrite", lambda: "replace" in scene.site.operations(table))
    code, _seconds = second.terminate()
    assert code == 0
    records = InFlightRecords(f"{checkpoint}/in-flight", Owner.this_process(), 60, time.time)
    wait_for("the second one's outputs to be deleted", lambda: is_swept(records, scene))
    announce_all(scene, table)


def is_swept(records: InFlightRecords, scene: Scene) -> bool:
    """Delete what a task wrote after its run was stopped, as the next start on that checkpoint would."""
    sweep(records, scene.site.catalogs, ManifestCache(1 << 20), now=time.time(), grace_seconds=0.0)
    return not records.all()


# --- executors --------------------------------------------------------------------------------------------------------


def on_a_cluster(scene: Scene) -> None:
    """Start the service again on a cluster of two workers with one executor each."""
    if scene.cluster is None:
        scene.cluster = scene.more.enter_context(spark_cluster(scene.folder / "spark", 1, 1))
        conf = {**SPARK_CONF, **scene.cluster.conf}
        scene.use_sections(spark={"master": scene.cluster.master, "conf": conf})


def executor_killed(when: str, scene: Scene, table: str) -> None:
    """The processes of one executor are killed; its worker starts another."""
    cluster = cluster_of(scene)
    make_due(scene, table, when)
    worker = cluster.workers[-1]
    for pid in session_members(worker.process.pid):
        if pid != worker.process.pid and b"CoarseGrainedExecutorBackend" in told(pid, "cmdline"):
            os.kill(pid, signal.SIGKILL)


def worker_lost(when: str, scene: Scene, table: str) -> None:
    """A machine of the cluster is lost with all its processes; another one comes."""
    cluster = cluster_of(scene)
    make_due(scene, table, when)
    cluster.workers[-1].kill()
    cluster.add_workers(1)


def cluster_of(scene: Scene) -> SparkCluster:
    assert scene.cluster is not None
    return scene.cluster


def process_cells() -> list[Cell]:
    """Before the cells of credentials: the service goes on under its shifted clock until a cell starts it again."""
    clock = [
        Cell("clock", fault, when, partial(clock_set, seconds, when), with_a_clock)
        for fault, seconds in CLOCKS.items()
        for when in (BEFORE, DURING)
    ]
    second = [
        *(
            Cell("second instance", "on the same checkpoint", when, partial(second_waits, when))
            for when in (BEFORE, DURING)
        ),
        Cell("second instance", "takes over from a frozen one", DURING, second_takes_over),
        Cell("second instance", "with another checkpoint", DURING, second_works_too),
    ]
    return [*clock, *second]


def executor_cells() -> list[Cell]:
    """The last ones: the service stays on the cluster."""
    return [
        Cell("executor", fault, when, partial(act, when), on_a_cluster)
        for fault, act in (("killed", executor_killed), ("its machine lost", worker_lost))
        for when in (BEFORE, DURING)
    ]
