"""The metadata oracle: is what a run's snapshots list consistent with the files, with itself, and with the spec?

`check_run` reads the table's metadata with `metadata_reader`, never with firnline's readers, and returns a sentence per
finding. Delete files that apply to nothing are judged as `delete_rules` documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compactor.runs.results import RunResult
from tests.conftest import Lake
from tests.correctness.delete_rules import DeleteIndex, left_behind, vector_problems
from tests.correctness.file_facts import file_problems
from tests.correctness.listing_rules import (
    by_snapshot,
    duplicate_problems,
    history_problems,
    lineage_problems,
    manifest_problems,
    sequence_problems,
    summary_problems,
)
from tests.correctness.metadata_reader import ADDED, DATA, SnapshotState, TableMetadata, is_local

RUN_ID = "firnline.run-id"


@dataclass(frozen=True)
class Verdict:
    """What is wrong, and how many delete files apply to nothing without the run being at fault."""

    findings: tuple[str, ...] = ()
    allowed: int = 0


def check_run(lake: Lake, table: str, run: RunResult, *, whole_table: bool = True) -> Verdict:
    """Check the snapshots of one run. `whole_table`: no filter excluded manifests from its plan."""
    location = lake.catalog.load_table(lake.name(table).identifier).metadata_location
    if run.snapshot_after is None or not is_local(location):
        return Verdict()
    metadata = TableMetadata.read(location)
    own = [each for each in metadata.snapshots.values() if (each.get("summary") or {}).get(RUN_ID) == run.run_id]
    own.sort(key=lambda each: each.get("sequence-number") or each["timestamp-ms"])
    return judge(metadata, [each["snapshot-id"] for each in own], run.snapshot_before, whole_table=whole_table)


def judge(metadata: TableMetadata, own: Sequence[int], planned_id: int | None, *, whole_table: bool = True) -> Verdict:
    """Check the given snapshots of one run, oldest first. `planned_id`: the snapshot that the run planned."""
    findings: list[str] = []
    allowed = 0
    planned = metadata.state(planned_id) if planned_id in metadata.snapshots else None
    for number, snapshot_id in enumerate(own, 1):
        after = metadata.state(snapshot_id)
        parent_id = after.snapshot.get("parent-snapshot-id")
        parent = metadata.state(parent_id) if parent_id in metadata.snapshots else None
        problems = list(check_snapshot(metadata, after, parent, planned))
        if parent is not None:
            removed = {entry.path for entry in parent.data} - {entry.path for entry in after.data}
            specs = metadata.unpartitioned_specs
            left_out = left_behind(
                DeleteIndex(planned, specs) if planned else None,
                DeleteIndex(parent, specs),
                DeleteIndex(after, specs),
                removed,
                last=number == len(own),
                whole_table=whole_table,
            )
            for left in left_out:
                if left.finding:
                    problems.append(f"{left.entry.label} {left.why}")
                allowed += not left.finding
        name = metadata.document["location"].rsplit("/", 1)[-1]
        findings += [f"table {name}, snapshot {snapshot_id}: {problem}" for problem in problems]
    return Verdict(tuple(findings), allowed)


def check_snapshot(
    metadata: TableMetadata, after: SnapshotState, parent: SnapshotState | None, planned: SnapshotState | None
) -> Iterator[str]:
    """Check one snapshot of a run against its files, its parent and itself."""
    yield from vector_problems(after)
    for entry in (*after.deletes, *(entry for entry in by_snapshot(after, ADDED) if entry.content == DATA)):
        yield from file_problems(entry)
    yield from summary_problems(after, parent)
    yield from duplicate_problems(after, parent)
    yield from manifest_problems(after)
    yield from history_problems(after, parent)
    yield from sequence_problems(metadata, after, planned.sequence_number if planned else None)
    yield from lineage_problems(metadata, after)
