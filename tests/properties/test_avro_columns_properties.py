"""Compiled code reads from Avro records what fastavro wrote; damaged bytes are never followed."""

from __future__ import annotations

import io
import json
import zlib
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor import avro_walk
from compactor.avro_columns import (
    NotSuchRecordsError,
    UnknownTypeError,
    _Records,
    available,
    read_columns,
    without_prefix,
)
from compactor.avro_container import Container, ContainerError, join_containers, open_container
from compactor.avro_walk import find_values

LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)


def items(*kinds: str) -> dict[str, Any]:
    return {"type": "record", "fields": [{"name": f"f{at}", "type": kind} for at, kind in enumerate(kinds)]}


def array(of: Any) -> dict[str, Any]:
    return {"type": "array", "items": of}


PAIRS = st.lists(st.fixed_dictionaries({"f0": INTS, "f1": LONGS}), max_size=80)
BOUNDS = st.lists(st.fixed_dictionaries({"f0": INTS, "f1": st.binary(max_size=200)}), max_size=5)
VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", INTS),
    ("long", LONGS),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("string", st.text(max_size=100)),
    ("bytes", st.binary(max_size=100)),
    ({"type": "fixed", "size": 5}, st.binary(min_size=5, max_size=5)),
]
STATISTICS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (array("long"), st.lists(LONGS, max_size=80)),
    (array("bytes"), st.lists(st.binary(max_size=3), max_size=5)),
    (array(items("int", "long")), PAIRS),
    (array(items("int", "bytes")), BOUNDS),
]


@st.composite
def records(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[str], list[dict[str, Any]]]:
    """Fields, the wanted ones among them, and records."""
    fields, values, wanted = [], {}, []
    for at in range(draw(st.integers(1, 6))):
        name = f"field_{at}"
        kind, of_kind = draw(st.sampled_from([*VALUES, *STATISTICS]))
        nullable = draw(st.sampled_from([None, "first", "last"]))
        fields.append({"name": name, "type": {None: kind, "first": ["null", kind], "last": [kind, "null"]}[nullable]})
        values[name] = st.none() | of_kind if nullable else of_kind
        if (kind, of_kind) in VALUES and draw(st.booleans()):
            wanted.append(name)
    rows = draw(st.lists(st.fixed_dictionaries(values), max_size=4))
    return fields, draw(st.permutations(wanted)), rows


def named(kind: Any, name: str) -> Any:
    """fastavro wants names; the walk does not look at them."""
    if isinstance(kind, list):
        return [named(each, name) for each in kind]
    if isinstance(kind, dict):
        made = {key: named(value, name) if key == "items" else value for key, value in kind.items()}
        return made if kind["type"] == "array" else {**made, "name": name}
    return kind


def written(fields: list[dict[str, Any]], rows: list[dict[str, Any]]) -> bytes:
    schema = {
        "type": "record",
        "name": "entry",
        "fields": [{**field, "type": named(field["type"], f"of_{field['name']}")} for field in fields],
    }
    out = io.BytesIO()
    for row in rows:
        fastavro.schemaless_writer(out, schema, row)
    return out.getvalue()


def blocks(*given_blocks: tuple[int, bytes]) -> Container:
    return Container("", given_blocks)


@given(texts=st.lists(st.text(max_size=30), max_size=8), prefix=st.text(max_size=30), start=st.integers(0, 3))
def test_texts_lose_what_all_begin_with(texts: list[str], prefix: str, start: int) -> None:
    """Also of a part of an array, and where characters take several bytes."""
    whole = pa.array([prefix + text for text in ["", *texts]], pa.string())
    left = without_prefix(whole.slice(start), prefix)
    left.validate(full=True)
    assert left.to_pylist() == ["", *texts][start:]


