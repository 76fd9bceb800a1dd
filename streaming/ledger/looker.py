"""One look at one table: load it if it has changed → count what is new → put its debt on the board.

An unchanged table costs one catalog call: what was counted is judged again, since a partition becomes due by time too.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from operator import is_not

from compactor.debt.board import DebtBoard
from compactor.debt.ledger import StateDamagedError, advance
from compactor.debt.manifest_debt import manifests_of
from compactor.debt.table_changes import FIRST_SIGHT
from compactor.errors import FirnlineError, GiveUpError, RetryError
from compactor.events import LedgerUpdated, Listener, TableLooked, TableUnreadable
from compactor.iceberg.other_compactors import flink_converts, other_firnlines
from compactor.iceberg.tables import (
    Catalogs,
    KnownVersion,
    TableMissingError,
    TableView,
    Unchanged,
    file_sizes,
)
from compactor.manifests.cache import ManifestCache
from compactor.patience.backoff import Backoff
from compactor.planning.partition_judge import judge_of
from compactor.planning.spark_misreads import WRITTEN_FORMAT
from compactor.reasons import Reason
from compactor.rewrite.tasks.task_input import NAME_MAPPING
from compactor.settings.current import WorkSettings
from compactor.settings.policy import refused_properties
from compactor.storage.ledger_database import LedgerDatabase, TableState
from compactor.table_names import TableName
from streaming.ledger.board_writer import BoardWriter, Counted, TableFacts
from streaming.ledger.look_queue import Asked
from streaming.ledger.missing_names import MissingNames
from streaming.ledger.table_locations import TableLocations, metadata_version
from streaming.ledger.table_rhythms import TableRhythms
from streaming.logs.events import LOG

FIRST_RETRY_SECONDS = 15.0
LONGEST_RETRY_SECONDS = 600.0
TAKEN_OVER = "taken_over"
REMEMBERED_SNAPSHOTS = 256
"""Snapshots of a table whose announcements need no look any more: the newest of its main branch."""


class Outcome(StrEnum):
    """What a look found."""

    COUNTED = "counted"
    UNCHANGED = "unchanged"
    COUNTING = "counting"
    MISSING = "missing"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Looked:
    """A look's outcome. `again_after`: seconds until the next look, None: when somebody asks. `error`: what failed."""

    outcome: Outcome
    again_after: float | None = None
    error: FirnlineError | None = None


@dataclass
class _Known:
    """What is kept of a table between looks. `seen`: ids of the newest snapshots of its main branch; `settings`: the
    sections that `facts` were made with; `loaded_at`: when the last look began, in seconds since the epoch;
    `generation`: of the database that has the counts.
    """

    version: KnownVersion
    facts: TableFacts
    seen: array[int]  # 8 bytes each
    settings: tuple[object, ...]
    loaded_at: float
    generation: int


