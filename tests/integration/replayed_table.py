"""Tables whose clock a test sets: real commits over hours of table time, and the service's own parts that follow it.

A commit takes the machine's time; right after it the metadata file is given the table's, which always lies behind.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyiceberg.manifest import DataFile, ManifestEntryStatus
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BinaryType, NestedField, StringType

from compactor.debt.board import DebtBoard
from compactor.errors import LaterError
from compactor.events import EqualityDeletesConverted, Event, RunCommitted
from compactor.iceberg.manifest_entries import Status
from compactor.iceberg.tables import file_sizes
from compactor.locations import plain_path
from compactor.locks.flink_locks import NO_LOCKS, Locks
from compactor.patience.holds import Holds
from compactor.planning.budget import Grant, uncharged
from compactor.reasons import Reason
from compactor.runs.dispatcher import waiting
from compactor.runs.file_holds import FileHolds
from compactor.runs.rewriter import Rewriter
from compactor.runs.slots import SlotPool
from compactor.runs.table_planner import TablePlanner
from compactor.runs.table_worker import RewriteWorker
from compactor.settings.tree import Settings
from compactor.storage.ledger_database import LedgerDatabase
from streaming.ledger.board_writer import BoardWriter
from streaming.ledger.looker import Looker
from streaming.ledger.table_record import Asked, Lane, Outcome
from streaming.wiring import manifest_cache
from tests.conftest import Lake

FIRST_MOMENT = 1_704_067_200.0
"""2024-01-01, in seconds since the epoch: where the clocks of tables begin."""
SCHEMA = Schema(
    NestedField(1, "part", StringType(), required=False), NestedField(2, "payload", BinaryType(), required=False)
)
BY_PART = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part"))
ROWS = 4


@dataclass(frozen=True)
class Append:
    """One commit of a writer: seconds of table time, and the bytes of the file that each partition gets, about."""

    at: float
    sizes: Mapping[str, int]


@dataclass
class ClockedTable:
    """A table and its clock."""

    lake: Lake
    name: str
    target: int

    def __post_init__(self) -> None:
        self.lake.catalog.create_table(
            self.name,
            SCHEMA,
            partition_spec=BY_PART,
            properties={"format-version": "2", "write.target-file-size-bytes": str(self.target)},
        )

    @property
    def table(self) -> Table:
        return self.lake.catalog.load_table(self.name)

    def append(self, commit: Append, random_bytes: random.Random) -> None:
        parts, payloads = [], []
        for part, size in commit.sizes.items():
            parts += [part] * ROWS
            payloads += [random_bytes.randbytes(size // ROWS) for _ in range(ROWS)]
        self.table.append(pa.table({"part": pa.array(parts, pa.string()), "payload": pa.array(payloads, pa.binary())}))
        self.stamp(commit.at)

    def add(self, files: list[DataFile], at: float) -> None:
        """One commit that lists files which are there already."""
        with self.table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for file in files:
                append.append_data_file(file)
        self.stamp(at)

    def stamp(self, at: float) -> None:
        """Whatever carries the machine's time carries `at` from now on."""
        path = Path(plain_path(self.table.metadata_location))
        tree = json.loads(path.read_text())
        moment, today = int(at * 1000), int((time.time() - 86_400) * 1000)
        for key in ("snapshots", "snapshot-log", "metadata-log"):
            for entry in tree.get(key, ()):
                entry["timestamp-ms"] = moment if entry["timestamp-ms"] > today else entry["timestamp-ms"]
        tree["last-updated-ms"] = moment
        path.write_text(json.dumps(tree))
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of what stood there before

    def appended(self) -> list[tuple[float, list[DataFile]]]:
        """What each `append` snapshot added."""
        table = self.table
        found = []
        for snapshot in table.metadata.snapshots:
            entries = [
                entry.data_file
                for manifest in snapshot.manifests(table.io)
                if manifest.added_snapshot_id == snapshot.snapshot_id
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                if entry.status == ManifestEntryStatus.ADDED
            ]
            if snapshot.summary is not None and snapshot.summary.operation.value == "append":
                found.append((snapshot.timestamp_ms / 1000, entries))
        return found


