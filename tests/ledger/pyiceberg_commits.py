"""What PyIceberg's writers do to a table. Each function is one commit, or none if there is nothing to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import RemoveSnapshotRefUpdate
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import LongType, StringType

from tests.ledger.files import data_file, equality_deletes, position_deletes, rows
from tests.ledger.raw_commit import MAIN, commit
from tests.ledger.tables import TARGET

SIDE = "side"
MAY_DELETE_FROM = 2  # format version
STAGED = "wap.id"
PART_ID = 2  # field id of the column `p`, which has one value in each file


# --- rows -------------------------------------------------------------------------------------------------------------


def takes_rows(table: Table) -> bool:
    """PyIceberg itself writes rows for identity partitions only (others need its Rust core)."""
    return all(isinstance(field.transform, IdentityTransform) for field in table.spec().fields)


def is_readable(table: Table) -> bool:
    """Whether PyIceberg can scan the table: it reads no equality deletes."""
    return not any(entry.data_file.content == DataFileContent.EQUALITY_DELETES for entry in live(table))


def is_rewritable(table: Table) -> bool:
    """Whether PyIceberg can write some of the table's rows again."""
    return takes_rows(table) and is_readable(table)


def may_delete(table: Table) -> bool:
    """Whether delete files may be written that PyIceberg can write."""
    return bool(table.format_version == MAY_DELETE_FROM)


def append(table: Table, part: str, counts: Sequence[int], branch: str = MAIN) -> None:
    """Files of these row counts, with a manifest of their own."""
    files = [(data_file(table, part, count), None) for count in counts]
    commit(table, Operation.APPEND, files, branch=branch)


def append_rows(table: Table, part: str, count: int) -> None:
    """By PyIceberg's own append, which merges manifests if the table says so."""
    table.append(rows(table, part, count))


def overwrite(table: Table, part: str, count: int, where: str | None) -> None:
    """All rows (None), or those that match."""
    if where is None:
        table.overwrite(rows(table, part, count))
    else:
        table.overwrite(rows(table, part, count), overwrite_filter=where)


def overwrite_partition(table: Table, part: str, count: int) -> None:
    table.dynamic_partition_overwrite(rows(table, part, count))


def delete(table: Table, where: str) -> None:
    """Whole files by their metadata, others are written again."""
    table.delete(where)


# --- files ------------------------------------------------------------------------------------------------------------


def live(table: Table, snapshot: Snapshot | None = None) -> list[ManifestEntry]:
    """The live entries of a snapshot, by default the head of main, in a fixed order."""
    chosen = snapshot or table.current_snapshot()
    manifests = [] if chosen is None else chosen.manifests(table.io)
    entries = [entry for manifest in manifests for entry in _entries(table, manifest)]
    return sorted(entries, key=lambda entry: (entry.sequence_number or 0, entry.data_file.record_count))


def _entries(table: Table, manifest: Any) -> list[ManifestEntry]:
    found: list[ManifestEntry] = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    for entry in found:
        entry.data_file.spec_id = manifest.partition_spec_id
    return found


def _data(entries: Sequence[ManifestEntry]) -> list[ManifestEntry]:
    return [entry for entry in entries if entry.data_file.content == DataFileContent.DATA]


def _deletes(entries: Sequence[ManifestEntry]) -> list[ManifestEntry]:
    return [entry for entry in entries if entry.data_file.content != DataFileContent.DATA]


def delete_positions(table: Table, which: int, beside: bool) -> None:
    """A row delta that deletes the first row of a data file; `beside`: it also removes an earlier delete file."""
    entries = live(table)
    files, earlier = _data(entries), _deletes(entries)
    if not files:
        return
    chosen = files[which % len(files)].data_file
    removed = [earlier[which % len(earlier)].data_file.file_path] if beside and earlier else []
    commit(table, Operation.OVERWRITE, [(position_deletes(table, chosen, [0]), None)], removed)


