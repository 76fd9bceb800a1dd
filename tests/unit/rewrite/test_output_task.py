"""Which engine writes an output task, what it copies and what it decodes, and the row check at the end."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from compactor.errors import GiveUpError, InputError, RetryError
from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.iceberg.tables import FileSizes, TableView
from compactor.manifests.live_files import LiveFile
from compactor.partitions import PartitionKey
from compactor.planning.engine import Engine, EngineChoice, choose_engine, impossible
from compactor.planning.plan_table import PlannedGroup, TablePlan
from compactor.planning.planner import FileGroup
from compactor.reasons import Refusal
from compactor.rewrite.deletes.equality_deletes import EncodeInput, EqualityDelete
from compactor.rewrite.deletes.position_deletes import DeleteFile
from compactor.rewrite.deletes.row_maps import unpacked
from compactor.rewrite.encode.encode import EncodeTask, encode
from compactor.rewrite.encode.writer import EncodedFile
from compactor.rewrite.parquet import footer as parquet_footer
from compactor.rewrite.splice.checks import SpliceLimits
from compactor.rewrite.splice.lineage_chunks import RowLineage
from compactor.rewrite.splice.splice import SplicedFile, SpliceInput
from compactor.rewrite.tasks import output_task
from compactor.rewrite.tasks.output_task import (
    MixedFile,
    SpliceTask,
    TaskInput,
    TaskResult,
    attempt_task,
    foreseen,
    run_task,
)
from compactor.rewrite.tasks.runner import WrittenOutput
from compactor.runs.results import checked_result
from compactor.settings.policy import PolicyValues
from compactor.table_names import TableName

SCHEMA = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "s", StringType(), required=False))
ARROW = pa.schema(
    [
        pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"}),
        pa.field("s", pa.string(), metadata={b"PARQUET:field_id": b"2"}),
    ]
)
DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), False, metadata={b"PARQUET:field_id": b"2147483546"}),
        pa.field("pos", pa.int64(), False, metadata={b"PARQUET:field_id": b"2147483545"}),
    ]
)
LARGE = 4000  # rows of a file that is worth keeping
LIMITS = SpliceLimits(min_row_group_bytes=8000, min_chunk_bytes=0, max_footer_fraction=10)


class Files:
    """Inputs of one output task, in arrival order."""

    def __init__(self, folder: Path, *, lineage: bool = False) -> None:
        self.folder = folder
        self.lineage = lineage
        self.most_carried = 0.0
        self.inputs: list[EncodeInput] = []
        self.rows: list[int] = []

    def add(self, rows: int, *, encoded: bool = False, first_row_id: int | None = None) -> EncodeInput:
        first, number = len(self.rows), len(self.inputs)
        self.rows += range(first, first + rows)
        path = self.folder / f"{number}.parquet"
        ids = list(range(first, first + rows))
        table = pa.table({"id": ids, "s": [f"text {value * 7919}" for value in ids]}, schema=ARROW)
        pq.write_table(table, path, compression="none", use_dictionary=False)
        made = EncodeInput(f"file://{path}", path.stat().st_size, rows, number + 1, first_row_id)
        if encoded:
            task = self.encode([made], f"file://{self.folder}/{number}-encoded.parquet")
            written = encode(task)
            assert isinstance(written, EncodedFile)
            made = replace(made, location=task.output, size=written.size)
        self.inputs.append(made)
        return made

    def delete(self, number: int, positions: list[int]) -> None:
        path = self.folder / f"{number}-deletes.parquet"
        location = self.inputs[number].location
        pq.write_table(pa.table({"file_path": [location] * len(positions), "pos": positions}, schema=DELETES), path)
        before = sum(each.records for each in self.inputs[:number])
        for position in positions:
            self.rows.remove(before + position)
        self.inputs[number] = replace(
            self.inputs[number], position_deletes=(DeleteFile(f"file://{path}", path.stat().st_size),)
        )

    def encode(self, inputs: list[EncodeInput], output: str) -> EncodeTask:
        return EncodeTask(
            tuple(inputs),
            output,
            SCHEMA.model_dump_json(),
            properties=(("write.parquet.compression-codec", "uncompressed"),),
            format_version=3 if self.lineage else 2,
            keep_row_lineage=self.lineage,
        )

    def work(self) -> TaskInput:
        output = f"file://{self.folder}/output.parquet"
        splice = SpliceTask(
            tuple(
                SpliceInput(
                    each.location,
                    each.size,
                    RowLineage(each.first_row_id, each.data_sequence_number) if self.lineage else None,
                )
                for each in self.inputs
            ),
            tuple(self.inputs),
            output,
            self.most_carried,
            LIMITS,
            (),
        )
        return TaskInput(splice, self.encode(self.inputs, output), f"file://{self.folder}/aside.parquet")

    def write(self) -> TaskResult:
        written = run_task(self.work())
        assert isinstance(written, TaskResult)
        assert not (self.folder / "aside.parquet").exists()
        return written

    @property
    def output(self) -> pa.Table:
        return pq.ParquetFile(self.folder / "output.parquet").read()


def test_only_what_no_encode_has_made_is_decoded(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.add(LARGE, encoded=True)
    files.add(LARGE, encoded=True)
    tiny = [files.add(100) for _ in range(5)]
    written = files.write()
    assert isinstance(written.file, MixedFile)
    assert written.file.kept == (0, 1)
    assert written.decoded_bytes == sum(each.size for each in tiny)
    assert written.not_spliced is not None
    assert files.output["id"].to_pylist() == files.rows
    assert pq.ParquetFile(tmp_path / "output.parquet").num_row_groups == 3
    assert written.file.spliced.rows == len(files.rows)


def test_a_file_with_deletes_is_decoded_and_its_neighbours_are_copied(tmp_path: Path) -> None:
    files = Files(tmp_path)
    for _ in range(3):
        files.add(LARGE, encoded=True)
    files.delete(1, [0, 7, LARGE - 1])
    written = files.write()
    assert isinstance(written.file, MixedFile)
    assert written.file.kept == (0, 2)
    assert written.file.encoded.rows_deleted == 3
    assert written.decoded_bytes == files.inputs[1].size
    assert written.not_spliced is None
    assert files.output["id"].to_pylist() == files.rows


def places(written: TaskResult) -> list[tuple[str, int]]:
    """Where each row of the output comes from: its input and the position there, as the map says."""
    found: dict[int, tuple[str, int]] = {}
    for each in written.inputs:
        for position in range(each.rows):
            found |= {int(at): (each.location, position) for at in each.moved(np.array([position]))}
    return [found[at] for at in range(len(found))]


def rows_by_place(files: Files) -> dict[tuple[str, int], int]:
    """The id of each row, also of deleted ones."""
    first = accumulate((each.records for each in files.inputs), initial=0)
    return {
        (each.location, position): start + position
        for start, each in zip(first, files.inputs, strict=False)
        for position in range(each.records)
    }


def test_few_deleted_rows_are_copied_and_their_places_are_known(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.most_carried = 0.01
    for _ in range(3):
        files.add(LARGE)
    files.delete(1, [0, 7, LARGE - 1])
    written = files.write()
    assert isinstance(written.file, SplicedFile)
    assert (written.decoded_bytes, written.not_spliced) == (0, None)
    ids = rows_by_place(files)
    assert [ids[place] for place in places(written)] == files.output["id"].to_pylist() == list(range(3 * LARGE))
    assert [list(unpacked(each.carried)) for each in written.inputs] == [[], [0, 7, LARGE - 1], []]


def test_many_deleted_rows_are_left_out_and_the_places_of_the_others_are_known(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.most_carried = 0.01
    for _ in range(3):
        files.add(LARGE)
    files.delete(1, list(range(200)))
    written = files.write()
    assert isinstance(written.file, EncodedFile)
    assert written.not_spliced is not None
    assert written.not_spliced.reason == "too_many_deletes"
    ids = rows_by_place(files)
    assert [ids[place] for place in places(written)] == files.output["id"].to_pylist() == files.rows
    assert not any(each.carried for each in written.inputs)


def test_a_kept_file_carries_few_deletes_while_others_are_decoded(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.most_carried = 0.01
    files.add(LARGE, encoded=True)
    files.add(100)
    files.add(LARGE, encoded=True)
    files.add(LARGE, encoded=True)
    files.delete(2, [3])
    files.delete(3, list(range(0, LARGE, 2)))
    before = len(files.rows)
    written = files.write()
    assert isinstance(written.file, MixedFile)
    assert written.file.kept == (0, 2)
    output = files.output["id"].to_pylist()
    ids = rows_by_place(files)
    assert [ids[place] for place in places(written)] == output
    assert len(output) == before + 1
    assert set(output) - set(files.rows) == {LARGE + 100 + 3}


@pytest.mark.parametrize("most_carried", [0.0, 0.5])
def test_no_delete_is_carried_where_none_may_be(tmp_path: Path, most_carried: float) -> None:
    """Equality deletes are never carried: the output would keep rows that only the plan knew to be deleted."""
    files = Files(tmp_path)
    files.most_carried = most_carried
    files.add(LARGE)
    files.add(LARGE)
    if most_carried:
        path = tmp_path / "by-value.parquet"
        pq.write_table(pa.table({"id": [5]}, schema=pa.schema([ARROW.field("id")])), path)
        delete = EqualityDelete(f"file://{path}", path.stat().st_size, 9, (1,))
        files.inputs = [replace(each, equality_deletes=(delete,)) for each in files.inputs]
        files.rows.remove(5)
    else:
        files.delete(0, [5])
    written = files.write()
    assert isinstance(written.file, EncodedFile)
    assert files.output["id"].to_pylist() == files.rows
    first = written.inputs[0]
    assert (list(unpacked(first.by_value)), list(unpacked(first.by_position))) == (
        ([5], []) if most_carried else ([], [5])
    )


def test_a_file_that_loses_every_row_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.add(LARGE, encoded=True)
    files.add(100, encoded=True)
    files.delete(1, list(range(100)))
    written = files.write()
    assert isinstance(written.file, MixedFile)
    assert written.file.encoded.rows == 0
    assert files.output["id"].to_pylist() == files.rows


def test_everything_is_decoded_where_nothing_is_worth_keeping(tmp_path: Path) -> None:
    files = Files(tmp_path)
    for _ in range(4):
        files.add(100)
    written = files.write()
    assert isinstance(written.file, EncodedFile)
    assert written.decoded_bytes == sum(each.size for each in files.inputs)
    assert files.output["id"].to_pylist() == files.rows


def test_everything_is_decoded_once_where_the_parts_would_not_fit_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kept file has an older schema than `encode` writes: a column was added later."""
    files = Files(tmp_path)
    files.add(LARGE, encoded=True)
    files.add(100)
    wider = Schema(*SCHEMA.fields, NestedField(3, "n", LongType(), required=False))
    work = files.work()
    assert work.encode is not None
    encoded: list[EncodeTask] = []
    monkeypatch.setattr(output_task, "encode", lambda task: (encoded.append(task), encode(task))[1])
    written = run_task(replace(work, encode=replace(work.encode, schema_json=wider.model_dump_json())))
    assert [len(task.inputs) for task in encoded] == [2]
    assert isinstance(written, TaskResult)
    assert isinstance(written.file, EncodedFile)
    assert not (tmp_path / "aside.parquet").exists()
    assert files.output["id"].to_pylist() == files.rows
    assert files.output["n"].null_count == len(files.rows)


