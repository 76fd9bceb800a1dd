"""What the ledger says, against the recount: the state on disk, the debt board, and what is due."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyiceberg.table import Table

from compactor.debt.board import PartitionCounts, Remainder, TableDebt
from compactor.debt.ledger import unpack
from compactor.events import LedgerUpdated
from compactor.iceberg.tables import file_sizes
from compactor.partitions import PartitionKey
from compactor.patience.holds import What
from compactor.planning.tiered_policy import policy_of
from compactor.table_names import TableName
from tests.ledger.recount import Truth, Truths
from tests.ledger.under_test import LedgerUnderTest

Counts = tuple[Any, ...]


def check_claims(ledger: LedgerUnderTest, truths: Truths, name: TableName) -> None:
    """What the ledger says of a table holds for the snapshot that it names, also if it has not seen the newest one."""
    _check_state(ledger, truths, name)
    debt = ledger.board.get(name)
    if debt is not None and debt.counted is not None:
        _check_debt(debt, truths.of(debt.snapshot_id))


def _check_state(ledger: LedgerUnderTest, truths: Truths, name: TableName) -> None:
    database = ledger.ledger.looker.database
    text, slots = database.head(name.key), database.slots(name.key)
    if text is None:
        assert slots == {}, f"{name}: counts without a head"
        return
    head = json.loads(text)
    if head["recount"]:
        return  # pieces
    truth = truths.of(head["snapshot"])
    assert head["snapshot"] is None or head["uuid"] == truth.table_uuid, f"{name}: counts of another table"
    pairs = [pair for packed in slots.values() for pair in unpack(packed)]
    assert len(pairs) == len({key for key, _ in pairs}), f"{name}: a partition is kept twice"
    _same(f"{name}, state", {key: _plain(counts) for key, counts in pairs}, truth.counts(head["sizes"][0]))
    assert PartitionCounts.from_list(head["totals"]) == _sum(truth, head["sizes"][0]), f"{name}: totals"


def _check_debt(debt: TableDebt, truth: Truth) -> None:
    assert debt.target_bytes is not None
    expected = {key: counts for key, counts in truth.counts(debt.target_bytes).items() if _has_debt(counts)}
    found = {key: _plain(partition.counts) for key, partition in debt.partitions.items()}
    if debt.others == Remainder():
        _same(f"{debt.table}, board", found, expected)
    else:  # sums over the rest
        _same(f"{debt.table}, board", found, {key: expected.get(key) for key in found})
        rest = [counts for key, counts in expected.items() if key not in found]
        sums = (len(rest), sum(counts[1] for counts in rest), sum(counts[3] for counts in rest))
        assert debt.others[:3] == sums, f"{debt.table}: sums over the other partitions"
    assert debt.total == _sum(truth, debt.target_bytes), f"{debt.table}: totals on the board"


def check_current(ledger: LedgerUnderTest, truths: Truths, name: TableName, table: Table | None) -> None:
    """The ledger has seen the table as it is now: its newest snapshot, sizes and policy."""
    debt, text = ledger.board.get(name), ledger.ledger.looker.database.head(name.key)
    if table is None:
        assert debt is None, f"{name} does not exist, yet it is on the board"
        assert text is None, f"{name} does not exist, yet its state is on disk"
        return
    assert debt is not None, f"{name} is not counted"
    assert text is not None, f"{name} has no state"
    head, state = table.metadata.current_snapshot_id, json.loads(text)
    assert debt.stale is None, f"{name} is stale: {debt.stale}"
    assert (debt.snapshot_id, state["snapshot"], state["recount"]) == (head, head, None), f"{name} is behind"
    values = ledger.settings.policy.for_table(name, table.properties)
    sizes = file_sizes(values, table.properties)
    assert (debt.target_bytes, state["sizes"][0]) == (sizes.target, sizes.target), f"{name}: another target"
    truth = truths.of(head)
    assert debt.manifests is not None
    assert debt.manifests.manifests == truth.manifests, f"{name}: manifests"
    assert debt.acted_on is ledger.settings.tables.acts_on(name, table.properties)
    _check_times(debt, truth, table)
    policy, held = policy_of(values, sizes), ledger.board.holds.of(What.PARTITION, name)
    due = set()
    for key, counts in truth.counts(sizes.target).items():
        true = _counts(counts)
        judgement = policy.judge(true)  # no sequence has a policy by which idleness decides
        known = held.get(key)
        refused = known is not None and known.basis == (true, judgement.why, debt.basis)
        if true.has_debt and judgement.due and not refused:
            due.add(key)
    shown = {key for key, partition in debt.partitions.items() if partition.due}
    assert shown == due, f"{name}: due are {sorted(due)}, shown {sorted(shown)}"


def _check_times(debt: TableDebt, truth: Truth, table: Table) -> None:
    """The last commits of writers: not before those that are known, and not after the last of all."""
    last = max((snapshot.timestamp_ms for snapshot in table.snapshots()), default=0)
    since = truth.changed_since(table.metadata)
    for key, partition in debt.partitions.items():
        moment = partition.counts.changed_ms
        assert since[key] <= moment <= last, f"{debt.table}, {key}: changed at {moment}, not in {since[key]} to {last}"


LOST_COLUMN = "a partition field lost its column"


def check_recounts(ledger: LedgerUnderTest) -> None:
    """No walk contradicts a snapshot, for the writers' summaries are right; but of a partition field whose column was
    dropped, Iceberg's Java library writes null into the entries of removed files, and the table is counted again.
    """
    for number, event in enumerate(ledger.published):
        if isinstance(event, LedgerUpdated) and event.recount_reason == "summary_mismatch":
            view = ledger.catalogs.load(event.table)
            lost = [name for spec in view.metadata.partition_specs for name in view.orphans(spec)]
            assert lost, "a walk contradicted the snapshot's own total"
            ledger.published[number] = replace(event, recount_reason=LOST_COLUMN)  # explained


def snapshot_of(ledger: LedgerUnderTest, names: tuple[TableName, ...]) -> Mapping[TableName, Any]:
    """All that the ledger knows of some tables, for comparison."""
    database = ledger.ledger.looker.database
    return {name: (database.head(name.key), database.slots(name.key), ledger.board.get(name)) for name in names}


def _same(where: str, found: Mapping[PartitionKey, Any], expected: Mapping[PartitionKey, Any]) -> None:
    if found == expected:
        return
    keys = sorted({key for key in {*found, *expected} if found.get(key) != expected.get(key)})
    lines = [f"{key}: counted {found.get(key)}, there are {expected.get(key)}" for key in keys]
    raise AssertionError(f"{where} differs from the recount: " + "; ".join(lines))


def _plain(counts: PartitionCounts) -> Counts:
    *numbers, _changed_ms, equality_deletes = counts.to_list()
    return (*numbers, equality_deletes)


def _counts(plain: Counts) -> PartitionCounts:
    *numbers, equality_deletes = plain
    return PartitionCounts.from_list([*numbers, 0, equality_deletes])


def _sum(truth: Truth, target: int) -> PartitionCounts:
    return sum(map(_counts, truth.counts(target).values()), PartitionCounts())


def _has_debt(counts: Counts) -> bool:
    small_files, delete_files = counts[1], counts[4]
    return bool(small_files or delete_files)