@dataclass
class FollowedTable:
    """The ledger, board, policy, planner and rewriter of the service over one table, on a clock that the test sets."""

    lake: Lake
    table: str
    settings: Settings
    now: float = FIRST_MOMENT
    stamp: Callable[[float], None] = lambda _: None
    locks: Locks = NO_LOCKS
    events: list[Event] = field(default_factory=list)
    small_files: list[int] = field(default_factory=list)
    bytes_in: int = 0
    runs: list[RunCommitted] = field(default_factory=list)
    conversions: list[EqualityDeletesConverted] = field(default_factory=list)

    def __post_init__(self) -> None:
        lake, clock = self.lake, lambda: self.now
        self.board = DebtBoard(Holds(clock))
        files = FileHolds(self.board.holds)
        self.cache = manifest_cache(self.settings)
        rewriter = Rewriter(
            lake.session, lake.catalogs, self.cache, lake.in_flight(), slots=SlotPool(2), lease_seconds=60,
            check_seconds=60, listener=self.publish, clock=clock, ticks=clock, locks=self.locks, files=files,
            commit=self.settings.commit.model_copy(update={"hold_seconds": 0.0}),  # its clock stands still
            most_replaces=lambda table: (
                self.settings.policy.for_table(table.name, table.properties).consecutive_replaces
            ),
        )  # fmt: skip
        planner = TablePlanner(rewriter, self.settings, self.board, planned=lambda _: None)
        self.worker = RewriteWorker(planner, rewriter, announce=lambda *_: None)
        self.looker = Looker(
            settings=self.settings, catalogs=lake.catalogs, database=LedgerDatabase(self._state_file()),
            counting=self.cache, plans=self.cache,
            writer=BoardWriter(self.settings, self.board, self.publish, clock),
        )  # fmt: skip
        self._name = lake.name(self.table)

    @staticmethod
    def _state_file() -> Path:
        return Path(tempfile.mkdtemp(prefix="ledger-")) / "ledger.sqlite"

    def publish(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, RunCommitted):
            self.runs.append(event)
        if isinstance(event, EqualityDeletesConverted):
            self.conversions.append(event)

    @classmethod
    def clocked(cls, table: ClockedTable, settings: Settings) -> FollowedTable:
        return cls(table.lake, table.name, settings, stamp=table.stamp)

    def follow(self, clocked: ClockedTable, commits: list[tuple[float, list[DataFile]]]) -> None:
        """Commit by commit; in between, sweeps as the table watcher makes them."""
        sweep_at = commits[0][0]
        for at, files in commits:
            while sweep_at < at:
                self.now = sweep_at
                self.look(Lane.SWEEP)
                sweep_at += self.settings.service.sweep_seconds
            self.now = at
            clocked.add(files, at)
            self.bytes_in += sum(file.file_size_in_bytes for file in files)
            self.look(Lane.EVENT)
            self.small_files.append(self._count())

    def look(self, lane: Lane) -> None:
        """The ledger looks, and what is due is rewritten, until nothing is."""
        looked = self.looker.look(self._name, Asked(lane, self.now if lane is Lane.EVENT else None))
        assert looked.outcome in {Outcome.COUNTED, Outcome.UNCHANGED}, looked
        assert not looked.more, "a small local table is counted in one go"
        for debt in waiting(self.board.tables(), Holds(lambda: self.now), ()):
            commits = len(self.runs) + len(self.conversions)
            try:
                self.worker.work(debt, lambda: False, Grant(), uncharged)
            except LaterError as later:
                if later.reason is not Reason.CONVERSION_REFUSED:  # else all other work is done
                    raise
            if len(self.runs) + len(self.conversions) > commits:
                self.stamp(self.now)
                self.look(Lane.EVENT)

    def _count(self) -> int:
        view = self.lake.catalogs.load(self._name)
        sizes = file_sizes(self.settings.policy.for_table(self._name), view.properties)
        return sum(
            sizes.is_small(entry.size)
            for entries in self.cache.read(view, view.manifests())
            for entry in entries
            if entry.status is not Status.DELETED
        )

    @property
    def bytes_rewritten(self) -> int:
        return sum(run.bytes_in for run in self.runs)

    @property
    def shrinkage(self) -> float:
        """By how much rewritten files are smaller than what they were made from."""
        return 1 - sum(run.bytes_out for run in self.runs) / self.bytes_rewritten
