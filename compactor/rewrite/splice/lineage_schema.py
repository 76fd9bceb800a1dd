"""Footers with and without Iceberg's two row-lineage columns.

Every row of a V3 table has a `_row_id` and a `_last_updated_sequence_number`. A file may store them as columns with
reserved field ids; missing or null values are inherited from the manifest entry (Iceberg spec: row lineage). Files that
differ only in these columns can be spliced: they are compared and joined without the columns, and the joined file gets
both, last in its schema, as Iceberg Java writes them.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from compactor.reasons import Reason, Refusal
from compactor.rewrite.parquet.footer import (
    ColumnChunk,
    ColumnField,
    FileField,
    Footer,
    GroupField,
    RowGroup,
    SchemaField,
)
from compactor.rewrite.parquet.thrift import BINARY, I32, I64, STRUCT, Field, Struct, ThriftError, structs

ROW_ID: Final = 2147483540
LAST_UPDATED: Final = 2147483539
LINEAGE_NAMES: Final = {ROW_ID: "_row_id", LAST_UPDATED: "_last_updated_sequence_number"}
INT64_TYPE: Final = 2  # Parquet's Type.INT64
REQUIRED: Final = 0  # FieldRepetitionType
OPTIONAL: Final = 1

LINEAGE_ELEMENTS: Final = {
    field_id: Struct(
        {
            SchemaField.TYPE: (I32, INT64_TYPE),
            SchemaField.REPETITION: (I32, OPTIONAL),
            SchemaField.NAME: (BINARY, name.encode()),
            SchemaField.FIELD_ID: (I32, field_id),
        }
    )
    for field_id, name in LINEAGE_NAMES.items()
}
"""The columns' schema elements in the order of the output's schema."""

_SIGNED_ORDER: Final = Struct({1: (STRUCT, Struct({}))})  # ColumnOrder.TYPE_ORDER
_ICEBERG_SCHEMA: Final = b"iceberg.schema"
_ARROW_SCHEMA: Final = b"ARROW:schema"
_KEY: Final = 1  # KeyValue.key
_VALUE: Final = 2  # KeyValue.value


@dataclass(frozen=True, slots=True)
class _Column:
    """A child of the schema's root: half-open ranges of the positions of its elements and its leaves."""

    element: Struct
    elements: range
    leaves: range


def _columns(footer: Footer) -> Iterator[_Column]:
    """The root's children; ThriftError if the schema is not a tree."""
    _ = footer.leaves
    elements, position, leaf = footer.schema, 1, 0
    while position < len(elements):
        start, first_leaf, missing = position, leaf, 1
        while missing:
            element = elements[position]
            is_leaf = SchemaField.TYPE in element.fields
            missing += (0 if is_leaf else max(0, element.get(SchemaField.NUM_CHILDREN, I32) or 0)) - 1
            leaf += is_leaf
            position += 1
        yield _Column(elements[start], range(start, position), range(first_leaf, leaf))


def lineage_leaves(footer: Footer) -> dict[int, int]:
    """Positions of the file's lineage columns among its leaves, by field id."""
    return {leaf.field_id: position for position, leaf in enumerate(footer.leaves) if leaf.field_id in LINEAGE_ELEMENTS}


def lineage_element(footer: Footer, field_id: int) -> Struct | None:
    """The file's schema element of a lineage column."""
    return next((column.element for column in _columns(footer) if _field_id(column.element) == field_id), None)


def _field_id(element: Struct) -> int | None:
    found: int | None = element.get(SchemaField.FIELD_ID, I32)
    return found


def misused_lineage(footer: Footer) -> Refusal | None:
    """Why a column cannot be distinguished from row lineage, or why the file's lineage columns are invalid."""
    seen: set[int] = set()
    names = {name.encode() for name in LINEAGE_NAMES.values()}
    for column in _columns(footer):
        element = column.element
        field_id, name = _field_id(element), element.require(SchemaField.NAME, BINARY)
        if field_id not in LINEAGE_ELEMENTS:
            if name.lower() in names:
                return Refusal(
                    Reason.RESERVED_COLUMN_NAME, f"Column {name.decode()} has a name that is reserved for row lineage."
                )
            continue
        repetition = element.get(SchemaField.REPETITION, I32)
        if (
            field_id in seen
            or element.get(SchemaField.TYPE, I32) != INT64_TYPE
            or repetition not in {REQUIRED, OPTIONAL}
        ):
            return Refusal(Reason.MALFORMED_LINEAGE, f"Field {field_id} is not one column of 64-bit integers.")
        seen.add(field_id)
    nested = sum(_field_id(element) in LINEAGE_ELEMENTS for element in footer.schema) - len(seen)
    if nested:
        return Refusal(Reason.MALFORMED_LINEAGE, "A reserved field id of row lineage lies inside another column.")
    return None


# --- taking the columns out ---


def without_lineage(footer: Footer) -> Footer:
    """The footer without the lineage columns. Sizes and offsets of the file do not change.

    Its row groups must match its schema, and `misused_lineage` must return None.
    """
    removed = [column for column in _columns(footer) if _field_id(column.element) in LINEAGE_ELEMENTS]
    names = {column.element.require(SchemaField.NAME, BINARY).decode(errors="replace") for column in removed}
    tree = _with_arrow_schema(footer.tree, lambda fields: [field for field in fields if field.name not in names])
    if not removed:
        return replace(footer, tree=tree)
    gone = {position for column in removed for position in column.elements}
    leaves = {position for column in removed for position in column.leaves}
    kept = [element for position, element in enumerate(footer.schema) if position not in gone]
    groups = [_group_without(group, leaves) for group in footer.row_groups]
    changes = {
        FileField.SCHEMA: structs(_with_children(kept, -len(removed))),
        FileField.ROW_GROUPS: structs(groups),
    }
    orders = tree.elements(FileField.COLUMN_ORDERS, STRUCT)
    if orders:
        changes[FileField.COLUMN_ORDERS] = structs(_without(orders, leaves))
    return replace(footer, tree=tree.with_fields(changes))


