"""What other writers commit between the plan and the commit of a rewrite costs nothing, or the rewrite gives way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from compactor.errors import ReplanError
from compactor.runs.results import RunResult
from tests.conftest import Lake
from tests.integration.table_kit import (
    MERGE_ON_READ,
    append,
    create,
    data_files,
    delete_by_equality,
    delete_by_position,
    expire,
    expire_history,
    overwrite,
    planned,
    roll_back,
    run,
    unreferenced,
    upgrade,
)
from tests.slow import slow

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("tiny_files_spliced")]


def recreate(lake: Lake, table: str) -> None:
    lake.sql(f"DROP TABLE lake.{table}")
    create(lake, table, commits=2)


WHEN = ("before the run", "before the commit")


def interfere(lake: Lake, table: str, other: Callable[[Lake, str], None], when: str, engine: str = "auto") -> RunResult:
    """Plan, let the other writer in, run. `enabled` is asked once more between the row check and the commit."""
    plan = planned(lake, table, engine=engine)
    if when == WHEN[0]:
        other(lake, table)
        return run(lake, plan)
    waiting: Iterator[None] = iter([None])

    def meanwhile() -> bool:
        for _ in waiting:
            other(lake, table)
        return True

    return run(lake, plan, enabled=meanwhile)


@pytest.mark.parametrize(
    ("version", "when", "engine"),
    [(2, WHEN[0], "spark"), (2, WHEN[1], "auto"), *slow((3, WHEN[1], "auto"), (2, WHEN[1], "spark"))],
)
@pytest.mark.parametrize("other", [append, delete_by_equality])
def test_writers_that_do_not_conflict(
    lake: Lake, table_name: str, other: Callable[[Lake, str], None], version: int, when: str, engine: str
) -> None:
    """Appended rows stay. An equality delete that comes during the run applies to outputs: they carry S's number."""
    create(lake, table_name, version, commits=3)
    view = lake.view(table_name)
    result = interfere(lake, table_name, other, when, engine)
    expected = sorted([*range(10)] * 3)
    expected = [*expected, 77] if other is append else [number for number in expected if number != 5]
    assert sorted(row.id for row in lake.sql(f"SELECT id FROM lake.{table_name}")) == expected
    assert lake.view(table_name).snapshot.snapshot_id == result.snapshot_after
    entries = lake.sql(
        f"SELECT sequence_number FROM lake.{table_name}.entries "
        f"WHERE status = 1 AND snapshot_id = {result.snapshot_after}"
    )
    assert [entry.sequence_number for entry in entries] == [view.snapshot.sequence_number]
    assert unreferenced(lake, table_name) == set()


CONFLICTS = {
    "overwrite": (overwrite, "conflict"),
    "format version": (upgrade, "format_changed"),
    "rollback": (roll_back, "history_gap"),
    "another table": (recreate, "table_replaced"),
}


@pytest.mark.parametrize("when", [*slow(WHEN[0]), WHEN[1]])
@pytest.mark.parametrize("conflict", CONFLICTS)
def test_writers_that_conflict_win(lake: Lake, table_name: str, conflict: str, when: str) -> None:
    other, reason = CONFLICTS[conflict]
    create(lake, table_name, commits=3)
    with pytest.raises(ReplanError) as raised:
        interfere(lake, table_name, other, when)
    assert raised.value.reason == reason
    operations = [row.operation for row in lake.sql(f"SELECT operation FROM lake.{table_name}.snapshots")]
    assert "replace" not in operations
    if conflict != "another table":  # the files of a dropped table are the catalog's business
        assert unreferenced(lake, table_name) == set()


def test_a_planned_snapshot_that_expires_before_the_run_is_planned_anew_if_spark_is_to_read_it(
    lake: Lake, table_name: str
) -> None:
    create(lake, table_name, commits=3)
    with pytest.raises(ReplanError) as raised:
        interfere(lake, table_name, expire, WHEN[0], "spark")
    assert raised.value.reason == "snapshot_expired"


