"""Strings that `encode` reads as numbers of a dictionary: rows, pages, filters and bounds as of plain strings."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, StructType

from compactor.rewrite import encode_read, encode_write
from compactor.rewrite.byte_ranges import LocalByteStore
from compactor.rewrite.encode import EncodedFile, EncodeInput, encode
from compactor.rewrite.encode_projection import STRINGS
from compactor.rewrite.encode_read import FileReader, open_parquet, tables
from compactor.rewrite.encode_schema import written_schema
from compactor.rewrite.encode_write import RowGroupWriter
from compactor.rewrite.parquet_footer import read_footer
from tests.unit.encode_support import column, deletes, encoded, share, write

KIND = Schema(NestedField(1, "kind", StringType()))
ARROW = pa.schema([column("kind", pa.string(), 1)])
KINDS = ["view", "click", "order", None]
ROW_GROUP = "write.parquet.row-group-size-bytes"


def kinds(rows: int, first: int = 0) -> pa.Table:
    return pa.table([[KINDS[(first + n) % 4] for n in range(rows)]], schema=ARROW)


def read_as(path: Path, schema: Schema = KIND) -> tuple[str, ...]:
    """The columns that are read as dictionaries."""
    reader = FileReader(LocalByteStore(), written_schema(schema, with_lineage=False), {}, None, dictionaries=True)
    file, plan, projection = reader.open(str(path), path.stat().st_size)
    for table in tables(file, str(path), plan.columns):
        found = tuple(field.name for field in table.schema if field.type.equals(STRINGS))
        assert found == plan.dictionaries
        assert projection.apply(table).schema.types == [
            STRINGS if field.name in found else field.type for field in projection.schema
        ]
    return plan.dictionaries


def test_few_values_are_read_as_a_dictionary_many_or_others_are_not(tmp_path: Path) -> None:
    names = ["few", "many", "plain", "number", "nested", "with.dot"]
    text = [KINDS[n % 4] for n in range(2000)]
    arrow = pa.schema([
        column("few", pa.string(), 1), column("many", pa.string(), 2), column("plain", pa.string(), 3),
        column("number", pa.int64(), 4), column("nested", pa.struct([column("few", pa.string(), 6)]), 5),
        column("with.dot", pa.string(), 7),
    ])  # fmt: skip
    values = [
        text,
        [f"{n:040}" for n in range(2000)],
        text,
        [n % 4 for n in range(2000)],
        [{"few": t} for t in text],
        text,
    ]
    dictionaries = ["few", "many", "number", "nested.few", "with.dot"]
    path = tmp_path / "1.parquet"
    source = write(path, pa.table(values, schema=arrow), use_dictionary=dictionaries)
    fields = [
        StringType(),
        StringType(),
        StringType(),
        LongType(),
        StructType(NestedField(6, "few", StringType())),
        StringType(),
    ]
    ids = [1, 2, 3, 4, 5, 7]
    schema = Schema(*[NestedField(n, name, kind) for n, name, kind in zip(ids, names, fields, strict=True)])
    assert read_as(path, schema) == ("few",)
    _, found = encoded(share(tmp_path, schema, [source]))
    assert [found.column(n).to_pylist() for n in range(len(ids))] == values


def test_many_values_that_take_few_bytes_are_no_dictionary(tmp_path: Path) -> None:
    table = pa.table([[f"{'x' * 30}{n:06}" for n in range(20_000)]], schema=ARROW)
    source = write(
        tmp_path / "1.parquet", table, use_dictionary=False, column_encoding={"kind": "DELTA_BYTE_ARRAY"},
    )  # fmt: skip
    chunk = pq.ParquetFile(tmp_path / "1.parquet").metadata.row_group(0).column(0)
    assert chunk.total_uncompressed_size <= encode_read.FEW_BYTES * chunk.num_values
    assert read_as(tmp_path / "1.parquet") == ()
    assert encoded(share(tmp_path, KIND, [source]))[1]["kind"].to_pylist() == table["kind"].to_pylist()


def test_of_two_columns_with_one_name_none_is(tmp_path: Path) -> None:
    arrow = pa.schema([column("kind", pa.string(), 1), column("kind", pa.string(), 2)])
    rows = pa.table([["a"] * 1000, ["b"] * 1000], schema=arrow)
    source = write(tmp_path / "1.parquet", rows)
    schema = Schema(NestedField(1, "one", StringType()), NestedField(2, "two", StringType()))
    assert read_as(tmp_path / "1.parquet", schema) == ()
    _, found = encoded(share(tmp_path, schema, [source]))
    assert found.to_pydict() == {"one": ["a"] * 1000, "two": ["b"] * 1000}


def test_a_file_with_few_values_beside_one_without_a_dictionary_and_one_without_the_column(tmp_path: Path) -> None:
    """In this order and in others, and in row groups of either kind: the first one says what the file's schema is."""
    other = pa.schema([column("other", pa.int64(), 9)])
    inputs = {
        "few": write(tmp_path / "few.parquet", kinds(1000)),
        "renamed": write(tmp_path / "renamed.parquet", kinds(1000, 1).rename_columns(["k"]).cast(
            pa.schema([column("k", pa.string(), 1)]))),
        "plain": write(tmp_path / "plain.parquet", kinds(1000, 2), use_dictionary=False),
        "without": write(tmp_path / "without.parquet", pa.table([range(1000)], schema=other)),
    }  # fmt: skip
    rows = {
        "few": kinds(1000), "renamed": kinds(1000, 1), "plain": kinds(1000, 2),
        "without": pa.table([pa.nulls(1000)], ["kind"]),
    }  # fmt: skip
    assert [read_as(tmp_path / f"{name}.parquet") for name in inputs] == [("kind",), ("k",), (), ()]
    for names in (list(inputs), list(inputs)[::-1], ["few", "plain", "renamed", "without", "plain"][:4]):
        for properties in ((), ((ROW_GROUP, "100"),)):
            work = share(tmp_path, KIND, [inputs[name] for name in names], properties=properties)
            result, found = encoded(work)
            assert result.row_groups == (len(names) if properties else 1)
            assert found["kind"].to_pylist() == [value for name in names for value in rows[name]["kind"].to_pylist()]
            assert result.metrics.value_counts == {1: 4000}
            assert result.metrics.null_value_counts == {1: 1750}
            assert (result.metrics.lower_bounds[1], result.metrics.upper_bounds[1]) == (b"click", b"view")
            Path(work.output).unlink()