def _group_without(group: RowGroup, leaves: set[int]) -> Struct:
    chunks = group.tree.elements(GroupField.COLUMNS, STRUCT)
    removed = [ColumnChunk(chunk) for position, chunk in enumerate(chunks) if position in leaves]
    changes = {GroupField.COLUMNS: structs(_without(chunks, leaves))} | group_sizes(group.tree, removed, -1)
    tree = group.tree.with_fields(changes)
    sorting = group.tree.elements(GroupField.SORTING_COLUMNS, STRUCT)
    return tree.with_fields({GroupField.SORTING_COLUMNS: structs(_sorting(sorting, leaves))}) if sorting else tree


def _sorting(sorting: Sequence[Struct], leaves: set[int]) -> list[Struct]:
    """SortingColumns name leaves by position. Columns after a removed column do not order rows by themselves."""
    kept: list[Struct] = []
    for column in sorting:
        position = column.require(1, I32)
        if position in leaves:
            break
        kept.append(column.with_fields({1: (I32, position - sum(leaf < position for leaf in leaves))}))
    return kept


def group_sizes(group: Struct, chunks: Sequence[ColumnChunk], sign: int) -> dict[int, Field]:
    """The row group's byte counts after the chunks are added (`sign` 1) or removed (-1)."""
    sizes = {
        GroupField.TOTAL_BYTE_SIZE: sum(chunk.metadata.require(ColumnField.UNCOMPRESSED_SIZE, I64) for chunk in chunks),
        GroupField.TOTAL_COMPRESSED_SIZE: sum(chunk.compressed_size for chunk in chunks),
    }
    before = {field_id: group.get(field_id, I64) for field_id in sizes}
    return {
        field_id: (I64, max(0, before[field_id] + sign * size))
        for field_id, size in sizes.items()
        if before[field_id] is not None
    }


# --- putting the columns in ---


def with_lineage(head: Struct) -> Struct:
    """FileMetaData of a file without lineage columns, with both added to its schema."""
    elements = [*head.elements(FileField.SCHEMA, STRUCT), *LINEAGE_ELEMENTS.values()]
    changes = {FileField.SCHEMA: structs(_with_children(elements, len(LINEAGE_ELEMENTS)))}
    orders = head.elements(FileField.COLUMN_ORDERS, STRUCT)
    if orders:
        changes[FileField.COLUMN_ORDERS] = structs([*orders, *(_SIGNED_ORDER for _ in LINEAGE_ELEMENTS)])
    tree = _with_value(head.with_fields(changes), _ICEBERG_SCHEMA, _iceberg_with_lineage)
    return _with_arrow_schema(tree, lambda fields: [*fields, *arrow_fields(LINEAGE_NAMES)])


def _iceberg_with_lineage(value: bytes) -> bytes:
    """The Iceberg schema's JSON with the columns added, as Iceberg Java writes it for files with lineage."""
    try:
        schema = json.loads(value)
        fields = [field for field in schema["fields"] if field["id"] not in LINEAGE_NAMES]
    except (ValueError, TypeError, LookupError):
        return value  # not a schema: readers ignore it
    added = [{"id": number, "name": name, "required": False, "type": "long"} for number, name in LINEAGE_NAMES.items()]
    return json.dumps({**schema, "fields": fields + added}, separators=(",", ":")).encode()


def _with_arrow_schema(tree: Struct, edit: Callable[[pa.Schema], list[pa.Field]]) -> Struct:
    """The tree with the stored Arrow schema's fields edited. PyArrow ignores one that does not list every column."""

    def edited(value: bytes) -> bytes:
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value, validate=True)))
            edited_schema = pa.schema(edit(schema), metadata=schema.metadata)
            return base64.b64encode(edited_schema.serialize().to_pybytes())
        except (binascii.Error, pa.ArrowException, ValueError, OSError):
            return value  # invalid: no reader can use it

    return _with_value(tree, _ARROW_SCHEMA, edited)


def arrow_fields(field_ids: Iterable[int]) -> list[pa.Field]:
    """The lineage columns as Arrow fields with their field ids."""
    return [
        pa.field(LINEAGE_NAMES[field_id], pa.int64(), metadata={"PARQUET:field_id": str(field_id)})
        for field_id in field_ids
    ]


# --- Thrift ---


def _with_value(tree: Struct, key: bytes, edit: Callable[[bytes], bytes]) -> Struct:
    pairs = list(tree.elements(FileField.KEY_VALUES, STRUCT))
    if all(pair.get(_KEY) != key for pair in pairs):
        return tree
    for position, pair in enumerate(pairs):
        value = pair.get(_VALUE, BINARY)
        if pair.get(_KEY) == key and value is not None:
            pairs[position] = pair.with_fields({_VALUE: (BINARY, edit(value))})
    return tree.with_fields({FileField.KEY_VALUES: structs(pairs)})


def _with_children(elements: list[Struct], change: int) -> list[Struct]:
    """Schema elements with the root's number of children changed."""
    if not elements:
        raise ThriftError("The Parquet schema has no root.")
    children = elements[0].get(SchemaField.NUM_CHILDREN, I32) or 0
    return [elements[0].with_fields({SchemaField.NUM_CHILDREN: (I32, children + change)}), *elements[1:]]


def _without(values: Sequence[Struct], positions: set[int]) -> list[Struct]:
    return [value for position, value in enumerate(values) if position not in positions]
