"""One look at one table: load it if it has changed → count what is new → put its debt on the board.

An unchanged table costs one catalog call: what was counted is judged again, since a partition becomes due by time too.
"""

from __future__ import annotations

from array import array
from contextlib import suppress
from dataclasses import replace
from operator import is_not

from compactor.debt.ledger import LedgerUpdate, StateDamagedError, advance
from compactor.debt.manifest_debt import manifests_of
from compactor.debt.table_changes import FIRST_SIGHT
from compactor.errors import FirnlineError, GiveUpError, RetryError
from compactor.events import LedgerUpdated
from compactor.iceberg.other_compactors import flink_converts, other_firnlines
from compactor.iceberg.tables import Catalogs, KnownVersion, TableMissingError, TableView, Unchanged, file_sizes
from compactor.manifests.cache import ManifestCache
from compactor.planning.partition_judge import judge_of
from compactor.planning.spark_misreads import WRITTEN_FORMAT
from compactor.reasons import Reason
from compactor.rewrite.tasks.task_input import NAME_MAPPING
from compactor.settings.current import WorkSettings
from compactor.settings.policy import refused_properties
from compactor.storage.ledger_database import LedgerDatabase, TableState
from compactor.table_names import TableName
from streaming.ledger.board_writer import BoardWriter, Counted, TableFacts
from streaming.ledger.rhythm import Commits
from streaming.ledger.table_record import NO_RECORD, Asked, Count, Looked, Lost, Outcome, TableRecord
from streaming.logs.events import LOG

TAKEN_OVER = "taken_over"
REMEMBERED_SNAPSHOTS = 256
"""Snapshots of a table whose announcements need no look any more: the newest of its main branch."""


