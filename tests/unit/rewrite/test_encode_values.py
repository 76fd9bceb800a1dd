"""Values that must survive `encode` bit by bit, in every physical type and encoding, also those of other writers."""

from __future__ import annotations

import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, ListType, NestedField, TimestampType, TimestamptzType

from compactor.errors import GiveUpError
from compactor.rewrite.encode.encode import encode
from tests.unit.rewrite.encode_support import as_input, column, encode_task, encoded, write

DOUBLE_BITS = [0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001, 1 << 63, 0, 1]
FLOAT_BITS = [0x7FC00000, 0x7FC00001, 0xFFC00000, 0x7F800001, 1 << 31, 0, 1]
TEXT_BYTES = [b"\xff\xfe", b"", b"\xed\xa0\x80", b"\x00", "ü€😀".encode(), b"\x80", None]


@pytest.mark.parametrize("repeat", [1, 50])
def test_nan_payloads_signed_zeros_and_invalid_text_survive(tmp_path: Path, repeat: int) -> None:
    doubles = pa.array(np.array(DOUBLE_BITS * repeat, dtype=np.uint64)).view(pa.float64())
    floats = pa.array(np.array(FLOAT_BITS * repeat, dtype=np.uint32)).view(pa.float32())
    raw = pa.array(TEXT_BYTES * repeat, pa.binary())
    arrow = pa.schema([column(name, kind, n) for n, (name, kind) in enumerate(
        [("d", pa.float64()), ("f", pa.float32()), ("t", pa.string()), ("r", pa.binary()), ("b", pa.binary())], 1)]
    )  # fmt: skip
    table = pa.table([doubles, floats, raw.view(pa.string()), raw, raw], schema=arrow)
    inputs = [write(tmp_path / f"{n}.parquet", table, store_schema=bool(n)) for n in range(2)]
    schema = Schema(
        NestedField(1, "d", "double"),
        NestedField(2, "f", "float"),
        NestedField(3, "t", "string"),
        NestedField(4, "r", "string"),  # bytes that the writer did not call text
        NestedField(5, "b", "binary"),
    )
    _, found = encoded(encode_task(tmp_path, schema, inputs))
    assert found["d"].combine_chunks().view(pa.uint64()).to_pylist() == DOUBLE_BITS * repeat * 2
    assert found["f"].combine_chunks().view(pa.uint32()).to_pylist() == FLOAT_BITS * repeat * 2
    for name in ("t", "r", "b"):
        assert found[name].combine_chunks().view(pa.binary()).to_pylist() == TEXT_BYTES * repeat * 2


def test_int96_timestamps_beyond_the_range_of_nanoseconds(tmp_path: Path) -> None:
    micros = [-62135596800000000, -1, 0, 253402300799999999]  # years 1 to 9999
    julian_day, day = 2440588, 86_400_000_000
    path = tmp_path / "1.parquet"
    # Arrow writes INT96 from nanoseconds only, which do not reach so far: write placeholders and set the bytes.
    marks = pa.array([100 + n for n in range(len(micros))], pa.timestamp("us"))
    arrow = pa.schema([column("at", pa.timestamp("us"), 1)])
    options = {"use_deprecated_int96_timestamps": True, "compression": "none", "use_dictionary": False}
    pq.write_table(pa.table([marks], schema=arrow), path, store_schema=False, write_statistics=False, **options)
    data = path.read_bytes()
    for n, value in enumerate(micros):
        placeholder = struct.pack("<qi", (100 + n) * 1000, julian_day)
        assert data.count(placeholder) == 1
        days, of_day = divmod(value, day)
        data = data.replace(placeholder, struct.pack("<qi", of_day * 1000, julian_day + days))
    path.write_bytes(data)
    for kind in (TimestampType(), TimestamptzType()):
        work = encode_task(tmp_path, Schema(NestedField(1, "at", kind)), [as_input(path)])
        _, table = encoded(work)
        assert table["at"].combine_chunks().view(pa.int64()).to_pylist() == micros
        Path(work.output).unlink()


def test_decimals_of_every_physical_type(tmp_path: Path) -> None:
    texts = ["0.00", "-0.01", "9999999.99", "-9999999.99"]
    inputs = []
    for n, (precision, as_integer) in enumerate([(9, True), (9, False), (18, True), (20, False)]):
        arrow = pa.schema([column("d", pa.decimal128(precision, 2), 1)])
        table = pa.table([[Decimal(text) for text in texts]], schema=arrow)
        inputs.append(write(tmp_path / f"{n}.parquet", table, store_decimal_as_integer=as_integer))
    schema = Schema(NestedField(1, "d", "decimal(20, 2)"))
    _, table = encoded(encode_task(tmp_path, schema, inputs))
    assert table["d"].to_pylist() == [Decimal(text) for text in texts] * 4