@pytest.mark.parametrize("when", [*slow(WHEN[0]), WHEN[1]])
def test_rows_that_are_given_their_ids_meanwhile_keep_them(lake: Lake, table_name: str, when: str) -> None:
    """The first commit after an upgrade gives them: outputs that were planned before have none."""
    create(lake, table_name, commits=3)
    upgrade(lake, table_name)
    with pytest.raises(ReplanError, match="were given their ids since planning"):
        interfere(lake, table_name, append, when)
    lineage = f"SELECT id, _row_id, _last_updated_sequence_number FROM lake.{table_name}"
    before = sorted(map(tuple, lake.sql(lineage)))
    assert run(lake, planned(lake, table_name)).commits == 1
    assert sorted(map(tuple, lake.sql(lineage))) == before


def delete_and_expire(lake: Lake, table: str) -> None:
    append(lake, table)
    delete_by_position(lake, table)
    expire_history(lake, table)


def compact_one_and_expire(lake: Lake, table: str) -> None:
    where = "where => 'a = \"p1\"', options => map('rewrite-all', 'true')"
    lake.sql(f"CALL lake.system.rewrite_data_files(table => '{table}', {where})")
    append(lake, table)
    expire_history(lake, table, clean=False)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    ("other", "when", "committed", "left"),
    [
        (delete_and_expire, WHEN[1], ["p0", "p1"], [number for number in range(10) if number != 5]),
        (compact_one_and_expire, WHEN[1], ["p0"], range(10)),
        *slow(
            (delete_and_expire, WHEN[0], ["p0", "p1"], [number for number in range(10) if number != 5]),
            (compact_one_and_expire, WHEN[0], ["p0"], range(10)),
        ),
    ],
)
def test_a_history_that_expires_meanwhile_costs_nothing(
    lake: Lake,
    table_name: str,
    other: Callable[[Lake, str], None],
    when: str,
    committed: list[str],
    left: Sequence[int],
    version: int,
) -> None:
    """The files of both snapshots tell what others did; groups that lost no file are committed."""
    create(lake, table_name, version, MERGE_ON_READ, "PARTITIONED BY (a)", commits=3)
    result = interfere(lake, table_name, other, when)
    assert sorted(group.planned.file_group.partition["a"] for group in result.groups) == committed
    assert sum(group.rows_rebased for group in result.groups) == 3 * (10 - len(left))
    assert sorted(row.id for row in lake.sql(f"SELECT id FROM lake.{table_name}")) == sorted([*left, *left, *left, 77])
    if len(committed) == 2:  # else the files that the other compactor replaced are still there
        assert unreferenced(lake, table_name) == set()


def test_a_planned_snapshot_that_expires_before_the_commit_costs_nothing(lake: Lake, table_name: str) -> None:
    create(lake, table_name, commits=3)
    rows = lake.rows(table_name)
    interfere(lake, table_name, expire, WHEN[1])
    assert lake.rows(table_name) == sorted([*rows, (77, "p0", 77)], key=repr)
    assert data_files(lake, table_name) == 2
    assert unreferenced(lake, table_name) == set()


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_the_pinned_snapshot_is_read_not_the_newest(lake: Lake, table_name: str, engine: str) -> None:
    """Rows deleted after planning are still in the outputs, to which the newer equality delete applies."""
    create(lake, table_name, properties=MERGE_ON_READ, commits=3)
    lake.sql(f"DELETE FROM lake.{table_name} WHERE id IN (1, 2)")
    plan = planned(lake, table_name, engine=engine)
    delete_by_equality(lake, table_name)
    result = run(lake, plan)
    assert [
        (group.rewritten.rows_in, group.rewritten.rows_deleted, group.rewritten.rows_out) for group in result.groups
    ] == [(30, 6, 24)]
    assert len(lake.rows(table_name)) == 21