def test_pages_dictionary_checksums_and_bloom_filter_are_those_of_plain_strings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = (
        ("write.parquet.bloom-filter-enabled.column.kind", "true"),
        ("write.parquet.page-row-limit", "500"),
    )
    inputs = [write(tmp_path / f"{n}.parquet", kinds(1000, n)) for n in range(4)]
    outputs = []
    for few in (encode_read.FEW_BYTES, 0):
        monkeypatch.setattr(encode_read, "FEW_BYTES", few)
        assert read_as(tmp_path / "0.parquet") == (("kind",) if few else ())
        work = share(tmp_path, KIND, inputs, properties=properties)
        encoded(work)
        store = LocalByteStore()
        (group,) = read_footer(store, work.output, store.size(work.output)).row_groups
        chunk = pq.ParquetFile(work.output).metadata.row_group(0).column(0)
        pages = group.chunks[0].offset_index
        assert pages is not None
        outputs.append((
            sorted(chunk.encodings), chunk.statistics.min, chunk.statistics.max, chunk.statistics.null_count,
            chunk.total_uncompressed_size, bool(group.chunks[0].bloom_offset), pages.length,
        ))  # fmt: skip
        for value, excluded in (("view", False), ("order", False), ("click", False), ("refund", True)):
            probe = f"SELECT bloom_filter_excludes FROM parquet_bloom_probe('{work.output}', 'kind', '{value}')"
            assert duckdb.sql(probe).fetchall() == [(excluded,)]
        (file,) = [open_parquet(store, work.output, store.size(work.output))]
        assert file.read()["kind"].to_pylist() == [v for n in range(4) for v in kinds(1000, n)["kind"].to_pylist()]
        Path(work.output).unlink()
    assert outputs[0] == outputs[1]


