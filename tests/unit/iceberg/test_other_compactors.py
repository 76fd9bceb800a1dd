"""Another compactor is known by its rewrites; its manifests' rewrites, our own and old ones are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from compactor.iceberg.other_compactors import (
    CONVERTER_NAME,
    FLINK_CONVERTER,
    POLARIS_ROLLBACK,
    UNNAMED,
    OtherCompactor,
    compactor_name,
    flink_converters,
    flink_converts,
    other_compactors,
    other_firnlines,
    unlisted_before,
)
from tests.properties.table_history import TableHistory

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table.metadata import TableMetadata

NOW = 2_000_000.0


def snapshot(number: int, operation: Operation = Operation.REPLACE, age: float = 60, **summary: str) -> Snapshot:
    said = {key.replace("_", "-").replace("--", "."): value for key, value in summary.items()}
    return Snapshot(
        snapshot_id=number, sequence_number=number, timestamp_ms=int((NOW - age) * 1000), manifest_list="x",
        summary=Summary(operation, **said), schema_id=0,
    )  # fmt: skip


def metadata(folder: Path, *snapshots: Snapshot) -> TableMetadata:
    return TableHistory(folder, 2).view().metadata.model_copy(update={"snapshots": list(snapshots)})


def test_rewrites_of_others_are_counted_by_who_says_they_did_it(tmp_path: Path) -> None:
    found = other_compactors(
        metadata(
            tmp_path,
            snapshot(1, engine_name="spark", deleted_data_files="28"),
            snapshot(2, engine_name="spark", deleted_data_files="4"),
            snapshot(3, deleted_data_files="7"),
        ),
        NOW,
    )
    then = NOW - 60
    assert found == (OtherCompactor("engine-name=spark", 2, 32, then), OtherCompactor("unknown", 1, 7, then))


def test_our_own_rewrites_manifests_appends_and_last_weeks_are_nobody(tmp_path: Path) -> None:
    found = other_compactors(
        metadata(
            tmp_path,
            snapshot(1, deleted_data_files="28", firnline__run_id="x"),
            snapshot(2, engine_name="spark"),
            snapshot(3, Operation.OVERWRITE, deleted_data_files="3"),
            snapshot(4, age=2 * 86_400, deleted_data_files="3"),
            snapshot(5, deleted_data_files="many"),
        ),
        NOW,
    )
    assert found == ()


def test_another_deployment_of_firnline_is_known_by_its_id(tmp_path: Path) -> None:
    table = metadata(
        tmp_path,
        snapshot(1, deleted_data_files="28", firnline__run_id="a", firnline__deployment_id="ours"),
        snapshot(2, age=30, deleted_data_files="5", firnline__run_id="b", firnline__deployment_id="another"),
        snapshot(3, age=90, deleted_data_files="2", firnline__run_id="c", firnline__deployment_id="another"),
        snapshot(4, deleted_data_files="9", firnline__run_id="compact, without a service"),
        snapshot(5, deleted_data_files="9", firnline__deployment_id="no run id: not ours"),
        snapshot(6, firnline__run_id="manifests", firnline__deployment_id="a third"),
        snapshot(7, age=2 * 86_400, deleted_data_files="2", firnline__run_id="d", firnline__deployment_id="old"),
    )
    another = OtherCompactor("firnline.deployment-id=another", 2, 7, NOW - 30)
    ours = OtherCompactor("firnline.deployment-id=ours", 1, 28, NOW - 60)
    assert other_firnlines(table, NOW, "ours") == (another,)
    assert other_firnlines(table, NOW, "another") == (ours,)
    assert other_firnlines(table, NOW, "") == (another, ours)


def test_one_deployment_alone_is_no_other_to_somebody_without_an_id(tmp_path: Path) -> None:
    only = snapshot(1, deleted_data_files="28", firnline__run_id="a", firnline__deployment_id="ours")
    assert other_firnlines(metadata(tmp_path, only), NOW, "") == ()


@pytest.mark.parametrize(
    ("summary", "location", "name"),
    [
        ({"snapshot.producer": "OPTIMIZE"}, "s3://lake/db/t", "Apache Amoro"),
        ({"snapshot.producer": "INGESTION"}, "s3://lake/db/t", UNNAMED),
        ({}, "s3://63a8e430-6e0b-46f5--table-s3", "Amazon S3 Tables"),
        ({"spark.app.id": "local-1"}, "s3://63a8e430-6e0b-46f5--table-s3", "spark.app.id=local-1"),
        ({}, "s3://lake/about--table-s3", UNNAMED),
        ({"app-id": "a", POLARIS_ROLLBACK: "rollback"}, "x", "app-id=a, rolled back by Apache Polaris on conflict"),
    ],
)
def test_compactors_are_named_by_what_they_leave_in_summaries(
    summary: dict[str, str], location: str, name: str
) -> None:
    assert compactor_name(summary, location) == name


def test_flinks_converter_is_known_by_its_marker(tmp_path: Path) -> None:
    marker = {FLINK_CONVERTER.replace("-", "_"): "77"}
    snapshots = [snapshot(1, Operation.APPEND), snapshot(2, Operation.OVERWRITE, **marker), snapshot(3)]
    assert flink_converts(reversed(snapshots))
    assert not flink_converts([snapshots[0], snapshots[2]])
    table = metadata(tmp_path, *snapshots, snapshot(4, Operation.OVERWRITE, age=2 * 86_400, **marker))
    assert flink_converters(table, NOW) == (OtherCompactor(CONVERTER_NAME, 1, 0, NOW - 60),)
    assert other_compactors(table, NOW) == ()


@pytest.mark.parametrize(
    ("ages", "works"),
    [
        ((7_000, 14_200), True),
        ((7_000,), True),
        ((30_000, 31_000), False),
        ((30_000, 40_000), True),
        ((90_000,), False),
    ],
)
def test_flinks_converter_may_be_quiet_for_three_of_its_pauses(ages: tuple[int, ...], works: bool) -> None:
    """Writers commit more often than 64 times in between."""
    marker = {FLINK_CONVERTER.replace("-", "_"): "77"}
    writers = [snapshot(number, Operation.APPEND, age=number) for number in range(100)]
    oldest = snapshot(300, Operation.APPEND, age=200_000)
    made = [snapshot(200 + at, Operation.OVERWRITE, age=at, **marker) for at in ages]
    assert flink_converts([*writers, *made, oldest]) is works


def branch(*ages: float, parent_of_the_oldest: int | None = 9) -> list[Snapshot]:
    """Snapshots of these ages in seconds, the newest first."""
    numbers = range(9 + len(ages), 9, -1)
    snapshots = [
        snapshot(number, Operation.APPEND, age=age).model_copy(update={"parent_snapshot_id": number - 1})
        for number, age in zip(numbers, ages, strict=True)
    ]
    snapshots[-1] = snapshots[-1].model_copy(update={"parent_snapshot_id": parent_of_the_oldest})
    return snapshots


def test_a_history_tells_of_all_compactors_only_if_it_reaches_back_a_day() -> None:
    assert unlisted_before([], NOW) is None
    assert unlisted_before(branch(60), NOW) == NOW - 60
    assert unlisted_before(branch(60, 7200), NOW) == NOW - 7200
    assert unlisted_before(branch(60, 7200, 86_400), NOW) is None
    assert unlisted_before(branch(60, 7200), NOW - 7200 + 86_400) is None, "once the oldest is a day old"
    assert unlisted_before(branch(60, 7200), NOW, known=10) is None
    assert unlisted_before(branch(60, 7200), NOW, known=9) == NOW - 7200


def test_the_history_of_a_table_that_is_younger_than_a_day_is_complete() -> None:
    newest, first = branch(60, 7200, parent_of_the_oldest=None)
    assert unlisted_before([newest, first.model_copy(update={"sequence_number": 1})], NOW) is None
    assert unlisted_before([newest, first], NOW) == NOW - 7200, "a catalog that lists the newest alone, without parents"
