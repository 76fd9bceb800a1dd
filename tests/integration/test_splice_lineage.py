"""Row lineage through a splice: what Spark reads of real V3 tables before and after, and what other readers find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.iceberg.manifest_entries import Content, FileEntry
from compactor.manifests.cache import ManifestCache
from compactor.rewrite.parquet.footer import Footer, read_footer
from compactor.rewrite.splice.checks import SpliceLimits
from compactor.rewrite.splice.lineage_chunks import RowLineage
from compactor.rewrite.splice.splice import SpliceInput, splice
from compactor.storage.local_store import LocalByteStore, local_path
from tests.conftest import Lake
from tests.correctness.stage import any_size_splices
from tests.slow import slow

pytestmark = pytest.mark.spark

STORE = LocalByteStore()
ANY_SIZE = SpliceLimits(min_row_group_bytes=0, min_chunk_bytes=0, max_footer_fraction=10.0)
LINEAGE = ("_row_id", "_last_updated_sequence_number")
COLUMNS = ", ".join(("id", "txt", *LINEAGE))
ROWS = 3000


class Table:
    """A V3 table whose files have several row groups each."""

    def __init__(self, lake: Lake, name: str) -> None:
        self.lake, self.name = lake, name

    def create(self, version: int = 3, **more: str) -> None:
        properties = {
            "format-version": str(version),
            "write.merge.mode": "copy-on-write",
            "write.update.mode": "copy-on-write",
            "write.delete.mode": "copy-on-write",
            "write.parquet.row-group-size-bytes": "40000",
            "write.parquet.row-group-check-min-record-count": "100",
            "write.parquet.page-row-limit": "300",
            "commit.manifest-merge.enabled": "false",
        } | more
        text = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
        self.lake.sql(f"CREATE TABLE lake.{self.name} (id BIGINT, txt STRING) TBLPROPERTIES ({text})")

    def append(self, first: int, rows: int = ROWS, files: int = 1) -> None:
        self.lake.sql(
            f"INSERT INTO lake.{self.name} SELECT /*+ REPARTITION({files}) */ "
            f"nullif(id, -1L), nullif(sha1(string(id)), '') FROM range({first}, {first + rows})"
        )

    def merge(self) -> None:
        """Changes some rows, inserts others: written files hold both columns, with nulls."""
        self.lake.sql(
            f"MERGE INTO lake.{self.name} t USING "
            f"(SELECT nullif(id * 7, -1L) AS id, nullif(concat('merged ', id), '') AS txt FROM range(1000)) s "
            "ON t.id = s.id WHEN MATCHED AND t.id % 2 = 0 THEN UPDATE SET txt = s.txt "
            "WHEN NOT MATCHED THEN INSERT *"
        )

    def call(self, procedure: str, **arguments: str) -> None:
        more = "".join(f", {key} => {value}" for key, value in arguments.items())
        self.lake.sql(f"CALL lake.system.{procedure}(table => '{self.name}'{more})")

    def upgrade(self) -> None:
        self.lake.sql(f"ALTER TABLE lake.{self.name} SET TBLPROPERTIES ('format-version'='3')")

    def lineage(self, **options: str) -> list[tuple[Any, ...]]:
        """Every row with its lineage, as Spark reads it."""
        reader = self.lake.session.read.format("iceberg")
        for key, value in options.items():
            reader = reader.option(key.replace("_", "-"), value)
        frame = reader.load(f"lake.{self.name}").selectExpr(*COLUMNS.split(", "))
        if "split_size" in options:
            assert frame.rdd.getNumPartitions() > 3
        return sorted((tuple(row) for row in frame.collect()), key=repr)

    def entries(self, cache: ManifestCache | None = None) -> list[FileEntry]:
        """Live data files in the order of the manifests."""
        view = self.lake.view(self.name)
        cache = ManifestCache(1 << 24) if cache is None else cache
        found = cache.read(view, view.manifests())
        return [entry for entries in found for entry in entries if entry.is_live and entry.content is Content.DATA]

    def splice(self) -> Path:
        """Compact the table; its only file."""
        with any_size_splices():
            self.lake.compact(self.name, force=True, engine="splice")
        self.lake.sql(f"REFRESH TABLE lake.{self.name}")
        (output,) = self.entries()
        return Path(local_path(output.path))


@pytest.fixture
def table(lake: Lake, table_name: str) -> Table:
    return Table(lake, table_name)


def footer_of(path: Path) -> Footer:
    return read_footer(STORE, str(path), path.stat().st_size)


# --- tables as writers leave them ---


def appends(table: Table) -> None:
    table.create()
    for number in range(3):
        table.append(number * 10_000, files=number + 1)


def merged(table: Table) -> None:
    appends(table)
    table.merge()
    table.append(50_000)


def merged_manifests(table: Table) -> None:
    """Manifests that hold existing, deleted and added entries at once."""
    table.create(**{"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"})
    for number in range(4):
        table.append(number * 10_000)
    table.lake.sql(f"DELETE FROM lake.{table.name} WHERE id >= 10000 AND id < 13000")
    table.append(70_000)
    table.merge()


def upgraded_with_merged_manifests(table: Table) -> None:
    table.create(version=2)
    for number in range(3):
        table.append(number * 10_000)
    table.call("rewrite_manifests")
    table.lake.sql(f"DELETE FROM lake.{table.name} WHERE id >= 10000 AND id < 13000")
    table.upgrade()
    table.append(30_000)
    table.merge()


def spliced_before(table: Table) -> None:
    merged(table)
    table.splice()
    table.append(90_000)
    table.merge()
    table.append(95_000)


HISTORIES = [spliced_before, *slow(merged_manifests, upgraded_with_merged_manifests)]


@pytest.mark.parametrize("history", HISTORIES)
def test_every_row_keeps_its_lineage(table: Table, history: Callable[[Table], None]) -> None:
    history(table)
    known = {row.file_path: row.first_row_id for row in table.lake.sql(f"SELECT * FROM lake.{table.name}.files")}
    entries = table.entries()
    assert {entry.path: entry.first_row_id for entry in entries} == known
    assert None not in known.values()
    before = table.lineage()
    assert len({row[2] for row in before}) == len(before) == sum(entry.records for entry in entries)
    assert len(entries) > 1

    output = table.splice()
    assert len(footer_of(output).row_groups) > len(entries)
    check_raw_readers(table, output, before)
    check_footer(output)
    after = table.lineage()
    assert [row[:2] for row in after] == [row[:2] for row in before]
    assert after == before
    assert table.lineage(split_size="1000", file_open_cost="1") == before
    assert table.lineage(vectorization_enabled="false", split_size="4000", file_open_cost="1") == before
    found = table.lake.catalog.load_table(table.name).scan().to_arrow()
    assert sorted(zip(*found.to_pydict().values(), strict=True), key=repr) == [row[:2] for row in before]

    table.merge()
    assert len({row[2] for row in table.lineage()}) == len(table.lineage())


def check_raw_readers(table: Table, output: Path, expected: list[tuple[Any, ...]]) -> None:
    """PyArrow, DuckDB and Spark read the columns of the file itself."""
    found = pq.read_table(output, page_checksum_verification=True)
    assert found.column_names == ["id", "txt", *LINEAGE]
    assert sorted(zip(*found.to_pydict().values(), strict=True), key=repr) == expected
    for prefetch in ("false", "true"):
        connection = duckdb.connect()
        connection.execute(f"DESCRIBE FROM '{output}'")  # loads the extension that has the setting
        connection.execute(f"SET prefetch_all_parquet_files = {prefetch}")
        rows = connection.execute(f"SELECT {COLUMNS} FROM '{output}'").fetchall()
        assert sorted(rows, key=repr) == expected
    some = expected[len(expected) // 2]
    query = f"SELECT {COLUMNS} FROM '{output}' WHERE _row_id = {some[2]}"
    assert duckdb.connect().execute(query).fetchall() == [some]
    frame = table.lake.session.read.parquet(f"file:{output}")
    assert [tuple(row) for row in frame.where(f"_row_id = {some[2]}").collect()] == [some]
    assert spark_rows(table.lake, output, split_bytes=20_000) == expected


def spark_rows(lake: Lake, path: Path, split_bytes: int) -> list[tuple[Any, ...]]:
    """All rows of the file as Spark's own Parquet reader finds them in splits of this size."""
    conf = lake.session.conf
    conf.set("spark.sql.files.maxPartitionBytes", str(split_bytes))
    conf.set("spark.sql.files.openCostInBytes", "0")
    try:
        frame = lake.session.read.parquet(f"file:{path}")
        assert frame.rdd.getNumPartitions() > 3
        return sorted((tuple(row) for row in frame.collect()), key=repr)
    finally:
        conf.unset("spark.sql.files.maxPartitionBytes")
        conf.unset("spark.sql.files.openCostInBytes")