class Looker:
    """Looks at tables for several threads, one table by one thread at a time.

    Attributes:
        settings: In force now.
        counting: Cache of the manifests that are counted. Small, because a count reads each manifest once.
        plans: Cache of the planner: it gets the new manifests of tables that were planned before.
        deployment: The id that this deployment writes into its commits; empty if it makes none.
        elsewhere: Whether an earlier holder of the lease had its counts on the disk of another host, if none are here.
        unsaved: Why the state of the last look that changed one could not be saved; empty if it was. All threads write
            it.
    """

    def __init__(
        self,
        settings: WorkSettings,
        catalogs: Catalogs,
        database: LedgerDatabase,
        counting: ManifestCache,
        plans: ManifestCache,
        writer: BoardWriter,
        deployment: str = "",
    ) -> None:
        self.settings = settings
        self.catalogs = catalogs
        self.database = database
        self.counting = counting
        self.plans = plans
        self.writer = writer
        self.deployment = deployment
        self.elsewhere = False
        self.unsaved = ""

    def look(self, table: TableName, asked: Asked, record: TableRecord = NO_RECORD) -> Looked:
        """Look at the table; all failures are in the result. `record`: what is known of it."""
        known, started = record.count, self.writer.clock()
        try:
            version = known.version if known is not None and self._has_counts(known) else None
            loaded = self.catalogs.load_if_changed(table, version, started)
        except Exception as error:  # noqa: BLE001 - as below
            return self._not_loaded(table, error, known)
        try:
            if isinstance(loaded, TableView):
                return self._count(table, loaded, asked, record, started)
            return self._unchanged(table, loaded, known, started)
        except StateDamagedError as error:
            self._forget_state(table)
            return Looked(Outcome.UNREADABLE, error)
        except Exception as error:  # noqa: BLE001 - a thread serves many tables, and must outlive each of them
            return Looked(Outcome.UNREADABLE, failure_of(error))

    def _unchanged(self, table: TableName, loaded: Unchanged, known: Count | None, started: float) -> Looked:
        if known is None:
            raise TypeError(f"{table} was never loaded, and is called unchanged")
        self.writer.judge_again(table, known.facts, self.database.state(table.key))
        return Looked(Outcome.UNCHANGED, count=replace(known, version=loaded.known, loaded_at=started))

    def _not_loaded(self, table: TableName, error: Exception, known: Count | None) -> Looked:
        """A name that cannot be loaded may be none: events also name other formats, and what is forbidden."""
        if isinstance(error, TableMissingError):
            return Looked(Outcome.MISSING, error)
        certain = not isinstance(error, RetryError) or error.reason is Reason.CATALOG_UNAVAILABLE or known is not None
        return Looked(Outcome.UNREADABLE, failure_of(error), doubtful=not certain and not self._has_state(table))

    def judge(self, table: TableName, count: Count | None) -> bool:
        """Judge the partitions of a counted table again, without a call. False: it must be looked at instead."""
        if count is None or not self._has_counts(count):
            return False
        try:
            self.writer.judge_again(table, count.facts, self.database.state(table.key), is_current=False)
        except Exception as error:  # noqa: BLE001 - the look comes upon it again, and reports it
            LOG.debug("%s could not be judged again: %s", table, error)
            return False
        return True

    def lost(self, lost: Lost) -> None:
        """The table does not exist: drop its debt, and its state; the next look counts it, if it comes back."""
        table, board = lost.table, self.writer.board
        requests = board.requests(table)
        if requests and lost.called is not None:
            board.request(lost.called, requests)
        elif requests and not lost.keep_requests:
            LOG.warning("a requested rewrite is dropped: %s", lost.error)
        board.forget(table, keep_requests=lost.keep_requests)
        self.writer.forget(table)
        if lost.with_state and self._has_state(table):
            self._forget_state(table)

    def _count(self, table: TableName, view: TableView, asked: Asked, record: TableRecord, started: float) -> Looked:
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
        if not saved:
            self.writer.forget(table)
        seen = array("q", _newest_ancestors(view))
        version = KnownVersion(view.metadata_location, view.etag, self.writer.clock())
        self._publish(table, update, asked)
        if record.planned and not update.more:
            self._read_ahead(view)
        compares = saved and not update.more  # else the next look must count, not compare
        return Looked(
            Outcome.COUNTED if update.counted else Outcome.COUNTING,
            count=Count(version, facts, seen, used, started, state.generation) if compares else None,
            more=update.more,
            commits=Commits.of(view, record.rhythm),
            place=view.metadata_location,
        )

    def _publish(self, table: TableName, update: LedgerUpdate, asked: Asked) -> None:
        reason = update.recount_reason if update.begins else None
        if reason == FIRST_SIGHT and self.elsewhere and self.database.began_empty and not self.database.generation:
            reason = TAKEN_OVER  # no sign of a lost checkpoint
        waited = None if asked.oldest_event is None else max(0.0, self.writer.clock() - asked.oldest_event)
        self.writer.listener(
            LedgerUpdated(
                table=table,
                snapshot_id=update.snapshot_id,
                recount_reason=reason,
                counted=update.counted,
                event_to_ledger_seconds=waited,
            )
        )

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
            self.plans.read(view, view.manifests())
        except FirnlineError as error:  # the next plan gets the same error and reports it
            LOG.debug("manifests of %s could not be read ahead: %s", view.name, error)

    def _has_counts(self, known: Count) -> bool:
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
            other_firnlines=other_firnlines(view.metadata, self.writer.clock(), self.deployment),
            plans_by=_plans_by(view),
        )

    def saved(self) -> list[TableName]:
        """Tables whose state is on disk. Damaged names are left out; looks report a state that cannot be read."""
        found = []
        with suppress(FirnlineError):
            for key in self.database.names():
                with suppress(ValueError):
                    found.append(TableName.of_key(key))
        return found

    def _has_state(self, table: TableName) -> bool:
        try:
            return self.database.head(table.key) is not None
        except FirnlineError:
            return False

    def _forget_state(self, table: TableName) -> None:
        """Delete the table's saved state; the next look counts the table, if it exists."""
        try:
            self.database.forget(table.key)
        except FirnlineError as failure:  # of a dropped table: one of the same name is recounted, its UUID is another
            LOG.warning("the state of %s could not be deleted: %s", table, failure)


def failure_of(error: Exception) -> FirnlineError:
    """The error, or one that tells of an unexpected one."""
    if isinstance(error, FirnlineError):
        return error
    return GiveUpError(f"{type(error).__name__}: {error}", reason=Reason.UNEXPECTED)


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
