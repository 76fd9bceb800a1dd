"""The metadata oracle finds nothing on a sound table, and each kind of damage that is done to one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pytest

from tests.conftest import Lake
from tests.correctness.metadata_oracle import judge
from tests.correctness.metadata_reader import (
    ADDED,
    DATA,
    DELETED,
    EXISTING,
    POSITION_DELETES,
    SnapshotState,
    TableMetadata,
    local_path,
)
from tests.integration.table_kit import MERGE_ON_READ, create, planned, run

pytestmark = pytest.mark.spark

Row = dict[str, Any]
NO_BOUNDS = {"contains_null": False, "contains_nan": False, "lower_bound": None, "upper_bound": None}


@dataclass(frozen=True)
class Compacted:
    """A table of two partitions of which one was compacted: the other's files and vectors are live beside outputs."""

    metadata: TableMetadata
    planned: int
    own: int

    @property
    def state(self) -> SnapshotState:
        return self.metadata.state(self.own)

    def findings(self, **changed: Any) -> tuple[str, ...]:
        """Judge the table, with other values in the metadata document."""
        document = json.loads(json.dumps(dict(self.metadata.document))) | changed
        return judge(TableMetadata(self.metadata.location, document), [self.own], self.planned).findings


@pytest.fixture(scope="module")
def table(lake: Lake) -> Compacted:
    name = "db.judged"
    create(lake, name, 3, MERGE_ON_READ, "PARTITIONED BY (k)")
    for number in range(6):
        rows = f"SELECT /*+ COALESCE(1) */ id, 'a', {number % 2} FROM range({10 * number}, {10 * number + 10})"
        lake.sql(f"INSERT INTO lake.{name} {rows}")
    lake.sql(f"DELETE FROM lake.{name} WHERE id IN (0, 10, 20, 30, 50)")
    result = run(lake, planned(lake, name, where="k = 0", engine="spark"))
    assert result.snapshot_before
    assert result.snapshot_after
    return Compacted(lake.metadata(name), result.snapshot_before, result.snapshot_after)


@contextmanager
def rewritten(path: Path) -> Iterator[None]:
    """What the block writes into a file is undone."""
    real = path.read_bytes()
    try:
        yield
    finally:
        path.write_bytes(real)


@contextmanager
def edited(location: str, change: Callable[[list[Row]], object]) -> Iterator[None]:
    """An Avro file with other rows, for a while."""
    path = local_path(location)
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        rows: list[Row] = [row for row in reader if isinstance(row, dict)]
        schema = reader.writer_schema
    assert schema is not None
    change(rows)
    with rewritten(path):
        with path.open("wb") as file:
            fastavro.writer(file, schema, rows)
        yield


def manifest_of(table: Compacted, status: int, content: int) -> str:
    """A manifest with an entry of the run's (added, deleted) or of others (existing)."""
    mine = [entry for entry in table.state.entries if (entry.status, entry.content) == (status, content)]
    own = [entry for entry in mine if (entry.snapshot_id == table.own) == (status != EXISTING)]
    return own[0].manifest


def set_in(status: int, **values: Any) -> Callable[[list[Row]], None]:
    """Change the data file of the first entry of a status; `entry__` is the entry itself."""

    def change(rows: list[Row]) -> None:
        row = next(row for row in rows if row["status"] == status)
        for name, value in values.items():
            target, key = (row, name.removeprefix("entry__")) if "entry__" in name else (row["data_file"], name)
            target[key] = value(target[key]) if callable(value) else value

    return change


def vectors_of_one_file(rows: list[Row]) -> None:
    for row in rows:
        row["data_file"]["referenced_data_file"] = rows[-1]["data_file"]["referenced_data_file"]


def test_a_sound_table_has_no_findings(table: Compacted) -> None:
    assert table.findings() == ()
    assert {entry.status for entry in table.state.entries} == {ADDED, EXISTING, DELETED}
    assert any(entry.is_vector for entry in table.state.deletes)


