"""Find columns of a Parquet file that Iceberg's Spark reader takes for others, or for null. Pure.

Spark matches columns by field id. A file without ids gets them from the table's name mapping; without a mapping, Spark
takes columns by their order. Whether a struct or list is null, it learns from the first column below it. Each case was
seen with Iceberg 1.11, or follows from its code (`ReadConf`, `ParquetValueReaders`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table.name_mapping import MappedField
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from compactor.reasons import Reason, Refusal
from compactor.rewrite.parquet.footer import Footer, SchemaField
from compactor.rewrite.parquet.thrift import BINARY, I32, STRUCT, Struct
from compactor.rewrite.reading.files import without_arrow_schema
from compactor.rewrite.reading.schema import LINEAGE_IDS, RefusedError, refused
from compactor.rewrite.reading.source_columns import SET_A_MAPPING, SourceColumn, check_identified, source_columns

_REPEATED: Final = 2  # FieldRepetitionType
_LOGICAL_COLLECTIONS: Final = frozenset({2, 3})  # LogicalType: MAP, LIST
_CONVERTED_COLLECTIONS: Final = frozenset({1, 3})  # ConvertedType: MAP, LIST


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a file, or a group of columns, with its field id if it has one."""

    field_id: int | None
    children: tuple[_Column, ...] = ()

    def groups(self) -> Iterator[_Column]:
        """This group and all groups below it, the outermost first."""
        if self.children:
            yield self
        for child in self.children:
            yield from child.groups()

    def ids(self) -> Iterator[int]:
        """The field ids below it."""
        for child in self.children:
            if child.field_id is not None:
                yield child.field_id
            yield from child.ids()


class ColumnChecks:
    """Checks files against the columns of one table."""

    def __init__(self, schema: Schema, mapping: Sequence[MappedField] | None) -> None:
        """`schema`: the table's; `mapping`: its name mapping, if it has one."""
        self._schema = schema
        self._mapping = mapping
        fields = index_by_id(schema)
        self._ids = frozenset((*fields, *LINEAGE_IDS))
        self._structs = {
            field_id: field.field_type for field_id, field in fields.items() if isinstance(field.field_type, StructType)
        }
        self._leaves = {field_id: _leaves(struct) for field_id, struct in self._structs.items()}

    def misread(self, location: str, footer: Footer) -> Refusal | None:
        """Why Spark would misread columns of a file; None if it would not."""
        if self._mapping is None and not _identified(footer):
            return Refusal(
                Reason.NO_FIELD_IDS,
                f"{location} has no field ids and the table has no name mapping, so Spark takes the file's columns by "
                f"their order; {SET_A_MAPPING}",
            )
        try:
            columns = self._columns(footer)
        except RefusedError as error:
            return Refusal(error.refusal.reason, f"{error.refusal.sentence} ({location})")
        except pa.ArrowException as error:
            return Refusal(Reason.NOT_SUPPORTED_BY_ARROW, f"columns of {location} have no field ids: {error}")
        return self._same_ids(location, columns) or self._structs_misread(location, columns)

    def misread_if_written_with(self, location: str, schema: Schema) -> Refusal | None:
        """Why Spark would misread a file that Iceberg wrote with an earlier schema; None if it would not."""
        return self._structs_misread(location, _Column(None, tuple(map(_of_field, schema.fields))))

    def _same_ids(self, location: str, columns: _Column) -> Refusal | None:
        """Refuse columns of one struct with the same field id."""
        for group in columns.groups():
            counts = Counter(child.field_id for child in group.children)
            twice = next((each for each, count in counts.items() if count > 1 and each in self._ids), None)
            if twice is not None:
                return Refusal(
                    Reason.DUPLICATE_FIELD_IDS,
                    f"{location} has two columns with field id {twice}: Spark takes the last one",
                )
        return None

    def _structs_misread(self, location: str, columns: _Column) -> Refusal | None:
        """Refuse structs that Spark takes for null, or for present where they are null."""
        for group in columns.groups():
            if group.field_id is None or group.field_id not in self._structs:
                continue
            struct, below = self._structs[group.field_id], frozenset(group.ids())
            name = self._schema.find_column_name(group.field_id)
            if not below & self._leaves[group.field_id]:
                return Refusal(
                    Reason.STRUCT_FIELDS_REPLACED,
                    f"{location} has struct {name}, but none of its columns in the table: Spark reads it as null, and "
                    "a list of such structs as empty",
                )
            default = _default_before(struct, below)
            if default is not None:
                return Refusal(
                    Reason.NESTED_DEFAULT,
                    f"{location} lacks column {name}.{default}, which has a default and stands before the columns of "
                    "the struct that the file has: Spark takes null structs for present ones, and lists of structs for "
                    f"lists of one; move column {default} behind them",
                )
        return None

    def _columns(self, footer: Footer) -> _Column:
        """The columns of a file, with ids by name if it has none.

        Raises:
            RefusedError: `partial_field_ids`; `type_not_supported`: a column is repeated outside lists and maps, or
                Arrow's columns are not the file's.
            ArrowException: Arrow does not know such columns.
        """
        stored = _stored(footer.schema[0], iter(footer.schema[1:]))
        if self._mapping is None or all(map(_has_id, _single(footer))):
            return stored
        if not _identified(footer) and any(SchemaField.FIELD_ID in each.fields for each in footer.schema[1:]):
            raise refused(
                Reason.PARTIAL_FIELD_IDS, "Iceberg's Java code takes negative field ids for those of no field"
            )
        metadata = without_arrow_schema(footer)
        found = source_columns(metadata.schema.to_arrow_schema(), metadata.schema, self._mapping)
        check_identified(found, self._mapping, self._schema.field_ids)
        return _Column(None, tuple(map(_of_source, found)))


