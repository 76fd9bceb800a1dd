"""Whatever tree is written comes back, and whatever bytes decode are written back unchanged."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from compactor.rewrite.parquet.thrift import (
    BINARY,
    BOOL_FALSE,
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


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


SCALARS: dict[int, st.SearchStrategy[Any]] = {
    I8: signed(8),
    I16: signed(16),
    I32: signed(32),
    I64: signed(64),
    DOUBLE: st.binary(min_size=8, max_size=8),
    BINARY: st.binary(max_size=40),
}
FIELD_IDS = st.one_of(st.integers(1, 40), signed(16))


def lists_of(structs: st.SearchStrategy[Struct]) -> st.SearchStrategy[Any]:
    choices = [
        st.lists(values, max_size=20).map(lambda found, kind=kind: (LIST, ThriftList(kind, found)))
        for kind, values in SCALARS.items()
    ]
    choices.append(st.binary(max_size=20).map(lambda found: (LIST, ThriftList(BOOL_TRUE, found))))
    choices.append(st.lists(structs, max_size=4).map(lambda found: (LIST, ThriftList(STRUCT, found))))
    nested = st.lists(st.lists(signed(32), max_size=3).map(lambda found: ThriftList(I32, found)), max_size=3)
    choices.append(nested.map(lambda found: (LIST, ThriftList(LIST, found))))
    return st.one_of(choices)


def structs_of(inner: st.SearchStrategy[Struct]) -> st.SearchStrategy[Struct]:
    fields = st.one_of(
        st.sampled_from([(BOOL_TRUE, True), (BOOL_FALSE, False)]),
        *(values.map(lambda found, kind=kind: (kind, found)) for kind, values in SCALARS.items()),
        inner.map(lambda found: (STRUCT, found)),
        lists_of(inner),
    )
    return st.dictionaries(FIELD_IDS, fields, max_size=6).map(Struct)


STRUCTS = st.recursive(st.just(Struct({})), structs_of, max_leaves=12)


@given(STRUCTS)
def test_trees_come_back_in_order(tree: Struct) -> None:
    data = encode_struct(tree)
    found, end = decode_struct(data)
    assert end == len(data)
    assert found == tree
    assert list(found.fields) == list(tree.fields)
    assert encode_struct(found) == data


@given(STRUCTS, st.binary(max_size=8), st.binary(max_size=8))
def test_surrounding_bytes_do_not_matter(tree: Struct, before: bytes, after: bytes) -> None:
    data = encode_struct(tree)
    assert decode_struct(before + data + after, len(before)) == (tree, len(before) + len(data))


@given(STRUCTS, st.data())
def test_truncated_trees_are_refused(tree: Struct, data: st.DataObject) -> None:
    encoded = encode_struct(tree)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    try:
        decode_struct(encoded[:cut])
    except ThriftError:
        return
    raise AssertionError(cut)


@given(st.binary(max_size=200))
@example(bytes.fromhex("05 02 02 15 04 00"))
@example(b"\x19\xf1\x0f" + b"\2" * 15 + b"\0")
def test_bytes_decode_and_come_back_or_are_refused(data: bytes) -> None:
    try:
        tree, end = decode_struct(data)
    except ThriftError:
        return
    assert encode_struct(tree) == data[:end]


@given(STRUCTS, st.data())
def test_damaged_trees_come_back_or_are_refused(tree: Struct, data: st.DataObject) -> None:
    encoded = bytearray(encode_struct(tree))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        found, end = decode_struct(bytes(encoded))
    except ThriftError:
        return
    assert encode_struct(found) == encoded[:end]


@given(STRUCTS, FIELD_IDS, signed(64))
def test_editing_leaves_the_other_fields_alone(tree: Struct, field_id: int, value: int) -> None:
    edited = tree.with_fields({field_id: (I64, value)})
    others = [pair for pair in tree.fields.items() if pair[0] != field_id]
    assert [pair for pair in edited.fields.items() if pair[0] != field_id] == others
    assert decode_struct(encode_struct(edited))[0].get(field_id, I64) == value
    assert list(edited.without(field_id).fields.items()) == others