def test_files_of_one_kind_are_spliced_whole(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.add(LARGE)
    files.add(LARGE)
    written = files.write()
    assert isinstance(written.file, SplicedFile)
    assert (written.decoded_bytes, written.not_spliced) == (0, None)
    assert foreseen(replace(files.work(), splice=files.work().splice)) == (None, None)


def test_files_without_rows_leave_no_output(tmp_path: Path) -> None:
    """Such an output is never committed, so no one would delete it."""
    files = Files(tmp_path)
    files.add(0)
    files.add(0)
    work = files.work()
    assert work.splice is not None
    for tried in (replace(work, splice=replace(work.splice, limits=SpliceLimits(0, 0))), replace(work, splice=None)):
        written = run_task(tried)
        assert isinstance(written, TaskResult)
        assert isinstance(written.file, SplicedFile if tried.splice else EncodedFile)
        assert not (tmp_path / "output.parquet").exists()


def test_a_footer_that_is_too_large_to_splice_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A footer that only our own reader refuses does not fail the file group."""
    files = Files(tmp_path)
    files.add(LARGE)
    files.add(LARGE)
    monkeypatch.setattr(parquet_footer, "MAX_FOOTER_BYTES", 10)
    written = run_task(replace(files.work(), aside=None))
    assert isinstance(written, TaskResult)
    assert isinstance(written.file, EncodedFile)
    assert written.not_spliced is not None
    assert written.not_spliced.reason == "footer_too_large"


def test_an_output_of_an_attempt_that_was_taken_for_lost_is_tried_again_elsewhere(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.add(LARGE)
    files.add(LARGE)
    (tmp_path / "output.parquet").write_bytes(b"half of it")
    for work in (files.work(), replace(files.work(), splice=None, aside=None)):
        outcome = attempt_task(run_task, work).outcome
        assert isinstance(outcome, RetryError)
        assert outcome.reason == "task_lost"
    assert (tmp_path / "output.parquet").read_bytes() == b"half of it"


@pytest.mark.parametrize("ids", [True, False])
def test_row_lineage_goes_through_both_parts(tmp_path: Path, ids: bool) -> None:
    files = Files(tmp_path, lineage=True)
    files.add(LARGE, encoded=True, first_row_id=1000 if ids else None)
    for number in range(3):
        files.add(100, first_row_id=50_000 + 200 * number if ids else None)
    written = files.write()
    assert isinstance(written.file, MixedFile)
    table = files.output
    assert table["id"].to_pylist() == files.rows
    expected = [*range(1000, 1000 + LARGE), *(50_000 + 200 * n + row for n in range(3) for row in range(100))]
    numbers = [1] * LARGE + [2] * 100 + [3] * 100 + [4] * 100
    if ids:
        assert table["_row_id"].to_pylist() == expected
        assert table["_last_updated_sequence_number"].to_pylist() == numbers
    else:
        assert table["_row_id"].null_count == table["_last_updated_sequence_number"].null_count == len(files.rows)


def test_files_with_and_without_row_ids_are_not_mixed_up(tmp_path: Path) -> None:
    files = Files(tmp_path, lineage=True)
    files.add(LARGE, encoded=True, first_row_id=1000)
    files.add(100, first_row_id=50_000)
    files.add(100, first_row_id=None)
    written = files.write()
    assert isinstance(written.file, EncodedFile)
    ids = files.output["_row_id"].to_pylist()
    assert ids[LARGE : LARGE + 100] == list(range(50_000, 50_100))
    assert ids[LARGE + 100 :] == [None] * 100


def test_an_engine_that_was_asked_for_is_the_only_one(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.add(LARGE, encoded=True)
    files.add(100)
    work = files.work()
    refused = run_task(replace(work, encode=None))
    assert isinstance(refused, Refusal)
    written = run_task(replace(work, splice=None, aside=None))
    assert isinstance(written, TaskResult)
    assert isinstance(written.file, EncodedFile)


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


def test_equality_deletes_are_never_carried() -> None:
    group = (LiveFile(entry(records=1000), (BY_VALUE._replace(records=1),)),)
    assert choose_engine(table_of(), KEY, group, most_carried=1.0).reason == "equality_deletes"


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
    plan = TablePlan(table_of(), 1, (planned,), {}, PolicyValues(), FileSizes(100, 75), "auto", 0.0)
    if sound:
        assert checked_result("run", plan, planned, parts).rewritten.rows_out == sum(written)
        return
    with pytest.raises(GiveUpError) as raised:
        checked_result("run", plan, planned, parts)
    assert raised.value.reason == "row_count_mismatch"
