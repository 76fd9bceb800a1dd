"""What an output task copies and what it decodes, and where each row of its inputs is afterwards."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from compactor.errors import GiveUpError, RetryError
from compactor.reasons import Refusal
from compactor.rewrite.deletes.row_maps import unpacked
from compactor.rewrite.encode.encode import EncodeTask, encode
from compactor.rewrite.encode.writer import EncodedFile
from compactor.rewrite.parquet import footer as parquet_footer
from compactor.rewrite.parquet.footer import FileField
from compactor.rewrite.parquet.thrift import I64
from compactor.rewrite.splice.checks import SpliceLimits
from compactor.rewrite.splice.splice import SplicedFile
from compactor.rewrite.tasks import output_task
from compactor.rewrite.tasks.output_task import MixedFile, TaskInput, TaskResult, attempt_task, foreseen, run_task
from tests.unit.failing import fails, reason_of
from tests.unit.rewrite.output_task_files import LARGE, SCHEMA, Files
from tests.unit.rewrite.splice_files import footer_of, write_footer


def test_only_what_no_encode_has_made_is_decoded(tmp_path: Path) -> None:
    files = Files(tmp_path, 2, encoded=True)
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
    files = Files(tmp_path, 3, encoded=True)
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
    files = Files(tmp_path, 3, most_carried=0.01)
    files.delete(1, [0, 7, LARGE - 1])
    written = files.write()
    assert isinstance(written.file, SplicedFile)
    assert (written.decoded_bytes, written.not_spliced) == (0, None)
    ids = rows_by_place(files)
    assert [ids[place] for place in places(written)] == files.output["id"].to_pylist() == list(range(3 * LARGE))
    assert [list(unpacked(each.carried)) for each in written.inputs] == [[], [0, 7, LARGE - 1], []]


def test_many_deleted_rows_are_left_out_and_the_places_of_the_others_are_known(tmp_path: Path) -> None:
    files = Files(tmp_path, 3, most_carried=0.01)
    files.delete(1, list(range(200)))
    written = files.write()
    assert isinstance(written.file, EncodedFile)
    assert reason_of(written.not_spliced) == "too_many_deletes"
    ids = rows_by_place(files)
    assert [ids[place] for place in places(written)] == files.output["id"].to_pylist() == files.rows
    assert not any(each.carried for each in written.inputs)


def test_a_kept_file_carries_few_deletes_while_others_are_decoded(tmp_path: Path) -> None:
    files = Files(tmp_path, 1, encoded=True, most_carried=0.01)
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


def test_few_rows_that_equality_deletes_delete_are_copied(tmp_path: Path) -> None:
    files = Files(tmp_path, 3, most_carried=0.01)
    files.delete(1, [0, 7])
    files.delete_ids([5, LARGE + 7, 2 * LARGE, 10**6])
    written = files.write()
    assert isinstance(written.file, SplicedFile)
    ids = rows_by_place(files)
    assert [ids[place] for place in places(written)] == files.output["id"].to_pylist() == list(range(3 * LARGE))
    assert [list(unpacked(each.carried)) for each in written.inputs] == [[], [0, 7], []]
    assert [list(unpacked(each.carried_by_value)) for each in written.inputs] == [[5], [], [0]]
    gone = {each.start + place for each in written.inputs for place in each.all_carried}
    assert [each for each in files.output["id"].to_pylist() if each not in gone] == files.rows


def test_an_equality_delete_of_many_rows_is_applied(tmp_path: Path) -> None:
    """One key may delete many rows: that is known once the key column is read."""
    files = Files(tmp_path, 3, encoded=True, most_carried=0.01)
    files.delete_ids(list(range(0, 3 * LARGE, 50)))
    written = files.write()
    assert isinstance(written.file, EncodedFile)
    assert reason_of(written.not_spliced) == "too_many_deletes"
    assert files.output["id"].to_pylist() == files.rows
    assert not any(each.carried_by_value for each in written.inputs)


def test_no_file_whose_rows_are_deleted_by_value_is_kept_beside_a_decoded_one(tmp_path: Path) -> None:
    files = Files(tmp_path, 3, encoded=True, most_carried=0.01)
    files.add(100)  # by another writer: the files cannot be spliced as they are
    files.delete_ids([5, LARGE + 7])
    written = files.write()
    assert isinstance(written.file, EncodedFile)
    assert files.output["id"].to_pylist() == files.rows


def test_equality_deletes_that_cannot_be_compared_or_read_are_left_to_iceberg(tmp_path: Path) -> None:
    files = Files(tmp_path, 1, most_carried=0.5)
    files.delete_ids([5])
    work = files.work()
    assert work.splice is not None
    other = replace(work.splice.files, schema_json=Schema(NestedField(1, "id", "double")).model_dump_json())
    refused = run_task(TaskInput(replace(work.splice, files=other), work.encode))
    assert reason_of(refused) == "equality_deletes"
    (tmp_path / "by-value.parquet").write_bytes(b"noise")
    refused = run_task(work)
    assert isinstance(refused, Refusal)
    assert not (tmp_path / "output.parquet").exists()


@pytest.mark.parametrize("decoded", [False, True])
def test_what_the_store_denies_is_not_left_to_iceberg(tmp_path: Path, decoded: bool) -> None:
    """Nobody may write to /sys, not even root."""
    files = Files(tmp_path, 1)
    work = files.work()
    assert work.splice is not None
    assert work.encode is not None
    splice = None if decoded else replace(work.splice, output="file:///sys/output.parquet")
    with pytest.raises(GiveUpError) as raised:
        run_task(TaskInput(splice, replace(work.encode, output="file:///sys/output.parquet")))
    assert raised.value.reason == "access_denied"
    assert "check the permissions" in str(raised.value)


def test_a_file_that_is_gone_is_not_left_to_iceberg(tmp_path: Path) -> None:
    files = Files(tmp_path, 1)
    files.delete(0, [5])
    (tmp_path / "0-deletes.parquet").unlink()
    with pytest.raises(GiveUpError, match=r"0-deletes\.parquet does not exist any more") as raised:
        run_task(files.work())
    assert raised.value.reason == "input_missing"


@pytest.mark.parametrize("by_value", [False, True])
def test_no_delete_is_carried_where_none_may_be(tmp_path: Path, by_value: bool) -> None:
    files = Files(tmp_path, 2)
    if by_value:
        files.delete_ids([5])
    else:
        files.delete(0, [5])
    written = files.write()
    assert isinstance(written.file, EncodedFile)
    assert files.output["id"].to_pylist() == files.rows
    first = written.inputs[0]
    assert (list(unpacked(first.by_value)), list(unpacked(first.by_position))) == (([5], []) if by_value else ([], [5]))


def test_a_file_that_loses_every_row_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    files = Files(tmp_path, 1, encoded=True)
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
    files = Files(tmp_path, 1, encoded=True)
    files.add(100)
    wider = Schema(*SCHEMA.fields, NestedField(3, "n", "long", required=False))
    work = files.work()
    assert work.encode is not None
    encoded: list[EncodeTask] = []
    monkeypatch.setattr(output_task, "encode", lambda task: (encoded.append(task), encode(task))[1])
    wide = replace(work.encode.files, schema_json=wider.model_dump_json())
    written = run_task(replace(work, encode=replace(work.encode, files=wide)))
    assert [len(task.files.inputs) for task in encoded] == [2]
    assert isinstance(written, TaskResult)
    assert isinstance(written.file, EncodedFile)
    assert not (tmp_path / "aside.parquet").exists()
    assert files.output["id"].to_pylist() == files.rows
    assert files.output["n"].null_count == len(files.rows)


@pytest.mark.parametrize("mixed", [False, True])
def test_files_that_exchanged_their_record_counts_are_left_alone(tmp_path: Path, mixed: bool) -> None:
    """The sum is right, but carried and later deletes would be applied to other rows."""
    files = Files(tmp_path, most_carried=0.5)
    for _ in range(2):
        files.add(LARGE, encoded=mixed)
    if mixed:
        files.add(100)
    else:
        files.delete(1, [0])
    first, second, *others = files.inputs
    files.inputs = [replace(first, records=LARGE - 1), replace(second, records=LARGE + 1), *others]
    for attempt in (run_task, foreseen)[: 1 if mixed else 2]:
        with fails("row_count_mismatch"):
            attempt(files.work())
    assert not list(tmp_path.glob("output*"))
    assert not list(tmp_path.glob("aside*"))


def test_a_file_that_contradicts_itself_is_left_alone(tmp_path: Path) -> None:
    """Spark would take the rows that it finds for all rows."""
    files = Files(tmp_path, 2)
    path = tmp_path / "1.parquet"
    footer = footer_of(path)
    write_footer(path, footer.tree.with_fields({FileField.NUM_ROWS: (I64, LARGE - 1)}))
    files.inputs[1] = replace(files.inputs[1], records=LARGE - 1, size=path.stat().st_size)
    with fails("row_count_mismatch"):
        run_task(files.work())
    assert not (tmp_path / "output.parquet").exists()


def test_files_of_one_kind_are_spliced_whole(tmp_path: Path) -> None:
    files = Files(tmp_path, 2)
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
    files = Files(tmp_path, 2)
    monkeypatch.setattr(parquet_footer, "MAX_FOOTER_BYTES", 10)
    written = run_task(replace(files.work(), aside=None))
    assert isinstance(written, TaskResult)
    assert isinstance(written.file, EncodedFile)
    assert reason_of(written.not_spliced) == "footer_too_large"


def test_an_output_of_an_attempt_that_was_taken_for_lost_is_tried_again_elsewhere(tmp_path: Path) -> None:
    files = Files(tmp_path, 2)
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
    files = Files(tmp_path, 1, encoded=True)
    files.add(100)
    work = files.work()
    refused = run_task(replace(work, encode=None))
    assert isinstance(refused, Refusal)
    written = run_task(replace(work, splice=None, aside=None))
    assert isinstance(written, TaskResult)
    assert isinstance(written.file, EncodedFile)