@pytest.mark.parametrize(
    ("change", "status", "content", "expected"),
    [
        (set_in(ADDED, record_count=lambda count: count + 1), ADDED, DATA, "rows in the manifest"),
        (set_in(ADDED, file_size_in_bytes=lambda size: size + 1), ADDED, DATA, "bytes in the manifest"),
        (set_in(ADDED, file_path=lambda path: path + "x"), ADDED, DATA, "does not exist"),
        (set_in(ADDED, sort_order_id=9), ADDED, DATA, "sort order 9"),
        (set_in(ADDED, entry__sequence_number=1), ADDED, DATA, "data sequence number 1"),
        (set_in(ADDED, entry__sequence_number=99), ADDED, DATA, "the snapshot's is"),
        (set_in(ADDED, first_row_id=0), ADDED, DATA, "the snapshot's are"),
        (set_in(ADDED, first_row_id=10**6), ADDED, DATA, "next-row-id is"),
        (lambda rows: rows.append(rows[0]), ADDED, DATA, "is listed 2 times"),
        (lambda rows: rows.append(rows[0]), ADDED, DATA, "1 added files and 28 rows in the manifest list, 2 and 56"),
        (lambda rows: rows.pop(), DELETED, DATA, "vanished"),
        (set_in(DELETED, file_path="/elsewhere"), DELETED, DATA, "was not live in the parent"),
        (set_in(DELETED, entry__status=EXISTING), DELETED, POSITION_DELETES, "applies to none now"),
        (set_in(DELETED, entry__status=EXISTING), DELETED, DATA, "the summary's total-records is"),
        (set_in(EXISTING, content_offset=5), EXISTING, POSITION_DELETES, "no deletion vector of"),
        (set_in(EXISTING, record_count=7), EXISTING, POSITION_DELETES, "7 rows in the manifest, 1 in the file"),
        (set_in(EXISTING, referenced_data_file="/gone"), EXISTING, POSITION_DELETES, "names"),
        (set_in(EXISTING, content_offset=None), EXISTING, POSITION_DELETES, "without referenced data file, offset"),
        (set_in(EXISTING, entry__snapshot_id=1), EXISTING, POSITION_DELETES, "was added by snapshot"),
        (set_in(EXISTING, entry__sequence_number=2), EXISTING, POSITION_DELETES, "was listed as"),
        (vectors_of_one_file, EXISTING, POSITION_DELETES, "its data file has another deletion vector"),
    ],
)
def test_damaged_manifests_are_found(
    table: Compacted, change: Callable[[list[Row]], None], status: int, content: int, expected: str
) -> None:
    with edited(manifest_of(table, status, content), change):
        findings = table.findings()
    assert any(expected in finding for finding in findings), findings


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("added_files_count", 5, "5 added files"),
        ("deleted_files_count", 0, "0 deleted files"),
        ("existing_rows_count", 999, "and 999 rows"),
        ("manifest_length", 1, "1 bytes in the manifest list"),
        ("min_sequence_number", 50, "least sequence number 50"),
        ("partitions", [NO_BOUNDS], "has values, its summary has no bounds"),
        ("first_row_id", None, "without first_row_id"),
        ("first_row_id", 0, "share row ids from"),
    ],
)
def test_damaged_manifest_lists_are_found(table: Compacted, column: str, value: object, expected: str) -> None:
    def change(rows: list[Row]) -> None:
        for row in rows:
            if row["content"] == DATA or column != "first_row_id":
                row[column] = value

    with edited(table.state.snapshot["manifest-list"], change):
        findings = table.findings()
    assert any(expected in finding for finding in findings), findings


def test_a_manifest_that_is_listed_twice_is_found(table: Compacted) -> None:
    with edited(table.state.snapshot["manifest-list"], lambda rows: rows.append(rows[0])):
        assert any("a manifest is listed twice" in finding for finding in table.findings())


@pytest.mark.parametrize("key", ["total-records", "total-position-deletes", "added-files-size", "removed-delete-files"])
def test_wrong_summaries_are_found(table: Compacted, key: str) -> None:
    snapshots = json.loads(json.dumps(table.metadata.document["snapshots"]))
    mine = next(each for each in snapshots if each["snapshot-id"] == table.own)
    mine["summary"][key] = str(int(mine["summary"].get(key, 0)) + 3)
    assert any(f"the summary's {key} is" in finding for finding in table.findings(snapshots=snapshots))
    del mine["summary"][key]
    findings = table.findings(snapshots=snapshots)
    assert any(f"the summary's {key} is" in finding or f"no {key}" in finding for finding in findings)


def test_wrong_totals_of_others_are_no_finding(table: Compacted) -> None:
    snapshots = json.loads(json.dumps(table.metadata.document["snapshots"]))
    for each in snapshots:
        each["summary"]["total-records"] = str(int(each["summary"]["total-records"]) + 100)
    assert table.findings(snapshots=snapshots) == ()


def test_row_ids_above_the_tables_next_one_are_found(table: Compacted) -> None:
    assert any("next-row-id is 3" in finding for finding in table.findings(**{"next-row-id": 3}))
    snapshots = json.loads(json.dumps(table.metadata.document["snapshots"]))
    del next(each for each in snapshots if each["snapshot-id"] == table.own)["first-row-id"]
    assert any("without first-row-id" in finding for finding in table.findings(snapshots=snapshots))


def test_damaged_vectors_are_found(table: Compacted) -> None:
    vector = next(entry for entry in table.state.deletes if entry.is_vector)
    path = local_path(vector.path)
    content = bytearray(path.read_bytes())
    content[(vector.content_offset or 0) + 12] ^= 1
    for damaged, expected in ((bytes(content), "checksum"), (path.read_bytes()[:-1], "not a Puffin file")):
        with rewritten(path):
            path.write_bytes(damaged)
            assert any(expected in finding for finding in table.findings())
