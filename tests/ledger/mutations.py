"""Ways to break the ledger: names of product code, and what stands there instead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tests.mutations.mutation import Mutation, breaks

SAMPLE: Final = "tests/properties/test_ledger_histories.py::test_the_ledger_is_exact_under_random_histories"
_ARITHMETIC: Final = "compactor.debt.ledger"
_CHANGES: Final = "compactor.debt.table_changes"
_LOOKER: Final = "streaming.ledger.looker:Looker"


def _breaks(target: str, what: str) -> Any:
    return breaks("16", target, what, SAMPLE)


@_breaks(f"{_CHANGES}:entries_changed", "removed files are ignored")
def added_files_only(original, table, commits, cache):
    return (entry for entry in original(table, commits, cache) if entry.status.name == "ADDED")


@_breaks(f"{_CHANGES}:unseen_snapshots", "a gap in the history is no reason to recount")
def nothing_new_after_a_gap(original, metadata, counted_snapshot_id, ref="main"):
    found = original(metadata, counted_snapshot_id, ref)
    return found if counted_snapshot_id is None or isinstance(found, tuple) else ()


@_breaks(f"{_CHANGES}:CommitTimes.written_ms", "a rewritten file is one sequence number older than it is")
def written_earlier(original, self, snapshot_id, data_sequence_number):
    return original(self, snapshot_id, data_sequence_number - 1)


@_breaks(f"{_CHANGES}:counts_of", "the rows of equality deletes are counted as deleted rows")
def equality_counts_as_position(original, entry, sizes, changed_ms=0):
    found = original(entry, sizes, changed_ms)
    return replace(found, deleted_records=entry.records) if found.delete_files else found


@_breaks("compactor.iceberg.tables:head_of", "the newest snapshot of any branch is counted")
def newest_of_all(metadata, ref="main"):
    return max(metadata.snapshots, key=lambda each: each.timestamp_ms, default=None)


@_breaks("compactor.manifests.columns:Partitions.key", "the partition spec is forgotten")
def key_without_the_spec(original, self, index):
    key, values = original(self, index)
    return key._replace(spec_id=0), values


@_breaks(f"{_ARITHMETIC}:_keep_piece", "the last piece of a long recount is lost")
def last_piece_lost(original, store, deltas, earlier, *, done):
    if done and earlier:
        deltas.clear()
    original(store, deltas, earlier, done=done)


@_breaks(f"{_ARITHMETIC}:advance", "a look that its budget has cut short is the last one")
def always_the_last_look(original, table, sizes, store, cache, *, manifest_budget):
    return replace(original(table, sizes, store, cache, manifest_budget=manifest_budget), more=False)


@_breaks(f"{_ARITHMETIC}:_reason_to_recount", "another target size is no reason to recount")
def sizes_not_compared(original, head, table, sizes):
    return original(head and replace(head, sizes=sizes), table, sizes)


@_breaks("compactor.debt.board:PartitionCounts.is_empty", "partitions without files stay")
def never_empty(self):
    return False


@_breaks("compactor.storage.ledger_database:TableState.clear", "a recount leaves counts of the last state on disk")
def left_on_disk(original, self):
    original(self)
    self._cleared = False


@_breaks(f"{_LOOKER}._save", "what could not be saved is taken for saved")
def taken_for_saved(original, self, state, *, needed):
    return original(self, state, needed=needed) or True


@_breaks("streaming.ledger.table_record:Count.has", "an event about a rollback is taken for a duplicate")
def announced_before_the_look(original, self, snapshot_id, announced_at):
    return original(self, snapshot_id, float("-inf"))


@_breaks(f"{_LOOKER}._has_counts", "new settings do not reach a table that has not changed")
def counts_of_any_settings(self, known):
    return known.generation == self.database.generation


@_breaks("compactor.debt.board:DebtBoard.forget", "a table that was dropped stays on the board")
def never_forgotten(self, table, *, keep_requests=False):
    return None


@_breaks(
    "streaming.ledger.catalog_tables:CatalogTables._sweep", "tables that are not listed any more are not looked at"
)
def nothing_missed(original, self, table, now):
    if self.get(table).listed:
        original(self, table, now)


MUTATIONS: Final = tuple(each for each in vars().values() if isinstance(each, Mutation))
