"""Delete files that firnline writes, read by its own readers and by PyIceberg. Iceberg's Java: integration tests."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap64

from compactor.rewrite.deletes.deletion_vectors import vector_positions
from compactor.rewrite.deletes.position_deletes import DeleteFile, deleted_positions
from compactor.rewrite.deletes.written_deletes import position_file, vector_file
from compactor.storage.local_store import LocalByteStore

VECTORS = st.dictionaries(st.text(min_size=1), st.sets(st.integers(0, 2**34), min_size=1), min_size=1, max_size=3)


@given(VECTORS)
def test_vectors_are_read_as_they_were_written(vectors: dict[str, set[int]]) -> None:
    made = vector_file({path: BitMap64(positions) for path, positions in vectors.items()})

    class Store(LocalByteStore):
        def read(self, location: str, offset: int, length: int) -> bytes:  # noqa: ARG002 - there is one file
            return made.data[offset : offset + length]

    found = dict(vector_positions(Store(), "vectors", len(made.data), list(vectors)))
    assert {path: set(positions.tolist()) for path, positions in found.items()} == vectors
    if max(map(max, vectors.values())) < 2**32:  # PyIceberg 0.12 fails above
        assert {path: set(each.to_pylist()) for path, each in PuffinFile(made.data).to_vector().items()} == vectors
    for path, (offset, length) in made.blobs.items():
        body = int.from_bytes(made.data[offset : offset + 4], "big")
        assert body + 8 == length
        assert BitMap64.deserialize(made.data[offset + 8 : offset + length - 4]) == BitMap64(vectors[path])


def test_position_deletes_are_read_as_they_were_written(tmp_path: Path) -> None:
    positions = BitMap64([0, 7, 2**33])
    data, metrics = position_file("s3://a/é", positions)
    path = tmp_path / "deletes.parquet"
    path.write_bytes(data)
    delete = DeleteFile(f"file://{path}", len(data))
    found = deleted_positions(LocalByteStore(), {"s3://a/é": [delete], "s3://other": [delete]})
    assert {file: each.tolist() for file, each in found.items()} == {"s3://a/é": [0, 7, 2**33]}
    schema = pq.ParquetFile(path).schema_arrow
    ids = {field.name: field.metadata[b"PARQUET:field_id"] for field in schema}
    assert ids == {"file_path": b"2147483546", "pos": b"2147483545"}
    assert not any(field.nullable for field in schema)
    assert metrics.record_count == 3
    assert metrics.lower_bounds[2147483546] == metrics.upper_bounds[2147483546] == "s3://a/é".encode()
    assert int.from_bytes(metrics.upper_bounds[2147483545], "little") == 2**33


def test_a_position_file_holds_its_path_once_in_memory_too() -> None:
    """Text of 2 GiB and more wraps Arrow's offsets: the rows of a file whose rows are all deleted can have that."""
    path = "s3://b/" + "x" * 20_000
    before, rows = pa.total_allocated_bytes(), 200_000
    peak = pa.default_memory_pool().max_memory()
    data, metrics = position_file(path, BitMap64(range(rows)))
    grown = pa.default_memory_pool().max_memory() - max(peak, before)
    assert grown < 100_000_000, "4 GB of text"
    read = pq.ParquetFile(io.BytesIO(data)).read(columns=["pos"])
    assert (metrics.record_count, read.num_rows) == (rows, rows)
    file = pq.ParquetFile(io.BytesIO(data))
    assert file.schema.column(0).logical_type.type == "STRING"
    assert next(file.iter_batches(batch_size=3, columns=["file_path"])).column(0).to_pylist() == [path] * 3
