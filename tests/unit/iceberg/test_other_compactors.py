"""Another compactor is known by its rewrites; its manifests' rewrites, our own and old ones are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from compactor.iceberg.other_compactors import OtherCompactor, other_compactors
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
    assert found == (OtherCompactor("engine-name=spark", 2, 32), OtherCompactor("unknown", 1, 7))


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
