"""The compact-protocol codec: fixed bytes from the specification, editing, and damaged input."""

import time

import pytest

from compactor.errors import GiveUpError
from compactor.rewrite.parquet.thrift import (
    BINARY,
    BOOL_TRUE,
    DOUBLE,
    I8,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    Struct,
    ThriftError,
    ThriftList,
    decode_struct,
    encode_struct,
)

KNOWN = [
    ("00", Struct({})),
    ("11 00", Struct({1: (1, True)})),
    ("12 00", Struct({1: (2, False)})),
    ("13 80 00", Struct({1: (I8, -128)})),
    ("14 01 00", Struct({1: (I16, -1)})),
    ("15 ac02 00", Struct({1: (I32, 150)})),
    ("15 ffffffff0f 00", Struct({1: (I32, -(2**31))})),
    ("16 ffffffffffffffffff01 00", Struct({1: (I64, -(2**63))})),
    ("17 000000000000f07f 00", Struct({1: (DOUBLE, bytes.fromhex("000000000000f07f"))})),
    ("18 026869 00", Struct({1: (BINARY, b"hi")})),
    ("f8 00 00", Struct({15: (BINARY, b"")})),
    ("05 20 02 00", Struct({16: (I32, 1)})),
    ("05 feff03 00 00", Struct({32767: (I32, 0)})),
    ("15 02 05 01 02 00", Struct({1: (I32, 1), -1: (I32, 1)})),
    ("19 25 02 04 00", Struct({1: (LIST, ThriftList(I32, [1, 2]))})),
    ("19 31 01 02 00 00", Struct({1: (LIST, ThriftList(BOOL_TRUE, b"\1\2\0"))})),
    ("19 00 00", Struct({1: (LIST, ThriftList(0, []))})),
    ("1c 15 02 00 00", Struct({1: (STRUCT, Struct({1: (I32, 1)}))})),
]


@pytest.mark.parametrize(("spelled", "tree"), KNOWN, ids=[spelled for spelled, _ in KNOWN])
def test_known_bytes_decode_and_encode(spelled: str, tree: Struct) -> None:
    data = bytes.fromhex(spelled)
    assert decode_struct(data) == (tree, len(data))
    assert encode_struct(tree) == data


def test_long_lists_use_the_long_header() -> None:
    tree = Struct({1: (LIST, ThriftList(I64, list(range(15))))})
    data = encode_struct(tree)
    assert data[:3] == bytes([0x19, 0xF6, 15])
    assert decode_struct(data) == (tree, len(data))


def test_a_needlessly_long_field_header_comes_back() -> None:
    data = bytes.fromhex("05 02 02 15 04 00")
    tree, _ = decode_struct(data)
    assert tree == Struct({1: (I32, 1), 2: (I32, 2)})
    assert encode_struct(tree) == data
    assert encode_struct(tree.with_fields({1: (I32, 3)})) == bytes.fromhex("05 02 06 15 04 00")


def test_decoding_starts_at_the_offset_and_stops_at_the_end() -> None:
    assert decode_struct(memoryview(b"xx\x15\x02\x00yy"), 2) == (Struct({1: (I32, 1)}), 5)


def test_fields_keep_their_place_when_changed_and_find_it_when_added() -> None:
    tree = Struct({1: (I32, 1), 5: (I32, 5), 9: (I32, 9)})
    edited = tree.with_fields({5: (I64, 50), 3: (I32, 3), 12: (I32, 12), 0: (I32, 0)}).without(9, 77)
    assert list(edited.fields.items()) == [(0, (I32, 0)), (1, (I32, 1)), (3, (I32, 3)), (5, (I64, 50)), (12, (I32, 12))]
    assert list(tree.fields) == [1, 5, 9]
    assert Struct({}).with_fields({4: (I32, 4)}).fields == {4: (I32, 4)}


def test_looking_at_fields_checks_their_type() -> None:
    tree = Struct({1: (I32, 7), 2: (LIST, ThriftList(I32, [1])), 3: (LIST, ThriftList(0, []))})
    assert tree.get(1) == tree.get(1, I32, I64) == tree.require(1, I32) == 7
    assert tree.get(9) is None
    assert list(tree.elements(2, I32)) == [1]
    assert list(tree.elements(3, STRUCT)) == list(tree.elements(9, STRUCT)) == []
    for wrong in (lambda: tree.get(1, I64), lambda: tree.require(9), lambda: tree.elements(2, STRUCT)):
        with pytest.raises(ThriftError):
            wrong()