@pytest.mark.parametrize("precision", [5, 15, 20])
def test_a_decimal_with_more_digits_than_its_type_is_not_cut(tmp_path: Path, precision: int) -> None:
    """A file may have more digits than its type declares: Arrow reads them, but would write only the lower bytes."""
    path = tmp_path / "1.parquet"
    arrow = pa.schema([column("d", pa.decimal128(38, 2), 1)])
    pq.write_table(pa.table([[Decimal(10) ** 33]], schema=arrow), path, store_schema=False, compression="none")
    data = path.read_bytes()
    # DECIMAL(38, 2) as ConvertedType precision and in the LogicalType union: zigzag varint 76 for 38.
    assert data.count(b"\x15\x4c") >= 1
    path.write_bytes(data.replace(b"\x15\x4c", bytes([0x15, precision * 2])))
    assert pq.ParquetFile(path).schema_arrow.field("d").type.precision == precision
    work = encode_task(tmp_path, Schema(NestedField(1, "d", DecimalType(precision, 2))), [as_input(path)])
    with pytest.raises(GiveUpError):
        encode(work)
    assert not Path(work.output).exists()


def test_arrow_types_that_only_a_stored_arrow_schema_asks_for(tmp_path: Path) -> None:
    arrow = pa.schema(
        [
            column("d", pa.dictionary(pa.int32(), pa.string()), 1),
            column("n", pa.duration("us"), 2),
            column("l", pa.large_list(column("element", pa.large_string(), 4)), 3),
            column("t", pa.timestamp("us", "America/New_York"), 5),
            column("v", pa.string_view(), 6),
            column("s", pa.timestamp("s"), 7),
        ]
    )
    row = {"d": "x", "n": 5, "l": ["a", None], "t": 6, "v": "long enough not to be inlined", "s": 7}
    source = write(tmp_path / "1.parquet", pa.Table.from_pylist([row] * 2, schema=arrow), store_schema=True)
    schema = Schema(
        NestedField(1, "d", "string"),
        NestedField(2, "n", "long"),
        NestedField(3, "l", ListType(4, "string", element_required=False)),
        NestedField(5, "t", "timestamptz"),
        NestedField(6, "v", "string"),
        NestedField(7, "s", "timestamp"),
    )
    _, table = encoded(encode_task(tmp_path, schema, [source]))
    assert (
        table.select(["d", "n", "l", "v"]).to_pylist()
        == [{"d": "x", "n": 5, "l": ["a", None], "v": "long enough not to be inlined"}] * 2
    )
    assert table["t"].combine_chunks().view(pa.int64()).to_pylist() == [6, 6]
    assert table["s"].combine_chunks().view(pa.int64()).to_pylist() == [7_000_000] * 2


def test_strings_of_one_schema_in_every_encoding(tmp_path: Path) -> None:
    """Arrow cannot read delta-encoded strings as a dictionary."""
    arrow = pa.schema([column("t", pa.string(), 1)])
    text = [["view", None, "click"][n % 3] for n in range(6000)]
    options: list[dict[str, Any]] = [{}, {"use_dictionary": False}, {"use_dictionary": ["t"], "row_group_size": 500}]
    options += [
        {"use_dictionary": False, "column_encoding": {"t": encoding}}
        for encoding in ("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY")
    ]
    inputs = [
        write(tmp_path / f"{n}.parquet", pa.table([text], schema=arrow), **each) for n, each in enumerate(options)
    ]
    _, found = encoded(encode_task(tmp_path, Schema(NestedField(1, "t", "string")), inputs))
    assert found["t"].to_pylist() == text * len(options)


def test_files_of_other_writers(tmp_path: Path) -> None:
    frame = pl.DataFrame({"id": [1, 2], "text": ["a", None]})
    frame.write_parquet(tmp_path / "polars.parquet")
    duckdb.sql(
        f"COPY (SELECT 3::BIGINT AS id, 'c' AS text) TO '{tmp_path}/duckdb.parquet' "
        "(FORMAT parquet, FIELD_IDS {id: 1, text: 2})"
    )
    inputs = [as_input(tmp_path / "polars.parquet"), as_input(tmp_path / "duckdb.parquet")]
    mapping = json.dumps([{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["text"]}])
    schema = Schema(NestedField(1, "id", "long"), NestedField(2, "text", "string"))
    work = encode_task(tmp_path, schema, inputs, name_mapping_json=mapping)
    encoded(work)
    assert duckdb.sql(f"SELECT id, text FROM '{work.output}'").fetchall() == [(1, "a"), (2, None), (3, "c")]
