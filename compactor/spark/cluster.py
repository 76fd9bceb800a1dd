"""The cluster that Spark runs on: its executors, read every two seconds, and the rewrite slots that follow from them.

`slots_of` and `may_grow` are pure; `ClusterWatch` reads Spark and tells the pool of slots.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from compactor.errors import InputError

LOG = logging.getLogger("firnline")
POLL_SECONDS = 2.0
CHECK_SECONDS = 30.0
PATIENCE_SECONDS = 60.0
"""A cluster that gives no executor for so long has none to give."""
GROWTH_CYCLE = 5
"""Of so many minutes, the first lets Spark add executors; in the others the stream keeps its core."""
STREAM_CORES = 1
"""Spark's query decodes events in tasks of milliseconds: one core is enough at any rate of events (FAIR does not
preempt, so without it a batch would wait for the end of a rewrite task)."""


@dataclass(frozen=True)
class Executors:
    """The executors at one moment.

    Attributes:
        cores: Tasks that they run at once.
        executors: Their number; the driver counts in local mode.
        tasks: Running tasks of each host, rewrites and others.
    """

    cores: int = 0
    executors: int = 0
    tasks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class DynamicAllocation:
    """Spark adds executors while tasks are pending. `most`: cores of all executors that it may have."""

    most: int
    cores_per_executor: int


def slots_of(cores: int, stream_cores: int, growth: DynamicAllocation | None, *, grow: bool) -> int:
    """Rewrite slots of a cluster. At least one, so that a rewrite can start on a single core, or request an executor.

    `grow`: runs wait for slots and Spark could add executors. Then as many tasks again may wait in Spark, which adds
    executors only for pending tasks: the cluster doubles every few seconds up to its limit. At least one task waits,
    also where only the stream's core is left.
    """
    slots = cores - stream_cores
    if growth is not None and grow and cores < growth.most:
        more = max(cores, growth.cores_per_executor)
        slots = max(cores + 1, min(cores + more, growth.most) - stream_cores)
    return max(1, slots)


@dataclass(frozen=True)
class ClusterState:
    """What the pages and metrics show. Times are seconds of a steady clock.

    Attributes:
        executors: As of the last look.
        slots: Rewrite slots; 0 until the packages of the executors were checked.
        shortage_seconds: How long work has waited without any executor.
        trouble: What is wrong, with the remedy; empty if nothing is.
        short_since: Since when work has waited without any executor.
        waiting_since: Since when runs have waited for slots, with as many cores.
    """

    executors: Executors = field(default_factory=Executors)
    slots: int = 0
    shortage_seconds: float = 0.0
    trouble: str = ""
    short_since: float | None = None
    waiting_since: float | None = None


MANY = 2**31 - 1
NO_EXECUTOR = (
    "no Spark executor for more than a minute; rewrites wait. Check that the cluster's master is reachable at "
    "spark.master, that it has free cores and memory for spark.executor.cores and spark.executor.memory, and that "
    "executors reach the driver at spark.driver.host"
)


class SparkExecutors:
    """Reads the executors of a session. One call takes a millisecond."""

    def __init__(self, session: SparkSession) -> None:
        self._context = session.sparkContext
        self._spark = self._context._jsc.sc()  # noqa: SLF001 - PySpark has no public way to the scheduler
        self._profile = self._spark.resourceProfileManager().defaultResourceProfile()
        jvm: Any = self._context._jvm  # noqa: SLF001
        self._writer = jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
        self.is_local = str(self._context.master).startswith("local")

    def read(self) -> Executors:
        """The executors now. The scheduler counts the cores; the status store, which lags a little, knows the hosts.

        Raises:
            Py4JError: Spark has stopped.
        """
        cores = int(self._spark.maxNumConcurrentTasks(self._profile))
        listed = json.loads(self._writer.writeValueAsString(self._spark.statusStore().executorList(True)))
        mine = [one for one in listed if (one["id"] == "driver") == self.is_local and one["isActive"]]
        tasks: Counter[str] = Counter()
        for one in mine:
            tasks[str(one["hostPort"]).rpartition(":")[0]] += int(one["activeTasks"])
        return Executors(cores, len(mine) if cores else 0, tasks)

    @property
    def dynamic_allocation(self) -> DynamicAllocation | None:
        """How far Spark may grow by itself; None if it may not."""
        conf = self._context.getConf()
        if self.is_local or conf.get("spark.dynamicAllocation.enabled", "false") != "true":
            return None
        cores = max(1, int(conf.get("spark.executor.cores", "1")) // int(conf.get("spark.task.cpus", "1")))
        most = conf.get("spark.dynamicAllocation.maxExecutors")
        return DynamicAllocation(int(most) * cores if most else MANY, cores)


class ClusterWatch:
    """Keeps the pool of slots at the size of the cluster, in a thread of its own.

    Args:
        spark: Reads the executors.
        resize: Called with the number of slots.
        busy: (whether rewrites hold slots, whether they wait for more).
        stream_cores: Cores that rewrites leave to the stream.
        check: Imports what tasks need on executors, in so many tasks; raises InputError. Until it has passed there are
            no slots, because every rewrite would fail. None: nothing to check.
    """

    def __init__(
        self,
        spark: SparkExecutors,
        resize: Callable[[int], None],
        busy: Callable[[], tuple[bool, bool]],
        *,
        stream_cores: int,
        check: Callable[[int], None] | None = None,
    ) -> None:
        self._spark = spark
        self._resize = resize
        self._busy = busy
        self._stream_cores = stream_cores
        self._check = check
        self._growth = spark.dynamic_allocation
        self._packages = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="cluster", daemon=True)
        self.state = ClusterState()

    def start(self) -> None:
        """Look once, then watch until `stop`. The cores of a local master never change: they are read once."""
        self.look()
        if self._spark.is_local:
            return
        self._thread.start()
        threading.Thread(target=self._check_packages, name="executor-check", daemon=True).start()

    def stop(self) -> None:
        """End the watch. Call it before Spark stops."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(POLL_SECONDS * 2)

    def look(self, at: float | None = None) -> ClusterState:
        """Read the executors and set the slots. `at`: seconds of a steady clock, by default now.

        Raises:
            Py4JError: Spark has stopped.
        """
        executors, before = self._spark.read(), self.state
        now = time.monotonic() if at is None else at
        holding, waiting = self._busy()
        checked = self._check is None
        same_size = executors.cores == before.executors.cores
        waiting_since = _since(before.waiting_since if same_size else None, now, holds=waiting)
        wanted = self._growth is None or holding or waiting or not checked
        short_since = _since(before.short_since, now, holds=wanted and not executors.executors)
        grow = may_grow(waiting_since, now)
        slots = slots_of(executors.cores, self._stream_cores, self._growth, grow=grow) if checked else 0
        short = 0.0 if short_since is None else now - short_since
        trouble = self._packages or (NO_EXECUTOR if short >= PATIENCE_SECONDS else "")
        self.state = ClusterState(executors, slots, short, trouble, short_since, waiting_since)
        self._report(before)
        if slots != before.slots:
            self._resize(slots)
        return self.state

    def _report(self, before: ClusterState) -> None:
        """Log each change once."""
        now, cores = self.state, self.state.executors.cores
        if now.slots != before.slots:
            LOG.info(
                "%d rewrite slots: %d cores of %d executors on %d hosts, %d for the stream",
                now.slots, cores, now.executors.executors, len(now.executors.tasks), self._stream_cores,
            )  # fmt: skip
        if now.trouble and not before.trouble:
            LOG.error("%s", now.trouble)

    def _watch(self) -> None:
        while not self._stopped.wait(POLL_SECONDS):
            try:
                self.look()
            except Py4JError as error:  # Spark stops, or is too busy to answer: look again
                LOG.debug("executors could not be read: %s", error)

    def _check_packages(self) -> None:
        while self._check is not None:
            try:
                self._check(max(1, self.state.executors.cores))
            except InputError as error:
                self._packages = str(error)
            except Exception as error:  # noqa: BLE001 - the job failed by itself, e.g. an executor was lost: once more
                LOG.warning("the Python packages of executors could not be checked, next try: %s", error)
            else:
                self._check, self._packages = None, ""
            if self._check is None or self._stopped.wait(CHECK_SECONDS):
                return


def _since(before: float | None, now: float, *, holds: bool) -> float | None:
    """Since when something holds, if it does now; `before`: as of the last look."""
    if not holds:
        return None
    return now if before is None else before


def may_grow(waiting_since: float | None, now: float) -> bool:
    """Whether more tasks than there are cores may be given to Spark, so that it adds executors."""
    if waiting_since is None:
        return False
    return (now - waiting_since) % (GROWTH_CYCLE * PATIENCE_SECONDS) < PATIENCE_SECONDS