MALFORMED = {
    "nothing": "",
    "no stop": "15 02",
    "cut varint": "15 80",
    "cut binary": "18 05 6162",
    "cut double": "17 0000",
    "a set": "1a 18 01 61 00",
    "a map": "1b 00 00",
    "a uuid": "1d" + "00" * 16 + "00",
    "cut list": "19 35 02",
    "unknown type 14": "1e 00",
    "type 0 with a delta": "10 00",
    "unknown element type": "19 1e 00 00",
    "padded varint": "15 8000 00",
    "varint beyond 64 bits": "16 ffffffffffffffffff7f 00",
    "endless varint": "16" + "ff" * 40,
    "i16 beyond 16 bits": "14 808004 00",
    "i32 beyond 32 bits": "15 8080808010 00",
    "short list with long header": "19 f5 01 02 00",
    "field twice": "15 02 05 02 02 00",
    "binary of 2^60 bytes": "18 808080808080808010 00",
    "list of 2^60 elements": "19 fc 808080808080808010 00",
    "list of 2^60 booleans": "19 f1 808080808080808010 00",
}


@pytest.mark.parametrize("spelled", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_bytes_are_refused(spelled: str) -> None:
    with pytest.raises(ThriftError) as caught:
        decode_struct(bytes.fromhex(spelled))
    assert caught.value.reason == "unreadable_footer"
    assert isinstance(caught.value, GiveUpError)


@pytest.mark.parametrize("opening", [b"\x1c", b"\x19\x19"], ids=["structs", "lists"])
def test_nesting_bombs_are_refused_quickly(opening: bytes) -> None:
    started = time.perf_counter()
    with pytest.raises(ThriftError):
        decode_struct(opening * 1_000_000)
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize("offset", [-1, 4])
def test_offsets_outside_the_bytes_are_refused(offset: int) -> None:
    with pytest.raises(ThriftError, match="outside"):
        decode_struct(b"\0\0\0", offset)


UNWRITABLE = [
    (I8, 128),
    (I16, 32768),
    (I32, 2**31),
    (I32, -(2**31) - 1),
    (I64, 2**63),
    (I32, "text"),
    (I64, None),
    (DOUBLE, b"short"),
    (BINARY, 5),
    (LIST, [1]),
    (STRUCT, {}),
    (0, 1),
    (15, 1),
    (LIST, ThriftList(I32, [b"x"])),
]


@pytest.mark.parametrize("field", UNWRITABLE, ids=repr)
def test_values_that_do_not_fit_their_type_are_refused(field: tuple[int, object]) -> None:
    with pytest.raises(ThriftError):
        encode_struct(Struct({1: field}))


def test_field_ids_are_sixteen_bits() -> None:
    with pytest.raises(ThriftError):
        encode_struct(Struct({32768: (I32, 1)}))


def test_a_struct_that_holds_itself_is_refused() -> None:
    fields: dict[int, tuple[int, object]] = {}
    fields[1] = (STRUCT, Struct(fields))
    with pytest.raises(ThriftError):
        encode_struct(Struct(fields))


def test_a_footer_of_ten_columns_decodes_in_about_a_millisecond() -> None:
    statistics = Struct({3: (I64, 0), 5: (BINARY, b"z" * 8), 6: (BINARY, b"a" * 8), 7: (BOOL_TRUE, True)})
    pages = ThriftList(STRUCT, [Struct({1: (I32, 0), 2: (I32, 0), 3: (I32, 1)})] * 2)
    column = Struct(
        {number: (I64, number * 10**6) for number in range(4, 12)}
        | {12: (STRUCT, statistics), 13: (LIST, pages), 14: (I64, 10**8), 15: (I32, 10**4)}
    )
    chunk = Struct({2: (I64, 0), 3: (STRUCT, column), 4: (I64, 1), 5: (I32, 1), 6: (I64, 1), 7: (I32, 1)})
    group = Struct({1: (LIST, ThriftList(STRUCT, [chunk] * 10)), 2: (I64, 1), 3: (I64, 1), 7: (I16, 0)})
    data = encode_struct(Struct({1: (I32, 1), 3: (I64, 1), 4: (LIST, ThriftList(STRUCT, [group]))}))
    best = min(_seconds(data) for _ in range(20))
    assert best < 0.005  # about 0.0005 s on a laptop; the bound allows for a busy machine


def _seconds(data: bytes) -> float:
    started = time.perf_counter()
    decode_struct(data)
    return time.perf_counter() - started