@given(given_records=records(), cut=st.integers(0, 4))
def test_what_was_written_is_read(given_records: Any, cut: int) -> None:
    """Of the wanted fields, from blocks of one file and from several files."""
    fields, wanted, rows = given_records
    parts = [(len(part), written(fields, part)) for part in (rows[:cut], rows[cut:])]
    expected = [{name: row[name] for name in wanted} for row in rows if wanted]
    assert read_columns(fields, [blocks(*parts)], wanted).to_pylist() == expected
    assert read_columns(fields, [blocks(part) for part in parts], wanted).to_pylist() == expected


@given(given_records=records(), data=st.data())
def test_nothing_is_read_beyond_the_end(given_records: Any, data: st.DataObject) -> None:
    """Damaged bytes: the answer does not depend on what lies behind them, and every value lies before the end."""
    fields, wanted, rows = given_records
    content = bytearray(written(fields, rows))
    for at in data.draw(st.lists(st.integers(0, max(0, len(content) - 1)), max_size=3)):
        if content:
            content[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    content = content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    made = _Records.of(fields, wanted)
    answers = []
    for behind in (0x00, 0xFF):
        source = np.full(len(content) + 64, behind, np.uint8)
        source[: len(content)] = np.frombuffer(bytes(content), np.uint8)
        found = np.full((len(wanted), len(rows)), -2, np.int64)
        there = np.zeros((len(wanted), len(rows)), np.bool_)
        values = np.zeros(len(source), np.uint8)
        filled = find_values(
            source[: len(content)], made.kinds, made.arguments, made.null_branches, made.rows,
            found, there, (0, len(rows)), values, 0,
        )  # fmt: skip
        answers.append((filled, found.tolist(), there.tolist(), values.tolist()))
        assert filled <= len(content)
        assert not values[len(content) :].any()
    assert answers[0] == answers[1]


@given(given_records=records(), moved=st.integers(-2, 2).filter(bool))
def test_a_record_in_the_wrong_block_is_refused(given_records: Any, moved: int) -> None:
    """Two wrong counts that add up would give one manifest's file to another."""
    fields, wanted, rows = given_records
    first, second = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    counts = (len(first) + moved, len(second) - moved)
    parts = zip(counts, (written(fields, first), written(fields, second)), strict=True)
    with pytest.raises(NotSuchRecordsError):
        read_columns(fields, [blocks(part) for part in parts], wanted)


@pytest.mark.parametrize(
    "block",
    [b"", b"\x02", b"\x02\x08abc", b"\x02\x06abc\x00", b"\x02\x07abc", b"\x04\x06abc", b"\x02" + b"\xff" * 12],
    ids=["empty", "half a record", "ends in bytes", "too long", "negative length", "no such branch", "endless number"],
)
def test_what_is_not_such_a_record_is_refused(block: bytes) -> None:
    fields = [{"name": "text", "type": ["null", "string"]}]
    assert read_columns(fields, [blocks((1, b"\x02\x06abc"))], ["text"]).to_pylist() == [{"text": "abc"}]
    with pytest.raises(NotSuchRecordsError):
        read_columns(fields, [blocks((1, block))], ["text"])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", b"\x04\xc3\x28"),
        ("int", b"\x80\x80\x80\x80\x80\x01"),
        ("long", b"\xff" * 11 + b"\x01"),
        ("long", b"\xff" * 9 + b"\x02"),
        ("boolean", b"\x02"),
    ],
    ids=["no text", "larger than an int", "endless", "more than 64 bits", "no boolean"],
)
def test_a_wanted_value_that_is_none_is_refused(kind: str, value: bytes) -> None:
    with pytest.raises((NotSuchRecordsError, ValueError)):
        read_columns([{"name": "one", "type": kind}], [blocks((1, value))], ["one"])


def test_a_block_of_an_array_may_say_its_length() -> None:
    fields = [{"name": "ids", "type": array("int")}, {"name": "n", "type": "int"}]
    ids = b"\x03\x04\x02\x04" + b"\x02\x06" + b"\x00"  # two items in two bytes, one more, the end
    assert read_columns(fields, [blocks((1, ids + b"\x0e"))], ["n"]).to_pylist() == [{"n": 7}]