def test_bounds_are_of_the_rows_that_are_kept(tmp_path: Path) -> None:
    table = pa.table([["a", "b", "c", "d"] * 500], schema=ARROW)
    path = tmp_path / "1.parquet"
    source = write(path, table)
    assert read_as(path) == ("kind",)
    gone = deletes(tmp_path / "d.parquet", [(str(path), n) for n in range(2000) if n % 4 in {0, 3}])
    source = EncodeInput(source.location, source.size, source.records, position_deletes=(gone,))
    result, found = encoded(share(tmp_path, KIND, [source]))
    assert found["kind"].to_pylist() == ["b", "c"] * 500
    assert (result.metrics.lower_bounds[1], result.metrics.upper_bounds[1]) == (b"b", b"c")
    statistics = pq.ParquetFile(tmp_path / "out.parquet").metadata.row_group(0).column(0).statistics
    assert (statistics.min, statistics.max) == ("b", "c")


def test_a_dictionary_that_outgrows_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file brings values of its own, so their one dictionary has more than a writer may write."""
    monkeypatch.setattr(encode_read, "FEW_BYTES", 1000)
    values = [[f"file {n} value {m % 50:030}" for m in range(1000)] for n in range(20)]
    inputs = [write(tmp_path / f"{n}.parquet", pa.table([own], schema=ARROW)) for n, own in enumerate(values)]
    assert read_as(tmp_path / "0.parquet") == ("kind",)
    result, found = encoded(share(tmp_path, KIND, inputs, properties=(("write.parquet.dict-size-bytes", "5000"),)))
    assert found["kind"].to_pylist() == [value for own in values for value in own]
    assert result.metrics.lower_bounds[1] == b"file 0 value 000"


def test_a_row_group_of_more_text_than_one_array_holds(tmp_path: Path) -> None:
    """2.4 GB written out; an Arrow array of strings ends at 2 GB."""
    rows = pa.table([["x" * 1000, "y" * 1000] * 30_000], schema=ARROW)
    inputs = [write(tmp_path / f"{n}.parquet", rows) for n in range(40)]
    properties = ((ROW_GROUP, str(10**9)), ("write.parquet.dict-encoding-enabled.column.kind", "false"))
    result = encode(share(tmp_path, KIND, inputs, properties=properties))
    assert isinstance(result, EncodedFile)
    assert (result.rows, result.row_groups) == (2_400_000, 1)
    assert result.uncompressed_bytes > 2**31


def test_a_table_of_more_text_than_one_array_holds_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is 1 GiB; 60,000 rows of 50,000 characters are 3 GB and were written so by hand."""
    monkeypatch.setattr(encode_write, "MOST_PLAIN_BYTES", 3000)
    pieces: list[int] = []
    joined = RowGroupWriter._joined
    monkeypatch.setattr(
        RowGroupWriter, "_joined", lambda self: (pieces.extend(t.num_rows for t in self._tables), joined(self))[1]
    )
    values = [f"{n % 3:0100}" for n in range(1000)] + ["long" * 1000] * 2
    source = write(tmp_path / "1.parquet", pa.table([values], schema=ARROW))
    _, found = encoded(share(tmp_path, KIND, [source]))
    assert found["kind"].to_pylist() == values
    assert pieces.count(1) >= 2
    assert max(pieces) <= 30


def test_values_that_hardly_repeat_get_no_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode_read, "FEW_BYTES", 1000)
    values = [[f"{n} {m}" for m in range(1000)] for n in range(3)]
    inputs = [write(tmp_path / f"{n}.parquet", pa.table([own], schema=ARROW)) for n, own in enumerate(values)]
    assert read_as(tmp_path / "0.parquet") == ("kind",)
    _, found = encoded(share(tmp_path, KIND, inputs))
    assert found["kind"].to_pylist() == [value for own in values for value in own]
    assert "RLE_DICTIONARY" not in pq.ParquetFile(tmp_path / "out.parquet").metadata.row_group(0).column(0).encodings


