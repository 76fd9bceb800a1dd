"""What a plan says of partitions that it leaves out, and of delete files that apply to nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from compactor.debt.board import DebtBoard, PartitionDebt, TableDebt
from compactor.debt.table_changes import counts_of
from compactor.errors import InputError
from compactor.iceberg.manifest_entries import DELETE_FILE_PATH_FIELD, Content, FileEntry
from compactor.iceberg.tables import FileSizes
from compactor.manifests.cache import ManifestCache
from compactor.partitions import PartitionKey
from compactor.planning.budget import Grant
from compactor.planning.dangling_deletes import CoverableDelete, worth_a_commit
from compactor.planning.plan_table import AS_THE_SERVICE, DANGLING_FROM, Request, TablePlan, plan_table
from compactor.settings.policy import PolicyValues
from tests.properties.planning import data_file, delete_file
from tests.properties.table_history import TableHistory

A, B = PartitionKey(0, '["a"]'), PartitionKey(0, '["b"]')


def planned(history: TableHistory, request: Request = AS_THE_SERVICE, now: float | None = None) -> TablePlan:
    values = PolicyValues(strategy="threshold", min_input_files=3, max_files_to_rewrite=3)
    moment = time.time() if now is None else now
    return plan_table(history.view(), values, ManifestCache(1 << 20), request, wall_clock=lambda: moment)


def test_a_due_partition_for_which_the_run_has_no_room_stays_due(tmp_path: Path) -> None:
    history = TableHistory(tmp_path, 2)
    for category in "ab":
        history.append_unreal(category, [10, 10, 10])
    plan = planned(history)
    assert [group.file_group.key for group in plan.groups] == [A]
    assert plan.left_alone([A, B]) == {}

    counts = counts_of(data_file(0, 10).entry, FileSizes(1000, 750))
    debts = {key: PartitionDebt(key, {}, None, counts, True, "3 small files") for key in (A, B)}
    board, debt = DebtBoard(), TableDebt(plan.table.name, 1, debts)
    board.put(debt)
    board.decline(debt, plan.left_alone(each.key for each in debt.due), plan.selected)
    known = board.get(plan.table.name)
    assert known is not None
    assert {each.key for each in known.due} == {A, B}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (
            PolicyValues(max_file_group_size=197),
            "no two in a row fit into a file group of max_file_group_size (197 bytes)",
        ),
        (PolicyValues(target_file_size=100, min_file_size_ratio=1), "each would be an output of its own"),
    ],
)
def test_files_that_cannot_be_merged_together_are_left_alone_with_that_reason(
    tmp_path: Path, values: PolicyValues, why: str
) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [99] * 5)
    plan = plan_table(history.view(), values, ManifestCache(1 << 20), Request())
    assert not plan.has_work
    assert plan.unplanned == {A: f"5 small files, due from 5, but {why}"}


def test_a_due_partition_without_data_files_is_left_alone_with_a_reason(tmp_path: Path) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [10])
    assert planned(history).left_alone([B]) == {
        A: "1 small files, due from 3",
        B: "it holds delete files, but no data file",
    }


@pytest.mark.parametrize(
    ("granted", "in_a_row", "most"),
    [(None, None, None), (1, None, 1), (3, None, 3), (0, None, 1), (None, 2, 2), (1, 2, 1), (3, 2, 2)],
)
def test_a_run_makes_no_more_commits_than_it_is_granted_and_may_follow_one_another(
    tmp_path: Path, granted: int | None, in_a_row: int | None, most: int | None
) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [10])
    request = replace(AS_THE_SERVICE, grant=Grant(commits=granted))
    plan = plan_table(history.view(), PolicyValues(consecutive_replaces=in_a_row), ManifestCache(1 << 20), request)
    assert plan.most_commits == most


def with_named_deletes(history: TableHistory, number: int, deleted: int) -> None:
    """Append files of 65 bytes and 100 rows, each with a position delete file of so many rows that names it."""
    table = history.table

    def file(path: str, content: DataFileContent, rows: int, names: str | None = None) -> DataFile:
        bounds = {DELETE_FILE_PATH_FIELD: names.encode()} if names else {}
        made = DataFile.from_args(
            content=content, file_path=path, file_format=FileFormat.PARQUET, partition=Record("a"), record_count=rows,
            file_size_in_bytes=65, lower_bounds=bounds, upper_bounds=bounds,
        )  # fmt: skip
        made.spec_id = table.spec().spec_id
        return made

    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for each in range(number):
            path = f"file:///nowhere/{each}.parquet"
            append.append_data_file(file(path, DataFileContent.DATA, 100))
            append.append_data_file(file(f"{path}.deletes", DataFileContent.POSITION_DELETES, deleted, path))


@pytest.mark.parametrize(
    ("engine", "deleted", "outputs"),
    [("auto", 5, 2), ("splice", 5, 2), ("encode", 5, 3), ("spark", 5, 3), ("auto", 13, 3)],
)
def test_a_file_by_itself_is_rewritten_if_its_deleted_rows_are_left_out(
    tmp_path: Path, engine: str, deleted: int, outputs: int
) -> None:
    """The last of five, of which two fill an output. Else its copy holds the same deleted rows, and is due again."""
    history = TableHistory(tmp_path, 2)
    with_named_deletes(history, 5, deleted)
    plan = plan_table(
        history.view(), PolicyValues(target_file_size=100), ManifestCache(1 << 20), Request(engine=engine)
    )
    assert [len(group.file_group.tasks) for group in plan.groups] == [outputs]


def vectors(count: int) -> list[CoverableDelete]:
    return [CoverableDelete(delete_file(1, number, applies_to="gone"), frozenset()) for number in range(count)]


def test_left_behind_vectors_are_worth_a_commit_and_equality_deletes_are_not() -> None:
    equality: FileEntry = delete_file(1, 1, applies_to=None)._replace(content=Content.EQUALITY_DELETES)
    needed = CoverableDelete(delete_file(1, 2, applies_to="there"), frozenset({"there"}))
    assert not worth_a_commit([CoverableDelete(equality, frozenset()), needed], 1)
    assert worth_a_commit([*vectors(1), needed], 1)
    assert not worth_a_commit([*vectors(7), needed], 8)


@pytest.mark.parametrize(
    ("request_", "idle_seconds", "least"),
    [(Request(), 0, 1), (AS_THE_SERVICE, 0, DANGLING_FROM), (AS_THE_SERVICE, 601, 1)],
)
def test_beside_a_writer_the_service_waits_for_several_of_them(
    tmp_path: Path, request_: Request, idle_seconds: float, least: int
) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [10])
    assert planned(history, request_, time.time() + idle_seconds).dangling_from == least


def test_a_target_below_the_minimum_size_is_refused(tmp_path: Path) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [10] * 6)
    with pytest.raises(InputError, match="min_file_size: 900 bytes must be below the target of 100"):
        planned_with(history, PolicyValues(target_file_size="table", min_file_size=900), 100)


def planned_with(history: TableHistory, values: PolicyValues, target: int) -> TablePlan:
    return plan_table(
        history.view(), values.model_copy(update={"target_file_size": target}), ManifestCache(1 << 20), Request()
    )


def test_no_file_is_small_where_the_minimum_is_zero(tmp_path: Path) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [10] * 6)
    assert planned_with(history, PolicyValues(min_file_size=0), 100).groups == ()
    assert len(planned_with(history, PolicyValues(min_file_size=11), 100).groups) == 1


def test_no_output_is_larger_than_the_maximum(tmp_path: Path) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [60] * 6)
    outputs = {
        most: [len(task) for group in planned_with(history, PolicyValues(max_file_size=most), 100).groups
               for task in group.file_group.tasks]
        for most in (None, 120, 119)
    }  # fmt: skip
    assert outputs == {None: [2, 2, 2], 120: [2, 2, 2], 119: []}


def test_a_run_of_one_file_joins_none(tmp_path: Path) -> None:
    """A run of one file of several would copy it for nothing, and so would each run after it."""
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [60] * 6)
    plan = planned_with(history, PolicyValues(max_files_to_rewrite=1), 100)
    assert (plan.groups, plan.files_left) == ((), 6)