def delete_equal(table: Table, part: str, count: int, also: Sequence[int]) -> None:
    """A row delta of equality deletes, with new data files beside them, as an upsert writes them."""
    files: list[tuple[DataFile, int | None]] = [(equality_deletes(table, part, count), None)]
    files += [(data_file(table, part, number), None) for number in also]
    commit(table, Operation.OVERWRITE, files)


def remove_deletes(table: Table, which: int) -> None:
    """A rewrite that has applied some delete files: they leave. Without any, one is written before."""
    earlier = _deletes(live(table))
    if not earlier:
        delete_positions(table, which, beside=False)
        earlier = _deletes(live(table.refresh()))
    chosen = {entry.data_file.file_path for entry in earlier[which % max(1, len(earlier)) :]}
    if chosen:
        commit(table, Operation.REPLACE, (), chosen)


def replace(table: Table, count: int) -> None:
    """Another compactor: all files of one partition of the default spec become one, with their sequence number."""
    mine = [entry for entry in _data(live(table)) if entry.data_file.spec_id == table.spec().spec_id]
    by_partition: dict[str, list[ManifestEntry]] = {}
    for entry in mine:
        by_partition.setdefault(repr(entry.data_file.partition), []).append(entry)
    most = max(by_partition.values(), key=len, default=[])
    if not most:
        return
    first = (most[0].data_file.lower_bounds or {}).get(PART_ID, b"a")
    merged = data_file(table, first.decode(), count)
    merged = DataFile.from_args(**{**_arguments(merged), "partition": most[0].data_file.partition})
    merged.spec_id = table.spec().spec_id
    planned_at = max(entry.sequence_number or 0 for entry in most)
    sequence_number = planned_at if table.format_version >= MAY_DELETE_FROM else None
    commit(table, Operation.REPLACE, [(merged, sequence_number)], [entry.data_file.file_path for entry in most])


def _arguments(file: DataFile) -> dict[str, Any]:
    names = ("content", "file_path", "file_format", "record_count", "file_size_in_bytes")
    return {name: getattr(file, name) for name in names}


def merge_manifests(table: Table) -> None:
    if table.current_snapshot() is not None:
        commit(table, Operation.REPLACE, merge=True)


# --- snapshots and branches -------------------------------------------------------------------------------------------


def move_main(table: Table, which: int) -> None:
    """To any snapshot that is listed: a rollback, or the publication of a branch or of a staged snapshot."""
    ids = [snapshot.snapshot_id for snapshot in table.snapshots()]
    if ids:
        table.manage_snapshots().set_current_snapshot(ids[which % len(ids)]).commit()


def roll_back(table: Table, steps: int) -> None:
    """To an ancestor."""
    current = table.current_snapshot()
    for _ in range(steps):
        parent = None if current is None or current.parent_snapshot_id is None else current.parent_snapshot_id
        current = current if parent is None else table.snapshot_by_id(parent) or current
    if current is not None:
        table.manage_snapshots().rollback_to_snapshot(current.snapshot_id).commit()


def stage(table: Table, part: str, counts: Sequence[int]) -> None:
    """Write, audit, publish: a snapshot that no branch names."""
    files = [(data_file(table, part, count), None) for count in counts]
    commit(table, Operation.APPEND, files, branch=None, properties={STAGED: "1"})


def cherry_pick(table: Table) -> None:
    """Publish the newest staged snapshot as Java does: by its own id if main has not moved, else by a new snapshot."""
    staged = [each for each in table.snapshots() if each.summary and STAGED in each.summary.additional_properties]
    if not staged:
        return
    chosen, current = staged[-1], table.current_snapshot()
    if current is not None and current.snapshot_id == chosen.parent_snapshot_id:
        table.manage_snapshots().set_current_snapshot(chosen.snapshot_id).commit()
        return
    there = {entry.data_file.file_path for entry in live(table)}
    entries = [entry for entry in live(table, chosen) if entry.snapshot_id == chosen.snapshot_id]
    files = [(entry.data_file, None) for entry in entries if entry.data_file.file_path not in there]
    if files:
        commit(table, Operation.APPEND, files, properties={"source-snapshot-id": str(chosen.snapshot_id)})


