"""From settings to the parts that do the work. `run` and `compact` build their parts here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compactor.commit.in_flight import InFlightRecords
from compactor.commit.sweep import GRACE_SECONDS, sweep
from compactor.commit.table_search import TableSearch
from compactor.errors import InputError
from compactor.events import Listener, ignore
from compactor.history.appender import Batches, History
from compactor.history.table import HistoryTable
from compactor.iceberg.tables import Catalogs, TableView
from compactor.lease.owner import Owner
from compactor.lease.right import UNLIMITED, CommitRight
from compactor.locations import user_folder
from compactor.locks.flink_locks import Locks
from compactor.manifests.cache import ManifestCache
from compactor.manifests.disk import ManifestDisk
from compactor.reasons import Reason
from compactor.runs.file_holds import FileHolds
from compactor.runs.rewriter import Rewriter
from compactor.runs.slots import SlotPool
from compactor.runs.turns import Turns
from compactor.settings.current import WorkSettings
from compactor.settings.tree import Settings, table_switch
from compactor.spark.cluster import STREAM_CORES, ClusterWatch, SparkExecutors
from compactor.spark.shipped_modules import check_executors
from compactor.table_names import TableName
from streaming.version import VERSION

LEASE_SECONDS = 60.0
"""A process that is silent for so long is dead; its outputs may be swept. A busy one may be silent for some seconds."""
CHECK_SECONDS = 15.0
"""Between checks of `firnline.enabled` during a rewrite."""

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_run_settings(settings: Settings, *, observe: bool) -> None:
    """What `run` needs beyond what every command needs; observe mode keeps no state.

    Raises:
        InputError: the message names the key.
    """
    if not settings.kafka.bootstrap_servers:
        raise InputError(
            "kafka.bootstrap_servers is not set; `run` reads commit events from Kafka", reason=Reason.BAD_SETTING
        )
    if not settings.state.checkpoint and not observe:
        raise InputError(
            "state.checkpoint is not set; e.g. file:///var/lib/firnline/checkpoint", reason=Reason.BAD_SETTING
        )
    if settings.spark.master in {"local", "local[1]"}:
        raise InputError(
            "spark.master: local[1] leaves no core for rewrites beside the stream; use local[2] or more",
            reason=Reason.BAD_SETTING,
        )


def rewrite_slots(
    session: SparkSession, most: int | None = None, *, beside_stream: bool = True
) -> tuple[SlotPool, ClusterWatch]:
    """The slots of the process, and the watch that keeps them at the size of the cluster. The watch has started.

    `most`: `service.max_concurrent_file_group_rewrites`.

    Raises:
        InputError: Spark's Python workers lack packages. Beside a stream on a cluster, rewrites wait until that is
            repaired instead.
    """
    spark, slots = SparkExecutors(session), SlotPool(0, most)

    def busy() -> tuple[bool, bool]:
        book = slots.book
        return book.in_use > 0, bool(book.waiting)

    def check(tasks: int) -> None:
        check_executors(session.sparkContext, tasks)

    watched = beside_stream and not spark.is_local
    stream_cores = STREAM_CORES if beside_stream else 0
    watch = ClusterWatch(spark, slots.resize, busy, stream_cores=stream_cores, check=check if watched else None)
    watch.start()
    if not watched:  # the worker that is started for it, and what it imports, are the first rewrite's
        check(1 if spark.is_local else max(1, watch.state.executors.cores))
    return slots, watch


@dataclass(frozen=True)
class Rewriting:
    """What rewriting tables takes in one process."""

    catalogs: Catalogs
    cache: ManifestCache
    records: InFlightRecords
    rewriter: Rewriter
    slots: SlotPool
    cluster: ClusterWatch
    search: TableSearch

    def sweep(self, now: float, may_ask: Callable[[TableName], bool] = lambda _table: True) -> None:
        """Delete outputs of ended runs that no snapshot references.

        `now`: seconds since the epoch. `may_ask`: whether the table's catalog may be asked now.

        Raises:
            OSError: the folder of the records cannot be read.
        """
        sweep(
            self.records,
            self.catalogs,
            self.cache,
            now=now,
            grace_seconds=GRACE_SECONDS,
            confirm=self.rewriter.right.confirm,
            may_ask=may_ask,
            search=self.search,
            listener=self.rewriter.listener,
        )


def rewriting(
    settings: Settings,
    session: SparkSession,
    catalogs: Catalogs,
    cache: ManifestCache,
    listener: Listener,
    *,
    checkpoint: str,
    beside_stream: bool,
    right: CommitRight = UNLIMITED,
    current: WorkSettings | None = None,
    files: FileHolds | None = None,
) -> Rewriting:
    """Build what `run` and `compact` rewrite with. `beside_stream`: leave cores to the ledger's query.

    `right`: confirmed before each commit and each deletion. `current`: the settings in force, where they can change.
    `files`: data files that an earlier process has left to this one.
    """
    service, work = settings.service, current or settings

    def most_replaces(table: TableView) -> int | None:
        return work.policy.for_table(table.name, table.properties).consecutive_replaces

    slots, cluster = rewrite_slots(session, service.max_concurrent_file_group_rewrites, beside_stream=beside_stream)
    records = in_flight_records(checkpoint)
    rewriter = Rewriter(
        session,
        catalogs,
        cache,
        records,
        slots=slots,
        lease_seconds=LEASE_SECONDS,
        check_seconds=CHECK_SECONDS,
        commit=settings.commit,
        listener=listener,
        right=right,
        locks=Locks(settings.locks),
        most_replaces=most_replaces,
        files=files or FileHolds(),
    )
    return Rewriting(catalogs, cache, records, rewriter, slots, cluster, TableSearch(catalogs))


def check_switch(table: TableView) -> None:
    """Make sure that the table's owner has not switched firnline off.

    Raises:
        InputError: the property `firnline.enabled` is false.
    """
    if table_switch(table.properties) is False:
        raise InputError(f"table {table.name} has the property firnline.enabled=false; unset it first")


def check_turn(settings: Settings, table: TableView) -> None:
    """Make sure that a person's command may commit a `replace` snapshot to the table now.

    Raises:
        LaterError: a Flink job holds its lock, a branch is to be published, or `policy.consecutive_replaces` lets
            another writer commit first.
        RetryError: the lock cannot be read.
    """
    Turns(settings, ignore, time.time, Locks(settings.locks)).check(table, requested=True)


def in_flight_records(checkpoint: str) -> InFlightRecords:
    """The in-flight records beside the checkpoint; without one, in the user's state folder."""
    folder = f"{checkpoint}/in-flight"
    if not checkpoint:
        folder = f"file://{user_folder('XDG_STATE_HOME', '.local/state')}/firnline/in-flight"
    return InFlightRecords(folder, Owner.this_process(), LEASE_SECONDS, time.time)


def history_of(settings: Settings, catalogs: Catalogs, listener: Listener) -> History | None:
    """The history of decisions, not yet started; None where no table is named for it."""
    table = history_table(settings, catalogs)
    return None if table is None else History(table, Batches(), listener)


def history_table(settings: Settings, catalogs: Catalogs) -> HistoryTable | None:
    """The table that `history.table` names."""
    name = settings.history.table_name(catalogs.names)
    return None if name is None else HistoryTable(catalogs, name, VERSION)


def manifest_disk(settings: WorkSettings) -> ManifestDisk | None:
    """Where decoded manifests outlive the process; None if the settings say so."""
    service = settings.service
    if not service.manifest_disk_bytes:
        return None
    return ManifestDisk(user_folder("XDG_CACHE_HOME", ".cache") / "firnline" / "manifests", service.manifest_disk_bytes)


def manifest_cache(settings: Settings, listener: Listener = ignore) -> ManifestCache:
    """The process' manifest cache: memory over local disk."""
    return ManifestCache(settings.service.manifest_cache_bytes, listener, disk=manifest_disk(settings))
