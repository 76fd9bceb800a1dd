"""The cluster that Spark runs on: its executors, read every two seconds, and the rewrite slots that follow from them.

`slots_of` and `Shortage` are pure; `ClusterWatch` reads Spark and tells the pool of slots.
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
SHORTAGE_SECONDS = 60.0
CHECK_SECONDS = 30.0
GROWTH_SECONDS = 60.0
GROWTH_PAUSE_SECONDS = 240.0
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
class Shortage:
    """How long work has waited without any executor. Pure; times in seconds of any steady clock."""

    since: float | None = None

    def seen(self, executors: Executors, now: float, *, wanted: bool) -> Shortage:
        """After a look. `wanted`: an executor should be there, or tasks wait for one."""
        if executors.executors or not wanted:
            return Shortage()
        return self if self.since is not None else Shortage(now)

    def seconds(self, now: float) -> float:
        """Seconds without an executor; 0 if there is one or nothing waits."""
        return 0.0 if self.since is None else max(0.0, now - self.since)


@dataclass(frozen=True)
class ClusterState:
    """What the pages and metrics show.

    Attributes:
        executors: As of the last look.
        slots: Rewrite slots; 0 until the packages of the executors were checked.
        shortage_seconds: How long work has waited without any executor.
        trouble: What is wrong, with the remedy; empty if nothing is.
    """

    executors: Executors = field(default_factory=Executors)
    slots: int = 0
    shortage_seconds: float = 0.0
    trouble: str = ""


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
        clock: A steady clock in seconds.
    """

    def __init__(
        self,
        spark: SparkExecutors,
        resize: Callable[[int], None],
        busy: Callable[[], tuple[bool, bool]],
        *,
        stream_cores: int,
        check: Callable[[int], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark = spark
        self._resize = resize
        self._busy = busy
        self._stream_cores = stream_cores
        self._check = check
        self._clock = clock
        self._growth = spark.dynamic_allocation
        self._packages = ""
        self._shortage = Shortage()
        self._reported = False
        self._waiting_since: float | None = None
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self.state = ClusterState()

    def start(self) -> None:
        """Look once, then watch until `stop`. The cores of a local master never change: they are read once."""
        self.look()
        if self._spark.is_local:
            return
        for name, work in (("cluster", self._watch), ("executor-check", self._check_packages)):
            thread = threading.Thread(target=work, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End the watch. Call it before Spark stops."""
        self._stopped.set()
        self._threads[0].join(POLL_SECONDS * 2) if self._threads else None

    def look(self) -> ClusterState:
        """Read the executors and set the slots.

        Raises:
            Py4JError: Spark has stopped.
        """
        executors, now = self._spark.read(), self._clock()
        holding, waiting = self._busy()
        before = self.state
        if not waiting:
            self._waiting_since = None
        elif self._waiting_since is None or executors.cores != before.executors.cores:
            self._waiting_since = now
        checked = self._check is None
        self._shortage = self._shortage.seen(
            executors, now, wanted=self._growth is None or holding or waiting or not checked
        )
        grow = may_grow(self._waiting_since, now)
        slots = slots_of(executors.cores, self._stream_cores, self._growth, grow=grow) if checked else 0
        short = self._shortage.seconds(now)
        self.state = ClusterState(executors, slots, short, self._packages or no_executor(short))
        self._report(before)
        if slots != before.slots:
            self._resize(slots)
        return self.state

    def read_cores(self) -> int:
        """The cores at this moment, without any change of the slots.

        Raises:
            Py4JError: Spark has stopped.
        """
        return self._spark.read().cores

    def _report(self, before: ClusterState) -> None:
        """Log each change once."""
        now, cores = self.state, self.state.executors.cores
        if now.slots != before.slots:
            LOG.info(
                "%d rewrite slots: %d cores of %d executors on %d hosts, %d for the stream",
                now.slots, cores, now.executors.executors, len(now.executors.tasks), self._stream_cores,
            )  # fmt: skip
        if now.trouble != before.trouble and now.trouble and not self._reported:
            LOG.error("%s", now.trouble)
        self._reported = bool(now.trouble)

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


def may_grow(waiting_since: float | None, now: float) -> bool:
    """Whether more tasks than there are cores may be given to Spark, so that it adds executors.

    Where none came within a minute, the cluster has none to give: then the stream keeps its core for four minutes.
    """
    return (
        waiting_since is not None and (now - waiting_since) % (GROWTH_SECONDS + GROWTH_PAUSE_SECONDS) < GROWTH_SECONDS
    )


def no_executor(seconds: float) -> str:
    """What to say after so many seconds without an executor; empty for the first minute."""
    return NO_EXECUTOR if seconds >= SHORTAGE_SECONDS else ""