def expire(table: Table, keep: int) -> None:
    """All snapshots but the newest `keep` and the heads of branches."""
    heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
    old = [each.snapshot_id for each in table.snapshots() if each.snapshot_id not in heads]
    gone = old[: len(old) - keep] if keep else old
    if gone:
        table.maintenance.expire_snapshots().by_ids(gone).commit()


def commit_to_branch(table: Table, part: str, counts: Sequence[int]) -> None:
    head = table.current_snapshot()
    if head is None:
        return
    if SIDE not in table.metadata.refs:
        table.manage_snapshots().create_branch(head.snapshot_id, SIDE).commit()
        table.refresh()
    append(table, part, counts, branch=SIDE)


def publish_branch(table: Table) -> None:
    if SIDE in table.metadata.refs:
        table.manage_snapshots().set_current_snapshot(ref_name=SIDE).commit()


def drop_branch(table: Table) -> None:
    if SIDE in table.metadata.refs:
        table.manage_snapshots().remove_branch(SIDE).commit()


def remove_main(table: Table) -> None:
    """What `REPLACE TABLE` does: the same table without a current snapshot."""
    if table.current_snapshot() is not None:
        with table.transaction() as transaction:
            transaction._apply((RemoveSnapshotRefUpdate(ref_name=MAIN),), ())


# --- metadata ---------------------------------------------------------------------------------------------------------


def change_spec(table: Table, name: str) -> None:
    """Add the field, or remove it if it is there; files keep the spec that they were written with."""
    fields = {field.name: field for field in table.spec().fields}
    columns = {field.field_id: field.name for field in table.schema().fields}
    column = columns.get({"p": 2, "day": 3, "k": 4, "day_day": 3, "k_bucket": 4}[name])
    there = name in fields and str(fields[name].transform) != "void"
    with table.update_spec() as update:
        if there:
            update.remove_field(name)
        elif column is not None and name not in fields:
            transform = {"day_day": DayTransform(), "k_bucket": BucketTransform(2)}.get(name, IdentityTransform())
            update.add_field(column, transform, name)


def change_schema(table: Table, what: str) -> None:
    """Add or drop a column, widen `k`, rename `day`, or drop `k` if no partition of today's spec needs it."""
    names = {field.field_id: field.name for field in table.schema().fields}
    sources = {field.source_id for field in table.spec().fields if str(field.transform) != "void"}
    ids = {name: field_id for field_id, name in names.items()}
    fields = (field for spec in table.specs().values() for field in spec.fields)
    if any(ids.get(field.name, field.source_id) != field.source_id for field in fields):
        return  # a table was replaced by one whose column has the name of a partition field: PyIceberg refuses
    with table.update_schema(allow_incompatible_changes=False) as update:
        if what == "note" and "note" in names.values():
            update.delete_column("note")
        elif what == "note":
            update.add_column("note", StringType())
        elif what == "widen" and 4 in names:
            update.update_column(names[4], LongType())
        elif what == "rename" and 3 in names:
            update.rename_column(names[3], "day" if names[3] == "date" else "date")
        elif what == "drop" and 4 in names and 4 not in sources:
            update.delete_column(names[4])


def set_target(table: Table, size: int) -> None:
    _set(table, {TARGET: str(size)})


def set_policy(table: Table, fewest: str, enabled: str) -> None:
    _set(table, {"firnline.policy.min_input_files": fewest, "firnline.enabled": enabled})


def let_appends_merge(table: Table, merge: bool) -> None:
    _set(table, {"commit.manifest-merge.enabled": str(merge).lower(), "commit.manifest.min-count-to-merge": "2"})


def _set(table: Table, properties: dict[str, str]) -> None:
    with table.transaction() as transaction:
        transaction.set_properties(properties)


def upgrade(table: Table) -> None:
    if table.format_version == 1:
        with table.transaction() as transaction:
            transaction.upgrade_table_version(2)
