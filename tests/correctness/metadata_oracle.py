"""The metadata oracle: is what a run's snapshots list consistent with the files, with itself, and with the spec?

`check_run` reads the table's metadata with `metadata_reader`, never with firnline's readers, and returns a sentence per
finding. Delete files that apply to nothing are judged as `delete_rules` documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.conftest import Lake
from tests.correctness.delete_rules import DeleteIndex, left_behind, vector_problems
from tests.correctness.metadata_reader import SnapshotState, TableMetadata, is_local

RUN_ID = "firnline.run-id"


@dataclass(frozen=True)
class Verdict:
    """What is wrong, and how many delete files apply to nothing without the run being at fault."""

    findings: tuple[str, ...] = ()
    allowed: int = 0


def metadata_of(lake: Lake, table: str) -> TableMetadata:
    """The table's newest metadata file; the catalog says which it is."""
    return TableMetadata.read(lake.catalog.load_table(lake.name(table).identifier).metadata_location)


def check_run(
    lake: Lake, table: str, run_id: str, planned: int | None, *, ref: str = "main", whole_table: bool = True
) -> Verdict:
    """Check the snapshots of one run.

    Args:
        lake: Where the table is.
        table: Its name.
        run_id: The run, as its snapshots' summaries name it.
        planned: The snapshot that was planned; None where the table was empty.
        ref: The branch.
        whole_table: The run read every manifest: no filter excluded delete files.
    """
    location = lake.catalog.load_table(lake.name(table).identifier).metadata_location
    if not is_local(location):
        return Verdict()
    metadata = TableMetadata.read(location)
    own = sorted(
        (each for each in metadata.snapshots.values() if (each.get("summary") or {}).get(RUN_ID) == run_id),
        key=lambda each: each.get("sequence-number", 0),
    )
    found = Verdict()
    if own:
        found = judge(metadata, [each["snapshot-id"] for each in own], planned, whole_table=whole_table)
    return Verdict(tuple(f"{table}: {sentence}" for sentence in found.findings), found.allowed)


def judge(metadata: TableMetadata, own: Sequence[int], planned: int | None, *, whole_table: bool = True) -> Verdict:
    """Check the given snapshots of one run, oldest first."""
    findings: list[str] = []
    removed: set[str] = set()
    allowed: Counter[str] = Counter()
    plan_state = metadata.state(planned) if planned in metadata.snapshots else None
    for number, snapshot_id in enumerate(own, 1):
        after = metadata.state(snapshot_id)
        parent_id = metadata.snapshots[snapshot_id].get("parent-snapshot-id")
        before = metadata.state(parent_id) if parent_id in metadata.snapshots else None
        problems = list(check_snapshot(metadata, after, before))
        if before is not None:
            plan_state = plan_state or before
            removed |= {entry.path for entry in before.data} - {entry.path for entry in after.data}
            indexes = (DeleteIndex(state, metadata.unpartitioned_specs) for state in (plan_state, before, after))
            for left in left_behind(*indexes, removed, last=number == len(own), whole_table=whole_table):
                if left.finding:
                    problems.append(f"{left.entry.label} {left.why}")
                else:
                    allowed[left.entry.path] += 1
        findings += [f"snapshot {snapshot_id}: {problem}" for problem in problems]
    return Verdict(tuple(findings), allowed.total())


def check_snapshot(metadata: TableMetadata, after: SnapshotState, before: SnapshotState | None) -> Iterator[str]:
    """All checks of one snapshot, in the order of the module's docstring."""
    yield from vector_problems(after)