def check_footer(output: Path) -> None:
    """The columns are spelled as Iceberg spells them, and no chunk lacks its indexes."""
    footer = footer_of(output)
    assert [leaf.field_id for leaf in footer.leaves] == [1, 2, 2147483540, 2147483539]
    for group in footer.row_groups:
        assert all(chunk.column_index and chunk.offset_index for chunk in group.chunks)
        assert [chunk.null_count for chunk in group.chunks][2:] == [0, 0]


def test_spark_spells_the_columns_the_same_way(table: Table) -> None:
    merged(table)
    footers = [footer_of(Path(local_path(entry.path))) for entry in table.entries()]
    with_columns = next(footer for footer in footers if len(footer.leaves) == 4)
    ours = footer_of(table.splice())
    assert ours.schema == with_columns.schema
    assert ours.tree.fields[7] == with_columns.tree.fields[7]
    assert ours.key_values == with_columns.key_values


# --- rows that have no ids yet ---


def test_files_from_before_the_upgrade_have_no_lineage(table: Table) -> None:
    cache = ManifestCache(1 << 24)
    table.create(version=2)
    table.append(0)
    table.append(10_000)
    assert {entry.first_row_id for entry in table.entries(cache)} == {None}
    table.upgrade()
    assert {entry.first_row_id for entry in table.entries(cache)} == {None}
    before = table.lineage()
    assert {row[2:] for row in before} == {(None, None)}
    check_raw_readers_of_nulls(table, table.splice())
    after = table.lineage()
    assert [row[:2] for row in after] == [row[:2] for row in before]
    assert len({row[2] for row in after}) == len(after)
    assert {row[3] for row in after} < {2, 3}  # the data sequence number; Iceberg 1.11.0 takes the file's (fixed later)
    assert table.lineage(split_size="1000", file_open_cost="1", vectorization_enabled="false") == after