def test_a_stored_arrow_schema_in_the_way_stays_ignored(tmp_path: Path) -> None:
    arrow = pa.schema([column("kind", pa.dictionary(pa.int8(), pa.string()), 1), column("n", pa.duration("s"), 2)])
    kind = pa.array(["a", "b"] * 1000).dictionary_encode().cast(arrow.field(0).type)
    source = write(tmp_path / "1.parquet", pa.table([kind, [1] * 2000], schema=arrow), store_schema=True)
    schema = Schema(NestedField(1, "kind", StringType()), NestedField(2, "n", LongType()))
    assert read_as(tmp_path / "1.parquet", schema) == ("kind",)
    _, found = encoded(share(tmp_path, schema, [source]))
    assert found.to_pydict() == {"kind": ["a", "b"] * 1000, "n": [1] * 2000}


def test_memory_is_counted_as_of_plain_strings(tmp_path: Path) -> None:
    """A writer that gives up a dictionary has to write the strings out."""
    table = pa.table([["x" * 1000, "y" * 3000] * 30_000], schema=ARROW)
    inputs = [write(tmp_path / f"{n}.parquet", table) for n in range(3)]
    assert read_as(tmp_path / "0.parquet") == ("kind",)
    result, _ = encoded(share(tmp_path, KIND, inputs, properties=((ROW_GROUP, "30000000"),)))
    assert result.row_groups == 3


TEXT = st.one_of(st.none(), st.sampled_from(["", "a", "ä€😀", "\x00", "x" * 40]), st.text(max_size=3))


@settings(deadline=None, max_examples=120)
@given(data=st.data())
def test_random_files_are_written_as_their_rows(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode_read, "FEW_BYTES", 1000)
        patch.setattr(encode_read, "TABLE_ROWS", data.draw(st.sampled_from([5, 1000])))
        inputs: list[EncodeInput] = []
        kept: list[Any] = []
        for number in range(data.draw(st.integers(1, 5))):
            pool = data.draw(st.lists(TEXT, min_size=1, max_size=6))
            seed = np.random.default_rng(data.draw(st.integers(0, 1000)))
            own = [pool[at] for at in seed.integers(0, len(pool), data.draw(st.integers(1, 60)))]
            path = Path(folder) / f"{number}.parquet"
            source = write(
                path,
                pa.table([own], schema=ARROW),
                use_dictionary=data.draw(st.booleans()),
                row_group_size=data.draw(st.sampled_from([1, 7, 1000])),
                dictionary_pagesize_limit=data.draw(st.sampled_from([1, 8, 1 << 20])),
                data_page_size=data.draw(st.sampled_from([1, 1 << 20])),
            )
            gone = set(data.draw(st.lists(st.integers(0, len(own) - 1), max_size=5)))
            by_position = (
                (deletes(Path(folder) / f"d{number}", [(str(path), at) for at in sorted(gone)]),) if gone else ()
            )
            inputs.append(EncodeInput(source.location, source.size, source.records, position_deletes=by_position))
            kept += [value for at, value in enumerate(own) if at not in gone]
        properties = (
            (ROW_GROUP, data.draw(st.sampled_from(["1", "300", "1000000"]))),
            ("write.parquet.dict-size-bytes", data.draw(st.sampled_from(["1", "10", "2000000"]))),
            ("write.parquet.dict-encoding-enabled.column.kind", data.draw(st.sampled_from(["true", "false"]))),
            ("write.metadata.metrics.column.kind", "full"),
        )
        work = share(Path(folder), KIND, inputs, properties=properties)
        if not kept:
            return
        result, found = encoded(work)
        assert found["kind"].to_pylist() == kept
        present = sorted(value.encode() for value in kept if value is not None)
        assert result.metrics.null_value_counts == {1: len(kept) - len(present)}
        bounds = [result.metrics.lower_bounds.get(1), result.metrics.upper_bounds.get(1)]
        assert bounds == ([present[0], present[-1]] if present else [None, None])