# --- the table --------------------------------------------------------------------------------------------------------


def _leaves(struct: StructType) -> frozenset[int]:
    return frozenset(below for below, each in index_by_id(struct).items() if each.field_type.is_primitive)


def _default_before(struct: StructType, below: AbstractSet[int]) -> str | None:
    """The name of a field with a default that stands before the first field of a struct that a file has."""
    for field in struct.fields:
        if field.field_id in below:
            return None
        if field.initial_default is not None:
            return field.name
    return None


def _of_field(field: NestedField) -> _Column:
    return _Column(field.field_id, tuple(map(_of_field, _children(field.field_type))))


def _children(kind: IcebergType) -> Sequence[NestedField]:
    if isinstance(kind, StructType):
        return kind.fields
    if isinstance(kind, ListType):
        return (kind.element_field,)
    return (kind.key_field, kind.value_field) if isinstance(kind, MapType) else ()


# --- a file -----------------------------------------------------------------------------------------------------------


def _of_source(column: SourceColumn) -> _Column:
    return _Column(column.field_id, tuple(map(_of_source, column.children)))


def _stored(group: Struct, elements: Iterator[Struct]) -> _Column:
    """A group with the ids that the file stores. `elements`: those after the group, depth first."""
    children = []
    for _ in range(group.get(SchemaField.NUM_CHILDREN, I32) or 0):
        element = next(elements)
        if _is_repeated(element) and not _is_collection(group):
            name = element.require(SchemaField.NAME, BINARY).decode(errors="replace")
            raise refused(Reason.TYPE_NOT_SUPPORTED, f"column {name} is repeated, but is neither a list nor a map")
        children.append(_stored(element, elements))
    return _Column(group.get(SchemaField.FIELD_ID, I32), tuple(children))


def _identified(footer: Footer) -> bool:
    return any(map(_has_id, _single(footer)))


def _single(footer: Footer) -> Iterator[Struct]:
    """The schema's elements; the groups between a list or map and its elements need no ids."""
    return (each for each in footer.schema[1:] if not _is_repeated(each))


def _has_id(element: Struct) -> bool:
    field_id = element.get(SchemaField.FIELD_ID, I32)
    return field_id is not None and field_id >= 0


def _is_repeated(element: Struct) -> bool:
    return bool(element.get(SchemaField.REPETITION, I32) == _REPEATED)


def _is_collection(group: Struct) -> bool:
    """Whether a group is a list or a map."""
    logical: Struct | None = group.get(SchemaField.LOGICAL_TYPE, STRUCT)
    if logical is not None:
        return not _LOGICAL_COLLECTIONS.isdisjoint(logical.fields)
    return group.get(SchemaField.CONVERTED_TYPE, I32) in _CONVERTED_COLLECTIONS
