"""What others have left in a table against the table format's rules: a rewrite makes none of it worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compactor.errors import GiveUpError
from compactor.locations import plain_path
from compactor.spark import planned_tasks
from tests.conftest import Lake
from tests.correctness.java_writers import JavaWriter
from tests.integration.table_kit import (
    append_rows,
    create,
    data_files,
    engines,
    insert,
    java_table,
    upgrade,
)

pytestmark = pytest.mark.spark


def delete_position(lake: Lake, table: str, path: str, position: int, partition: str | None = None) -> None:
    """A V2 position delete file for one row, said to be of a partition of the writer's choice."""
    writer = JavaWriter(lake, table)
    iceberg, spec = writer.iceberg, writer.table.spec()
    place = iceberg.PartitionData(spec.partitionType())
    if partition is not None:
        place.set(0, partition)
    kind = writer._format("parquet")
    factory = writer._factory().deleteFileFormat(kind).build()
    deletes = factory.newPositionDeleteWriter(writer._output(kind, spec, place), spec, place)
    deletes.write(iceberg.deletes.PositionDelete.create().set(path, position))
    deletes.close()
    writer.table.newRowDelta().addDeletes(deletes.toDeleteFile()).commit()
    lake.sql(f"REFRESH TABLE lake.{table}")


def add_vector(lake: Lake, table: str, path: str, position: int, partition: str | None = None) -> None:
    """A deletion vector for one row, without the deletes that the file had before, said to be of this partition."""
    writer = JavaWriter(lake, table)
    iceberg, loaded = writer.iceberg, writer.table
    outputs = iceberg.io.OutputFileFactory.builderFor(loaded, 1, 1).format(writer._format("puffin")).build()
    vectors = iceberg.deletes.BaseDVFileWriter(outputs, writer._lookup(writer.jvm.java.util.HashMap()))
    place = iceberg.PartitionData(loaded.spec().partitionType())
    if partition is not None:
        place.set(0, partition)
    vectors.delete(path, position, loaded.spec(), place)
    vectors.close()
    commit = loaded.newRowDelta()
    for file in vectors.result().deleteFiles():
        commit.addDeletes(file)
    commit.commit()
    lake.sql(f"REFRESH TABLE lake.{table}")


def with_a_stray_delete(lake: Lake, table: str, version: int) -> None:
    """A table with a sort order. Two files of partition p0, one of p1, and a delete of the one that names the other."""
    create(lake, table, by="PARTITIONED BY (a)")
    lake.sql(f"ALTER TABLE lake.{table} WRITE ORDERED BY k")
    insert(lake, table)
    append_rows(lake, table, [(10, "p0", 10), (12, "p0", 12)])
    path = next(path for path in lake.live_files(table) if "a=p0" in path)
    if version == 3:
        upgrade(lake, table)
    delete = add_vector if version == 3 else delete_position
    delete(lake, table, path, 1, "p1")
    assert len(lake.rows(table)) == 11


@pytest.mark.parametrize("version", [2, 3])
def test_the_spark_engine_applies_a_delete_of_another_partition_than_the_due_one(
    lake: Lake, table_name: str, version: int
) -> None:
    """A scan that a filter restricts to the due partition does not list it."""
    with_a_stray_delete(lake, table_name, version)
    rows = lake.rows(table_name)
    result = lake.compact(table_name, force=True)
    assert engines(result) == {("spark", "sorted")}
    assert [group.rewritten.rows_deleted for group in result.groups] == [1]
    assert lake.rows(table_name) == rows
    assert data_files(lake, table_name) == 2
    assert lake.sql(f"SELECT file_path FROM lake.{table_name}.delete_files") == []


def test_nothing_is_rewritten_where_icebergs_scan_overlooks_a_delete(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_stray_delete(lake, table_name, 2)
    rows, head = lake.rows(table_name), head_of(lake, table_name)
    monkeypatch.setattr(planned_tasks, "has_stray", lambda _file: False)
    with pytest.raises(GiveUpError, match="would bring deleted rows back") as error:
        lake.compact(table_name, force=True)
    assert error.value.reason == "plans_differ"
    assert head_of(lake, table_name) == head
    assert lake.rows(table_name) == rows


@pytest.mark.parametrize("engine", ["encode", "spark"])
def test_a_deletion_vector_takes_the_place_of_older_position_deletes(lake: Lake, table_name: str, engine: str) -> None:
    """Writers must merge them into it (spec); of one that has not, readers bring the older deletes' rows back."""
    create(lake, table_name, commits=3)
    path = lake.live_files(table_name)[0]
    delete_position(lake, table_name, path, 7)
    upgrade(lake, table_name)
    add_vector(lake, table_name, path, 2)
    rows = lake.rows(table_name)
    assert len(rows) == 29
    lake.compact(table_name, force=True, engine=engine)
    assert lake.rows(table_name) == rows
    assert data_files(lake, table_name) == 1
    assert lake.sql(f"SELECT file_path FROM lake.{table_name}.delete_files") == []


@pytest.mark.parametrize("engine", ["encode", "spark"])
def test_a_damaged_page_is_not_written_anew_as_if_it_were_sound(lake: Lake, table_name: str, engine: str) -> None:
    """Parquet's Java reader does not look at the checksums of pages unless it is told to."""
    create(lake, table_name, properties="'write.parquet.compression-codec'='uncompressed'")
    for _ in range(3):
        lake.sql(f"INSERT INTO lake.{table_name} SELECT /*+ COALESCE(1) */ id * 7919, 'x', id FROM range(5000)")
    path = Path(plain_path(lake.live_files(table_name)[0]))
    content = bytearray(path.read_bytes())
    content[content.index((2500 * 7919).to_bytes(4, "little"))] ^= 1
    path.write_bytes(content)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's own, of local files
    head = head_of(lake, table_name)
    with pytest.raises(GiveUpError) as error:
        lake.compact(table_name, force=True, engine=engine)
    assert error.value.reason == ("corrupt_page" if engine == "encode" else "unexpected")
    assert head_of(lake, table_name) == head


def head_of(lake: Lake, table: str) -> Any:
    return java_table(lake, table).currentSnapshot().snapshotId()