@pytest.mark.parametrize(
    "kind",
    [
        ["int", "long"],
        ["null", "int", "long"],
        {"type": "map", "values": "int"},
        array(array("int")),
        array(items("bytes", "int")),
        array(items()),
        array(["null", "int"]),
        items("int"),
        "null",
    ],
    ids=["union", "of three", "map", "arrays", "bytes first", "of nothing", "nullable items", "record", "null"],
)
def test_a_type_that_cannot_be_stepped_over_is_named(kind: Any) -> None:
    with pytest.raises(UnknownTypeError):
        read_columns([{"name": "one", "type": kind}], [blocks((0, b""))], [])


@pytest.mark.parametrize("wanted", [[], ["back"]])
def test_a_size_below_nothing_is_refused(wanted: list[str]) -> None:
    """The walk would go back to the same bytes again and again, and write what it finds behind the end."""
    fields = [{"name": "text", "type": "bytes"}, {"name": "back", "type": {"type": "fixed", "size": -8}}]
    with pytest.raises(UnknownTypeError):
        read_columns(fields, [blocks((4, b"\x0eabcdefg"))], ["text", *wanted])
    found, there = np.zeros((1, 4), np.int64), np.zeros((1, 4), np.bool_)
    content, values = np.frombuffer(b"\x0eabcdefg", np.uint8), np.zeros(64, np.uint8)
    kinds, rows = np.array([avro_walk.BYTES, avro_walk.FIXED]), np.array([0, avro_walk.NOT_WANTED])
    never_null = np.full(2, avro_walk.NOT_NULLABLE)
    assert find_values(content, kinds, np.array([0, -8]), never_null, rows, found, there, (0, 4), values, 0) < 0
    assert not values[len(content) :].any()


def test_lists_are_left_to_others_unless_there_are_none() -> None:
    fields = [{"name": "ids", "type": ["null", array("int")]}]
    assert read_columns(fields, [blocks((1, b"\x00"))], ["ids"]).to_pylist() == [{"ids": None}]
    with pytest.raises(UnknownTypeError):
        read_columns(fields, [blocks((1, b"\x02\x02\x02\x00"))], ["ids"])


def test_a_numba_that_does_not_work_is_as_good_as_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert available()
    available.cache_clear()
    monkeypatch.setattr(avro_walk, "find_values", None)
    assert not available()
    assert "does not work here" in caplog.text
    monkeypatch.undo()
    available.cache_clear()


def test_without_a_folder_for_machine_code_it_is_made_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba refuses to keep code where it can write nowhere: a container whose root is read-only."""
    compile_it = avro_walk.njit

    def refusing(*, cache: bool = False, nogil: bool) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return compile_it(nogil=nogil)

    monkeypatch.setattr(avro_walk, "njit", refusing)
    assert avro_walk._compiled(lambda number: number + 1)(1) == 2


@pytest.mark.parametrize("repeated", [1, 100_000])
def test_blocks_are_inflated_whatever_they_become(repeated: int) -> None:
    """Also when they become larger than expected; what is no deflated block is refused."""
    content = b"\x02\x06abc" * repeated
    packer = zlib.compressobj(wbits=-15)
    stored = packer.compress(content) + packer.flush()
    fields = [{"name": "text", "type": ["null", "string"]}]
    container = open_container(avro_file(fields, [(repeated, stored)]))
    assert list(container.blocks()) == [(repeated, content)]
    with pytest.raises(ContainerError):
        list(open_container(avro_file(fields, [(repeated, b"\xff" + stored)])).blocks())


def test_a_number_without_end_is_no_container() -> None:
    with pytest.raises(ContainerError, match="64 bits"):
        open_container(b"Obj\x01" + b"\xff" * 1000)


def avro_file(fields: list[dict[str, Any]], stored: list[tuple[int, bytes]]) -> bytes:
    """A container of blocks that are said to be deflated."""
    plain = join_containers(json.dumps({"type": "record", "name": "r", "fields": fields}), [blocks(*stored)])
    return plain.replace(b"\x08null", b"\x0edeflate", 1)