def check_raw_readers_of_nulls(table: Table, output: Path) -> None:
    rows = [tuple(row) for row in table.lake.session.read.parquet(f"file:{output}").select(*LINEAGE).collect()]
    assert rows == duckdb.connect().execute(f"SELECT {', '.join(LINEAGE)} FROM '{output}'").fetchall()
    assert rows == [(None, None)] * (2 * ROWS)
    assert pq.read_table(output, columns=list(LINEAGE)).to_pylist() == [dict.fromkeys(LINEAGE)] * len(rows)


def test_the_first_commit_after_an_upgrade_gives_known_manifests_their_ids(table: Table) -> None:
    cache = ManifestCache(1 << 24)
    table.create(version=2)
    table.append(0)
    table.append(10_000)
    table.upgrade()
    assert {entry.first_row_id for entry in table.entries(cache)} == {None}
    table.append(20_000)
    found = {entry.path: entry.first_row_id for entry in table.entries(cache)}
    assert sorted(found.values()) == [0, ROWS, 2 * ROWS]
    known = {row.file_path: row.first_row_id for row in table.lake.sql(f"SELECT * FROM lake.{table.name}.files")}
    assert found == known


# --- layout ---


def test_no_row_is_lost_where_lineage_takes_more_bytes_than_the_rows(lake: Lake, tmp_path: Path) -> None:
    """Readers give a row group to the split that holds its middle, reckoned from all its bytes."""
    rows, inputs = 2000, []
    for number in range(6):
        ids = [None if row % 2 else hash((number, row)) % 10**15 for row in range(rows)]
        columns = {"id": [number] * rows, "_row_id": ids}
        schema = pa.schema(
            [
                pa.field(name, pa.int64(), metadata={"PARQUET:field_id": str(field_id)})
                for name, field_id in (("id", 1), ("_row_id", 2147483540))
            ]
        )
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table(columns, schema=schema), path, row_group_size=500, store_schema=False)
        inputs.append(SpliceInput(str(path), path.stat().st_size, RowLineage(10**16 * (number + 1), number)))
    output = tmp_path / "out.parquet"
    spliced = splice(STORE, inputs, str(output), ANY_SIZE)
    assert spliced.lineage_bytes > 5 * spliced.column_sizes[1]
    expected = sorted((tuple(row.values()) for row in pq.read_table(output).to_pylist()), key=repr)
    assert len({row[1] for row in expected}) == len(expected) == 6 * rows
    for split_bytes in (300, 1000, 9000):
        assert spark_rows(lake, output, split_bytes) == expected
