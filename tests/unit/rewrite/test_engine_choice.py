"""Which engine rewrites a file group, by metadata alone, and the row check of what it has written."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform

from compactor.errors import InputError
from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.iceberg.tables import FileSizes, TableView
from compactor.manifests.live_files import LiveFile
from compactor.partitions import PartitionKey
from compactor.planning.engine import Engine, EngineChoice, choose_engine, impossible
from compactor.planning.plan_table import PlannedGroup, TablePlan
from compactor.planning.planner import FileGroup
from compactor.rewrite.tasks.runner import WrittenOutput
from compactor.runs.results import checked_result
from compactor.settings.policy import PolicyValues
from compactor.table_names import TableName
from tests.unit.failing import fails
from tests.unit.rewrite.output_task_files import SCHEMA

# --- which engine, by metadata alone ----------------------------------------------------------------------------------

KEY = PartitionKey(0, "[1]")
NAME = TableName("lake", ("db",), "t")


def entry(content: Content = Content.DATA, path: str = "file", **more: Any) -> FileEntry:
    values = {
        "manifest_path": "manifest", "status": Status.ADDED, "snapshot_id": 1, "data_sequence_number": 1,
        "content": content, "path": path, "file_format": "parquet", "key": KEY, "partition": (1,), "records": 10,
        "size": 100, "sort_order_id": None, "encrypted": False, "equality_ids": (), "applies_to": None,
    }  # fmt: skip
    return FileEntry(**{**values, **more})


def table_of(version: int = 2, *, ordered: bool = False, source_id: int = 1) -> TableView:
    order = SortOrder(SortField(2, IdentityTransform())) if ordered else UNSORTED_SORT_ORDER
    by = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))
    metadata = new_table_metadata(SCHEMA, by, order, "file:///table", {"format-version": str(version)})
    specs = [PartitionSpec(PartitionField(source_id, 1000, IdentityTransform(), "id"))]
    head = Snapshot(
        snapshot_id=1, sequence_number=1, timestamp_ms=1, manifest_list="list", summary=Summary(Operation.APPEND),
        first_row_id=0 if version == 3 else None,
    )  # fmt: skip
    changes = {"snapshots": [head], "current_snapshot_id": 1, "partition_specs": specs}
    return TableView(NAME, metadata.model_copy(update=changes), "", Any)  # type: ignore[arg-type]


BY_POSITION = entry(Content.POSITION_DELETES, "deletes")
BY_VALUE = entry(Content.EQUALITY_DELETES, "deletes", equality_ids=(1,))
VECTOR = BY_POSITION._replace(file_format="puffin", applies_to=entry().path, data_sequence_number=2)
CHOICES: dict[str, tuple[FileEntry, tuple[FileEntry, ...], Engine, str]] = {
    "plain": (entry(), (), Engine.SPLICE, "row_groups_copied"),
    "orc": (entry(file_format="orc"), (), Engine.SPARK, "file_format"),
    "encrypted": (entry(encrypted=True), (), Engine.SPARK, "encrypted"),
    "position deletes": (entry(), (BY_POSITION,), Engine.ENCODE, "position_deletes"),
    "position deletes in Avro": (
        entry(), (BY_POSITION._replace(file_format="avro"),), Engine.SPARK, "delete_file_format",
    ),
    "encrypted deletes": (entry(), (BY_POSITION._replace(encrypted=True),), Engine.SPARK, "delete_file_format"),
    "equality deletes": (entry(), (BY_VALUE,), Engine.ENCODE, "equality_deletes"),
    "equality deletes of a nested field": (
        entry(), (BY_VALUE._replace(equality_ids=(1, 9)),), Engine.SPARK, "equality_deletes",
    ),
    "equality deletes in Avro": (entry(), (BY_VALUE._replace(file_format="avro"),), Engine.SPARK, "delete_file_format"),
    "deletion vectors": (entry(), (VECTOR,), Engine.ENCODE, "deletion_vectors"),
    "NaN": (entry(key=PartitionKey(0, "[NaN]")), (), Engine.SPARK, "partition_value"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHOICES)
def test_the_engine_follows_from_what_manifests_say(kind: str) -> None:
    file, deletes, engine, reason = CHOICES[kind]
    group = (LiveFile(entry(path="other")), LiveFile(file, deletes))
    table = table_of()
    choice = choose_engine(table, file.key, group)
    assert (choice.kind, choice.reason) == (engine, reason)
    assert impossible(table, file.key, group) is None or "nested" in kind
    assert choose_engine(table, file.key, group, "spark").reason == "requested"
    if engine is Engine.SPARK:
        for cheaper in ("splice", "encode"):
            with pytest.raises(InputError) as raised:
                choose_engine(table, file.key, group, cheaper)
            assert raised.value.reason == reason


@pytest.mark.parametrize("kind", ["position deletes", "deletion vectors"])
def test_few_deletes_are_carried_if_the_policy_allows(kind: str) -> None:
    file, (delete,), _, _ = CHOICES[kind]
    group = (LiveFile(entry(path="other", records=90)), LiveFile(file, (delete._replace(records=5),)))
    for most, engine in ((0.05, Engine.SPLICE), (0.049, Engine.ENCODE)):
        choice = choose_engine(table_of(), file.key, group, most_carried=most)
        assert choice.kind is engine
        assert (choice.reason == "deletes_carried") == (engine is Engine.SPLICE)
    assert choose_engine(table_of(), file.key, group, "splice", most_carried=0.05).reason == "deletes_carried"


def test_each_vector_of_a_shared_puffin_file_counts() -> None:
    vectors = [VECTOR._replace(applies_to=f"file {number}", blob=(number, 1), records=5) for number in range(2)]
    group = [LiveFile(entry(path=f"file {number}", records=50), (vectors[number],)) for number in range(2)]
    assert choose_engine(table_of(), KEY, group, most_carried=0.1).reason == "deletes_carried"
    assert choose_engine(table_of(), KEY, group, most_carried=0.09).reason == "deletion_vectors"


def test_few_deleted_keys_are_carried() -> None:
    """A key counts as one row: how many rows it deletes is known once the key columns are read."""
    group = (LiveFile(entry(records=1000), (BY_VALUE._replace(records=10),)),)
    assert choose_engine(table_of(), KEY, group, most_carried=0.01).reason == "deletes_carried"
    assert choose_engine(table_of(), KEY, group, "splice", most_carried=0.01).reason == "deletes_carried"
    assert choose_engine(table_of(), KEY, group, most_carried=0.009).reason == "equality_deletes"
    with pytest.raises(InputError, match="equality"):
        choose_engine(table_of(), KEY, group, "splice", most_carried=0.009)


def test_a_table_with_a_sort_order_is_sorted_anew_not_copied() -> None:
    choice = choose_engine(table_of(ordered=True), KEY, (LiveFile(entry()),))
    assert (choice.kind, choice.reason) == (Engine.SPARK, "sorted")
    with pytest.raises(InputError):
        choose_engine(table_of(ordered=True), KEY, (LiveFile(entry()),), "splice")


def test_a_file_whose_row_ids_are_unknown_is_not_copied() -> None:
    known, unknown = LiveFile(entry(first_row_id=0)), LiveFile(entry())
    assert choose_engine(table_of(3), KEY, (known,)).reason == "row_groups_copied"
    assert choose_engine(table_of(3), KEY, (known, unknown)).reason == "row_lineage"


def test_nobody_rewrites_files_whose_deletes_or_partitions_lost_their_column() -> None:
    assert impossible(table_of(), KEY, (LiveFile(entry(), (BY_VALUE,)),)) is None
    gone = BY_VALUE._replace(equality_ids=(1, 9))
    nothing = BY_VALUE._replace(equality_ids=())
    assert "names no column" in (impossible(table_of(), KEY, (LiveFile(entry(), (nothing,)),)) or "")
    assert "column 9" in (impossible(table_of(), KEY, (LiveFile(entry()), LiveFile(entry(), (gone,)))) or "")
    assert "lost its column" in (impossible(table_of(source_id=9), KEY, (LiveFile(entry()),)) or "")


# --- the row check ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deleted", "written", "sound"),
    [((0, 0), (10, 20), True), ((3, 4), (7, 16), True), ((0, 0), (10, 19), False), ((1, 0), (10, 20), False)],
)
def test_a_group_is_sound_when_three_separate_counts_add_up(
    deleted: tuple[int, ...], written: tuple[int, ...], sound: bool
) -> None:
    choice = EngineChoice(Engine.ENCODE, "requested", "")
    shares = ((LiveFile(entry()),), (LiveFile(entry(path="b")), LiveFile(entry(path="c"))))
    planned = PlannedGroup(FileGroup(KEY, {}, None, shares, "due"), choice)
    parts = [
        WrittenOutput(choice, None, (object(),), 1, 1, 1, gone, rows, 1.0, 1)
        for gone, rows in zip(deleted, written, strict=True)
    ]
    plan = TablePlan(table_of(), 1, (planned,), {}, PolicyValues(), FileSizes(100, 75), "auto")
    if sound:
        assert checked_result("run", plan, planned, parts).rewritten.rows_out == sum(written)
        return
    with fails("row_count_mismatch"):
        checked_result("run", plan, planned, parts)
