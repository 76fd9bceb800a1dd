"""From a table's counts to its entry on the debt board: judge partitions, keep times, publish what is left alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from compactor.debt.board import DebtBoard, PartitionCounts, PartitionDebt, TableDebt, as_held, earliest
from compactor.debt.ledger import LedgerStore, LedgerUpdate, slot_of, unpack
from compactor.debt.manifest_debt import ManifestCounts
from compactor.debt.shortlist import KEPT_OF_A_SLOT, Shortlist
from compactor.errors import FirnlineError
from compactor.events import Listener, PartitionsSkipped
from compactor.iceberg.other_compactors import OtherCompactor
from compactor.iceberg.tables import FileSizes
from compactor.partitions import PartitionKey, PartitionLayout
from compactor.patience.holds import What
from compactor.planning.partition_judge import PartitionJudge
from compactor.runs.table_planner import skipped_partition
from compactor.runs.work_order import commit_rate
from compactor.settings.current import WorkSettings
from compactor.table_names import TableName
from streaming.logs.events import LOG

CACHED_FROM = 1_000
"""Partitions with debt from which the shortlists of a table's slots are kept: a commit then judges one slot again."""
MOST_BEGUN_ANEW = 3
"""After a recount has begun anew so often, its snapshots expire faster than it counts."""


@dataclass(frozen=True)
class TableFacts:
    """What judging a table's partitions takes of its metadata and settings.

    `plans_by`: what plans depend on besides the policy and the files.
    """

    judge: PartitionJudge
    sizes: FileSizes
    layouts: Mapping[int, PartitionLayout]
    acted_on: bool
    refused: tuple[str, ...] = ()
    other_firnlines: tuple[OtherCompactor, ...] = ()
    plans_by: tuple[object, ...] = ()

    @property
    def basis(self) -> object:
        """See `TableDebt`."""
        return self.judge, self.plans_by


@dataclass(frozen=True)
class Counted:
    """A finished count."""

    facts: TableFacts
    update: LedgerUpdate
    manifests: ManifestCounts | None = None


@dataclass(frozen=True)
class _BySlot:
    """Shortlists of a table's slots. `judged_at`: when all were judged, seconds since the epoch; `by`: the basis and
    the layouts that they were judged with.
    """

    judged_at: float
    by: tuple[object, Mapping[int, PartitionLayout]]
    lists: dict[int, Shortlist]


