"""Which live data files a delete file applies to, and who left one behind that applies to none.

Iceberg's spec, "Scan Planning", per kind of delete file:

- A deletion vector applies to the data file it references: data sequence number <= the vector's, same spec and
  partition.
- A position delete file applies to data files of its spec and partition, data sequence number <= its own; only to
  `referenced_data_file` (or the only path within the bounds of `file_path`) where that is known. One that a deletion
  vector supersedes still counts: the spec says that readers ignore it, not that it must leave.
- An equality delete file applies to data files of its spec and partition, data sequence number < its own; to those of
  every spec and partition where its own spec is unpartitioned.

A rewrite stamps its outputs with the planned snapshot's sequence number, so a position delete file of that snapshot
still matches outputs by these rules, although it can name none of them. `exact` excludes files that were added after
the delete file (`file_sequence_number`).

The spec allows delete files that apply to nothing: other writers leave them behind. What a run answers for
(`left_behind`), where P is the snapshot it planned, Q the parent of its own snapshot O, and O lists a delete file that
applies exactly to nothing:

- It applied to something in Q, and is a vector, or all that it applied to in P was removed by O: a finding. Where a run
  commits in parts and these files left in several of them, it stays until the next run: an earlier part may be rolled
  back, and its files would need the delete again.
- It applied to nothing in Q, and to nothing in P either: a finding for a vector, and for other delete files when the
  run read the whole table; judged in the run's last snapshot.
- All else is counted as allowed: another writer made it dangle during the run, or the run's filter excluded it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

from tests.correctness.metadata_reader import EQUALITY_DELETES, Entry, PartitionKey, SnapshotState


@dataclass(frozen=True)
class DeleteIndex:
    """The live data files of a snapshot, found by what delete files are matched by."""

    state: SnapshotState
    unpartitioned_specs: frozenset[int]

    @cached_property
    def _by_path(self) -> dict[str, Entry]:
        return {entry.path: entry for entry in self.state.data}

    @cached_property
    def _by_place(self) -> dict[tuple[int, PartitionKey], list[Entry]]:
        found: dict[tuple[int, PartitionKey], list[Entry]] = defaultdict(list)
        for entry in self.state.data:
            found[entry.place].append(entry)
        return found

    @cached_property
    def deletes(self) -> dict[tuple[str, int | None, str | None], Entry]:
        """Live delete files by identity."""
        return {entry.identity: entry for entry in self.state.deletes}

    def covered(self, delete: Entry, *, exact: bool) -> frozenset[str]:
        """Paths of the live data files that a delete file applies to."""
        return frozenset(entry.path for entry in self._candidates(delete) if _applies(delete, entry, exact=exact))

    def _candidates(self, delete: Entry) -> list[Entry]:
        if delete.content == EQUALITY_DELETES and delete.spec_id in self.unpartitioned_specs:
            return list(self.state.data)
        if delete.referenced is None:
            return self._by_place.get(delete.place, [])
        found = self._by_path.get(delete.referenced)
        return [found] if found is not None and found.place == delete.place else []


def _applies(delete: Entry, data: Entry, *, exact: bool) -> bool:
    at, bound = data.sequence_number or 0, delete.sequence_number or 0
    if delete.content == EQUALITY_DELETES:
        return at < bound
    added_later = (data.file_sequence_number or 0) > (delete.file_sequence_number or 0)
    return at <= bound and not (exact and not delete.is_vector and added_later)


def dangling(index: DeleteIndex) -> list[Entry]:
    """Live delete files that apply to no live data file."""
    return [entry for entry in index.state.deletes if not index.covered(entry, exact=True)]


@dataclass(frozen=True)
class LeftBehind:
    """A delete file that applies to nothing. `finding`: the run answers for it."""

    entry: Entry
    finding: bool
    why: str


def left_behind(
    planned: DeleteIndex | None,
    parent: DeleteIndex,
    own: DeleteIndex,
    removed: AbstractSet[str],
    *,
    last: bool,
    whole_table: bool,
) -> Iterator[LeftBehind]:
    """Judge the dangling deletes of one snapshot of a run.

    `planned`: None where the planned snapshot has expired. `removed`: data files that this snapshot has removed.
    """
    for entry in dangling(own):
        known = planned is not None and entry.identity in planned.deletes
        before = planned.covered(entry, exact=False) if planned is not None and known else None
        if entry.identity in parent.deletes and parent.covered(entry, exact=True):
            at_fault = entry.is_vector or (before is not None and before <= removed)
            yield LeftBehind(entry, at_fault, "applied to a data file before the run, and applies to none now")
        elif last:
            at_fault = before is not None and not before and (entry.is_vector or whole_table)
            yield LeftBehind(entry, at_fault, "applied to no data file before the run, and the run left it")


def vector_problems(state: SnapshotState) -> Iterator[str]:
    """At most one deletion vector per data file; a vector names its data file and where its blob is."""
    seen: set[str] = set()
    for entry in state.deletes:
        if not entry.is_vector:
            continue
        if entry.referenced is None or entry.content_offset is None or entry.content_size is None:
            yield f"{entry.label}: without referenced data file, offset or size"
        elif entry.referenced in seen:
            yield f"{entry.label}: its data file has another deletion vector"
        seen.add(entry.referenced or "")