@dataclass(eq=False)
class Looker:
    """Looks at tables for several threads, one table by one thread at a time.

    Attributes:
        counting: Cache of the manifests that are counted. Small, because a count reads each manifest once.
        plans: Cache of the planner: it gets the new manifests of tables that were planned before.
        deployment: The id that this deployment writes into its commits; empty if it makes none.
        rhythms: Learns when tables are committed to.
        locations: Learns where tables keep their metadata.
        is_listed: Whether the last listing of the catalog has the table, or may have missed it.
        spelled: The listed name that differs from an unlisted one by capitals only.
        taken_over: Whether the counts of the service before lie on another host.
    """

    settings: WorkSettings
    catalogs: Catalogs
    database: LedgerDatabase
    counting: ManifestCache
    plans: ManifestCache
    board: DebtBoard
    writer: BoardWriter
    listener: Listener
    clock: Callable[[], float] = time.time
    deployment: str = ""
    rhythms: TableRhythms = field(default_factory=TableRhythms)
    locations: TableLocations = field(default_factory=TableLocations)
    is_listed: Callable[[TableName], bool] = lambda _table: False
    spelled: Callable[[TableName], TableName | None] = lambda _table: None
    taken_over: Callable[[], bool] = lambda: False
    names: MissingNames = field(init=False)
    unsaved: str = field(default="", init=False)
    """Why the state of the last look that changed one could not be saved; empty if it was. All threads write it."""
    _known: dict[TableName, _Known] = field(default_factory=dict, init=False)
    _failures: dict[TableName, int] = field(default_factory=dict, init=False)
    _planned: set[TableName] = field(default_factory=set, init=False)
    _backoff: Backoff = field(default=Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS), init=False)

    def __post_init__(self) -> None:
        self.names = MissingNames(self.clock)

    def look(self, table: TableName, asked: Asked) -> Looked:
        """Look at the table; all failures are in the result."""
        source = self.rhythms.source(table)
        try:
            looked = self._look(table, asked)
        except TableMissingError as error:
            looked = self._lost(table, error)
        except StateDamagedError as error:
            self._forget_state(table)
            looked = self._failed(table, asked, error)
        except FirnlineError as error:
            looked = self._failed(table, asked, error)
        except Exception as error:  # noqa: BLE001 - a thread serves many tables, and must outlive each of them
            unexpected = GiveUpError(f"{type(error).__name__}: {error}", reason=Reason.UNEXPECTED)
            looked = self._failed(table, asked, unexpected)
        self._search_anew(asked, source)
        self.listener(TableLooked(table=table, outcome=looked.outcome))
        return looked

    def _search_anew(self, asked: Asked, source: str) -> None:
        """Search the tables of announced metadata files whose folder was this table's until the look."""
        for each in asked.announced:
            if isinstance(each, str) and not self.locations.find(each):
                self.locations.search(each, source, asked.oldest_event or self.clock())

    def judge(self, table: TableName) -> bool:
        """Judge the partitions of a counted table again, without a call. False: it must be looked at instead."""
        known = self._known.get(table)
        if known is None or not self._has_counts(known):
            return False
        try:
            self.writer.judge_again(table, known.facts, self.database.state(table.key), is_current=False)
        except Exception as error:  # noqa: BLE001 - the look comes upon it again, and reports it
            LOG.debug("%s could not be judged again: %s", table, error)
            return False
        return True

    def has_seen(self, table: TableName, snapshot_id: int, announced_at: float) -> bool:
        """Whether the newest count of the table covers this snapshot, so that its announcement is no news.

        `announced_at`: seconds since the epoch. An announcement after the last look is news: it can tell of a rollback
        to this snapshot, or of a change of the table's properties.
        """
        known = self._known.get(table)
        return known is not None and announced_at <= known.loaded_at and snapshot_id in known.seen

    def not_found(self, table: TableName, announced: frozenset[int | str]) -> frozenset[int | str]:
        """Which of these snapshots and metadata files the last look did not find, nor any later file."""
        known = self._known.get(table)
        if known is None:
            return frozenset()  # the next look counts it, or it does not exist
        version = metadata_version(known.version.metadata_location)

        def is_there(each: int | str) -> bool:
            if isinstance(each, int):
                return each in known.seen
            announced_version = metadata_version(each)
            return version is None or announced_version is None or announced_version <= version

        return frozenset(each for each in announced if not is_there(each))

    def is_known(self, table: TableName) -> bool:
        """Whether the table was there at the last look."""
        return table in self._known

    def planned(self, table: TableName) -> None:
        """The table was planned: from now on, read its new manifests before the next plan needs them."""
        self._planned.add(table)

    def hangs(self, table: TableName, error: FirnlineError) -> None:
        """A look at the table does not end: its counts may be old."""
        self.writer.unreadable(table, error, None)
        self.listener(TableUnreadable(table=table, reason=error.reason, message=str(error)))

    def forget(self, table: TableName) -> None:
        """The table is ignored now. Its state stays on disk."""
        self._known.pop(table, None)
        self._planned.discard(table)
        self.board.forget(table)
        self.writer.forget(table)
        self.rhythms.forget(table)
        self.locations.forget(table)

    def _look(self, table: TableName, asked: Asked) -> Looked:
        known, started = self._known.get(table), self.clock()
        if known is not None and not self._has_counts(known):
            known = None  # load it again, although it is unchanged
        loaded = self.load(table, known.version if known else None, started)
        self._failures.pop(table, None)
        self.names.found(table)
        if known is not None and isinstance(loaded, Unchanged):
            known.version, known.loaded_at = loaded.known, started
            self.writer.judge_again(table, known.facts, self.database.state(table.key))
            return Looked(Outcome.UNCHANGED)
        if isinstance(loaded, Unchanged):  # never without a known version
            raise TypeError(f"{table} was never loaded, and is called unchanged")
        return self._count(table, loaded, asked, started)

    def load(self, table: TableName, known: KnownVersion | None, now: float) -> TableView | Unchanged:
        """The table. A name that cannot be loaded may be none: events also name other formats, and what is forbidden.

        Raises:
            TableMissingError: it does not exist, or another name is listed that differs by capitals only; or it cannot
                be loaded, no listing has it and it was never counted.
            RetryError: as of `Catalogs.load_if_changed`.
        """
        listed = self.spelled(table)
        if listed is not None:
            raise TableMissingError(f"no listing has {table}, but {listed}: events of that name alone are used")
        try:
            return self.catalogs.load_if_changed(table, known, now)
        except RetryError as error:
            certain = error.reason is Reason.CATALOG_UNAVAILABLE or self.is_listed(table)
            if certain or known is not None or self.database.head(table.key) is not None:
                raise
            raise TableMissingError(str(error)) from error

    def _count(self, table: TableName, view: TableView, asked: Asked, started: float) -> Looked:
        self.locations.put(table, view.metadata_location)
        used = self._sections  # before the facts: what changes in between makes them old
        state = self.database.state(table.key)
        facts = self._facts(table, view)
        budget = self.settings.service.manifests_per_batch
        update = advance(view, facts.sizes, state, self.counting, manifest_budget=budget)
        manifests = manifests_of(view, self.settings.manifests)
        saved = self._save(state, needed=update.more)
        if not update.counted:
            self.writer.counting(table, facts, update, asked.oldest_event)
        else:
            self.writer.put(table, Counted(facts, update, manifests), state, asked.oldest_event)
        seen = array("q", _newest_ancestors(view))
        version = KnownVersion(view.metadata_location, view.etag, self.clock())
        if not saved:
            self.writer.not_saved(table)
        if update.more or not saved:  # the next look must count, not compare
            self._known.pop(table, None)
        else:
            self._known[table] = _Known(version, facts, seen, used, started, state.generation)
        self.rhythms.counted(table, view, asked)
        waited = None if asked.oldest_event is None else max(0.0, self.clock() - asked.oldest_event)
        self.listener(
            LedgerUpdated(
                table=table,
                snapshot_id=update.snapshot_id,
                recount_reason=self._recount_reason(update.recount_reason) if update.begins else None,
                counted=update.counted,
                event_to_ledger_seconds=waited,
            )
        )
        if table in self._planned and not update.more:
            self._read_ahead(view)
        return Looked(Outcome.COUNTED if update.counted else Outcome.COUNTING, 0.0 if update.more else None)

    def _recount_reason(self, reason: str | None) -> str | None:
        """A table that an earlier holder of the lease has counted is no sign of a lost checkpoint."""
        return TAKEN_OVER if reason == FIRST_SIGHT and self.taken_over() else reason

    def _save(self, state: TableState, *, needed: bool) -> bool:
        """Save the state. If that fails, the counts are right all the same; the next look counts from the older one.

        Raises:
            RetryError: it could not be saved, and is `needed`: a long recount goes on from it.
        """
        try:
            if state.save():  # else the disk may still be full
                self.unsaved = ""
        except FirnlineError as error:
            if not self.unsaved:
                LOG.warning("%s; counts go on, each look from the state that was saved last", error)
            self.unsaved = str(error)
            if needed:
                raise
            return False
        return True

    def _read_ahead(self, view: TableView) -> None:
        try:
            self.plans.read(view, view.manifests(), prefetch=True)
        except FirnlineError as error:  # the next plan gets the same error and reports it
            LOG.debug("manifests of %s could not be read ahead: %s", view.name, error)

    def _has_counts(self, known: _Known) -> bool:
        """Whether the saved counts are the known ones, and mean the same as then."""
        return known.generation == self.database.generation and not any(map(is_not, known.settings, self._sections))

    @property
    def _sections(self) -> tuple[object, ...]:
        """Sections that decide what a table's counts mean. One that did not change is the same object."""
        return (self.settings.tables, self.settings.policy, self.settings.manifests)

    def _facts(self, table: TableName, view: TableView) -> TableFacts:
        values = self.settings.policy.for_table(table, view.properties)
        sizes = file_sizes(values, view.properties)
        return TableFacts(
            judge=judge_of(view, values, sizes),
            sizes=sizes,
            layouts=view.layouts(),
            acted_on=self.settings.tables.acts_on(table, view.properties),
            refused=refused_properties(view.properties),
            other_firnlines=other_firnlines(view.metadata, self.clock(), self.deployment),
            plans_by=_plans_by(view),
        )

    def _lost(self, table: TableName, error: TableMissingError) -> Looked:
        """The catalog has no such table. A proxy may say so for a moment: then its state is counted anew.

        Requests cannot be found again. They wait for another look, and as long as listings have the table.
        """
        was_known = self._known.pop(table, None) is not None or self.board.get(table) is not None
        if self.names.lost(table) and not was_known:
            LOG.info("events of an unknown table are not used: %s", error)
        self._failures.pop(table, None)
        self._planned.discard(table)
        self.rhythms.forget(table)
        self.locations.forget(table)
        keep_requests = was_known or self.is_listed(table)
        if not keep_requests and self.board.requests(table):
            LOG.warning("a requested rewrite is dropped: %s", error)
        self.board.forget(table, keep_requests=keep_requests)
        if was_known or (not keep_requests and self._has_state(table)):  # dropped while the service was down
            self._forget_state(table)
        self.writer.answered(table)
        return Looked(Outcome.MISSING, error=error)

    def _has_state(self, table: TableName) -> bool:
        try:
            return self.database.head(table.key) is not None
        except FirnlineError:
            return False

    def _forget_state(self, table: TableName) -> None:
        """Delete the table's saved state; the next look counts the table, if it exists."""
        self._known.pop(table, None)
        try:
            self.database.forget(table.key)
        except FirnlineError as failure:  # of a dropped table: one of the same name is recounted, its UUID is another
            LOG.warning("the state of %s could not be deleted: %s", table, failure)

    def _failed(self, table: TableName, asked: Asked, error: FirnlineError) -> Looked:
        failures = self._failures[table] = self._failures.get(table, 0) + 1
        self.writer.unreadable(table, error, asked.oldest_event)
        self.listener(TableUnreadable(table=table, reason=error.reason, message=str(error)))
        return Looked(Outcome.UNREADABLE, self._backoff.seconds(failures), error)


def _plans_by(view: TableView) -> tuple[object, ...]:
    """What plans of the table depend on besides the policy and the files."""
    metadata = view.metadata
    return (
        view.uuid,
        metadata.format_version,
        metadata.current_schema_id,
        metadata.default_sort_order_id,
        view.properties.get(NAME_MAPPING),
        view.properties.get(WRITTEN_FORMAT),
        flink_converts(view.history),
    )


def _newest_ancestors(view: TableView) -> list[int]:
    """Ids of the newest snapshots of the main branch. A snapshot of another branch is news once it is published."""
    parents = {each.snapshot_id: each.parent_snapshot_id for each in view.metadata.snapshots}
    found: list[int] = []
    current = view.metadata.current_snapshot_id
    while current is not None and current in parents and len(found) < REMEMBERED_SNAPSHOTS:
        found.append(current)
        current = parents.pop(current)
    return found