@dataclass(eq=False)
class BoardWriter:
    """Puts counts on the board. `wake` notifies the dispatcher. One thread at a time writes one table.

    `cached_from`: partitions with debt; see `CACHED_FROM`. `kept_of_a_slot`: how many of them have an object.
    """

    settings: WorkSettings
    board: DebtBoard
    listener: Listener
    clock: Callable[[], float] = time.time
    cached_from: int = field(default_factory=lambda: CACHED_FROM, init=False)
    kept_of_a_slot: int = field(default=KEPT_OF_A_SLOT, init=False)
    wake: Callable[[], None] = field(default_factory=lambda: _nobody, init=False)
    _by_slot: dict[TableName, _BySlot] = field(default_factory=dict, init=False)

    def put(self, table: TableName, counted: Counted, state: LedgerStore, oldest_event: float | None) -> None:
        """Put a finished count on the board. `oldest_event`: of the events that it answers, seconds since the epoch."""
        update, facts = counted.update, counted.facts
        known = self.board.get(table)
        changed = None if update.whole else frozenset(map(slot_of, update.partitions))
        shortlist = self._shortlist(table, facts, state, changed)
        # An event about a snapshot that was counted before (a duplicate or late event) does not wait for a rewrite.
        oldest = oldest_event if known is None or known.snapshot_id != update.snapshot_id else None
        debt = TableDebt(
            table=table,
            snapshot_id=update.snapshot_id,
            partitions=shortlist.kept,
            others=shortlist.others,
            counted=update.totals,
            acted_on=facts.acted_on,
            waiting_since=earliest(known.waiting_since if known else None, oldest),
            manifests=counted.manifests,
            refused=facts.refused,
            target_bytes=facts.sizes.target,
            other_firnlines=facts.other_firnlines,
            basis=facts.basis,
        )
        if not facts.acted_on:
            self.board.drop_requests(table)
        _tell_of_news(debt, known)
        self._publish(self._timed(debt, known))
        self._report_skipped(debt, None if update.whole else update.partitions)

    def judge_again(self, table: TableName, facts: TableFacts, state: LedgerStore, *, is_current: bool = True) -> None:
        """Judge the table's partitions again, since some become due by time.

        `is_current`: the catalog said that the table is unchanged, so its counts are not stale.
        """
        known = self.board.get(table)
        if not facts.acted_on:
            self.board.drop_requests(table)
            known = self.board.get(table)
        if known is None:
            return
        debt = replace(known, stale=None, recounting=False) if is_current else known
        if known.others.partitions:
            shortlist = self._shortlist(table, facts, state, None)
            debt = replace(debt, partitions=shortlist.kept, others=shortlist.others)
        elif known.partitions:  # all have an object: their state need not be read
            debt = replace(debt, partitions=self._judged_again(known, facts))
        if (debt.partitions, debt.others, debt.stale) != (known.partitions, known.others, known.stale):
            self._publish(self._timed(debt, known))

    def _judged_again(self, known: TableDebt, facts: TableFacts) -> Mapping[PartitionKey, PartitionDebt]:
        """The partitions as judged now; those whose judgement is the same are the same objects."""
        now = self.clock()
        held = self.board.holds.of(What.PARTITION, known.table)
        found: dict[PartitionKey, PartitionDebt] = {}
        for key, before in known.partitions.items():
            judgement = facts.judge.of(key, before.counts, now - before.counts.changed_ms / 1000)
            after = before
            if (judgement.due, judgement.why) != (before.due, before.why):
                after = replace(before, due=judgement.due, why=judgement.why, large_bytes=judgement.large_bytes)
            found[key] = as_held(after, held.get(key), facts.basis)
        return found

    def counting(self, table: TableName, facts: TableFacts, update: LedgerUpdate, oldest_event: float | None) -> None:
        """A long recount goes on; the old counts stay, marked as old. One that may never end is called unreadable."""
        reason = f"a recount is under way ({update.recount_reason})"
        ends = update.begun_anew < MOST_BEGUN_ANEW
        if not ends:
            reason += (
                f"; it began anew {update.begun_anew} times, because its snapshot expired before the end: keep the "
                "table's snapshots for longer"
            )
        self.board.mark_stale(table, reason, oldest_event, acted_on=facts.acted_on, recounting=ends)

    def unreadable(self, table: TableName, error: FirnlineError, oldest_event: float | None) -> None:
        """The table could not be loaded or counted; its counts stay, marked as old."""
        acted_on = self.settings.tables.acts_on(table, {})
        self.board.mark_stale(table, str(error), oldest_event, acted_on=acted_on)

    def forget(self, table: TableName) -> None:
        """The table is not counted any more; or its counts could not be saved, and the next look reads all of them."""
        self._by_slot.pop(table, None)

    def _publish(self, debt: TableDebt) -> None:
        self.board.put(debt)
        self.wake()

    def _timed(self, debt: TableDebt, known: TableDebt | None) -> TableDebt:
        """With the times that follow from the table's last entry."""
        now = self.clock()
        due_since = (known.due_since if known else None) or now
        debt = replace(debt, due_since=due_since if debt.has_work else None)
        if known is not None and known.snapshot_id == debt.snapshot_id:
            return replace(debt, commits_per_hour=known.commits_per_hour, counted_at=known.counted_at)
        since_last = now - known.counted_at if known is not None and known.counted_at is not None else None
        rate = commit_rate(known.commits_per_hour if known else 0.0, since_last)
        return replace(debt, commits_per_hour=rate, counted_at=now)

    def _shortlist(
        self, table: TableName, facts: TableFacts, state: LedgerStore, changed: frozenset[int] | None
    ) -> Shortlist:
        """The table's partitions with debt, judged now. `changed`: slots with new counts; None: judge all again.

        All are judged again with another basis, and once per sweep interval: partitions of a table that always changes
        become due by time too.
        """
        now = self.clock()
        held = self.board.holds.of(What.PARTITION, table)
        by = (facts.basis, facts.layouts)
        unseen = set(held)

        def judged(key: PartitionKey, counts: PartitionCounts) -> PartitionDebt:
            unseen.discard(key)
            return as_held(_judged(facts, key, counts, now), held.get(key), facts.basis)

        kept = self._by_slot.pop(table, None)  # an error in between leaves none: the next look reads all
        if kept is not None and changed is not None and self._is_fresh(kept, now) and kept.by == by:
            for number in changed:
                packed = state.slot(number)
                kept.lists[number] = Shortlist.of(unpack(packed) if packed else (), judged, self.kept_of_a_slot)
            self._by_slot[table] = kept
            return Shortlist.joined(kept.lists.values())
        lists = {number: Shortlist.of(unpack(packed), judged, self.kept_of_a_slot) for number, packed in state.slots()}
        shortlist = Shortlist.joined(lists.values())
        self.board.holds.release(What.PARTITION, table, unseen)
        if len(shortlist.kept) + shortlist.others.partitions >= self.cached_from:
            self._by_slot[table] = _BySlot(now, by, lists)
        return shortlist

    def _is_fresh(self, kept: _BySlot, now: float) -> bool:
        return 0 <= now - kept.judged_at < self.settings.service.sweep_seconds

    def _report_skipped(self, debt: TableDebt, changed: Iterable[PartitionKey] | None) -> None:
        """Publish the changed partitions (None: all) that have debt and are not due."""
        if not debt.acted_on:
            if debt.has_work:
                self.listener(PartitionsSkipped(table=debt.table, snapshot_id=debt.snapshot_id, reason="not_acted_on"))
            return
        keys = debt.partitions if changed is None else changed
        judged = [debt.partitions[key] for key in keys if key in debt.partitions]
        skipped = tuple(skipped_partition(each, each.why) for each in judged if not each.due)
        if skipped:
            self.listener(
                PartitionsSkipped(table=debt.table, snapshot_id=debt.snapshot_id, reason="not_due", partitions=skipped)
            )


def _nobody() -> None:
    """Before the dispatcher is there, nobody is notified."""


def _tell_of_news(debt: TableDebt, known: TableDebt | None) -> None:
    """Log what the table's owner should know, once."""
    table = str(debt.table)
    for refused in set(debt.refused) - set(known.refused if known else ()):
        LOG.warning("table property not used", extra={"table": table, "reason": refused})
    known_names = {other.name for other in known.other_firnlines} if known else set()
    for other in debt.other_firnlines:
        if other.name not in known_names:
            said = {"table": table, "deployment": other.name, "commits": other.commits, "files": other.files}
            LOG.warning("another firnline rewrites this table too", extra=said)


def _judged(facts: TableFacts, key: PartitionKey, counts: PartitionCounts, now: float) -> PartitionDebt:
    judgement = facts.judge.of(key, counts, now - counts.changed_ms / 1000)
    layout = facts.layouts[key.spec_id]
    return PartitionDebt(
        key=key,
        partition=layout.readable(key),
        bucket=layout.bucket(key),
        counts=counts,
        due=judgement.due,
        why=judgement.why,
        large_bytes=judgement.large_bytes,
    )
