"""Detect, from metadata alone, files that Iceberg's Spark reader misreads, or its writer would write wrongly. Pure.

Spark would write every row as it read it, so that no row count reveals the change. Each case was observed with Iceberg
1.11, or follows from its code. `rewrite/tasks/spark_checks.py` detects cases that only the files show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from pyiceberg.schema import make_compatible_name
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import FixedType, IcebergType, ListType, MapType, NestedField, StructType

from compactor.iceberg.tables import TableView
from compactor.manifests.live_files import LiveFile, deletes_of
from compactor.partitions import PartitionKey
from compactor.reasons import Reason, Refusal

PARQUET: Final = "parquet"
ORC: Final = "orc"
WRITTEN_FORMAT: Final = "write.format.default"


def misread(table: TableView, key: PartitionKey, files: Sequence[LiveFile]) -> Refusal | None:
    """Why Spark would misread the files, by the partition's source column, by row ids, by types or by the columns that
    deletes compare, or write columns wrongly, by their names; None if it would not.
    """
    field = _nullable_partition_source(table, key.spec_id)
    if field is not None:
        return Refusal(
            Reason.NESTED_PARTITION_SOURCE,
            f"partition field {field} is a column of a struct that may be null: Spark reads that null as a struct of "
            "nulls, and would write it so",
        )
    written = table.properties.get(WRITTEN_FORMAT, PARQUET).strip().lower()
    twice = _same_name(table.metadata.schema().as_struct()) if written == PARQUET else None
    if twice is not None:
        return Refusal(
            Reason.COLUMN_NAMES_COLLIDE,
            f"two columns have the name {twice} in Parquet, and Spark would write both into one; rename one of them",
        )
    with_ids = [file.entry for file in files if file.entry.first_row_id is not None]
    if with_ids and (written == ORC or any(entry.file_format == ORC for entry in with_ids)):
        return Refusal(Reason.ORC_ROW_IDS, "rows in ORC have ids, which Spark does not read: they would get new ones")
    columns = table.metadata.schema()._lazy_id_to_field  # noqa: SLF001 - find_field raises per miss
    unreadable = next(filter(_is_geospatial, columns.values()), None)
    if unreadable is not None:
        return Refusal(
            Reason.TYPE_NOT_SUPPORTED,
            f"column {unreadable.name} has type {unreadable.field_type}, which Spark cannot read: such files are only "
            "copied, where their row groups are large enough",
        )
    fixed = _compared_fixed(columns, files)
    if fixed is not None:
        return Refusal(
            Reason.EQUALITY_DELETES,
            f"equality deletes compare column {fixed} of type fixed: Iceberg's reader takes the last value of a delete "
            "file for all of them, and deleted rows would come back; convert these deletes first (`firnline convert`)",
        )
    return None


def _is_geospatial(field: NestedField) -> bool:
    return str(field.field_type).startswith(("geometry", "geography"))


def _compared_fixed(columns: Mapping[int, NestedField], files: Sequence[LiveFile]) -> str | None:
    """The name of a column of type fixed, at any level, that equality deletes compare (apache/iceberg 11239)."""
    ids = {field_id for delete in deletes_of(files) for field_id in delete.equality_ids}
    fixed = (columns[each].name for each in ids if each in columns and isinstance(columns[each].field_type, FixedType))
    return next(fixed, None)


def _nullable_partition_source(table: TableView, spec_id: int) -> str | None:
    """The name of an identity partition field whose column lies in a struct that may be null."""
    schema = table.metadata.schema()
    for field in table.spec(spec_id).fields:
        if isinstance(field.transform, IdentityTransform) and _below_optional(schema.fields, field.source_id):
            return field.name
    return None


def _same_name(kind: IcebergType) -> str | None:
    """The name that two fields of one struct have in Parquet, at any level."""
    if isinstance(kind, StructType):
        names = Counter(make_compatible_name(field.name) for field in kind.fields if field.name)
        twice = next((name for name, count in names.items() if count > 1), None)
        return twice or next(filter(None, (_same_name(field.field_type) for field in kind.fields)), None)
    if isinstance(kind, ListType):
        return _same_name(kind.element_type)
    return _same_name(kind.key_type) or _same_name(kind.value_type) if isinstance(kind, MapType) else None


def _below_optional(fields: Sequence[NestedField], field_id: int, *, optional: bool = False) -> bool:
    """Whether a field lies below an optional struct; False where it is not among these or their children."""
    for field in fields:
        if field.field_id == field_id:
            return optional
        kind = field.field_type
        if isinstance(kind, StructType) and _below_optional(
            kind.fields, field_id, optional=optional or not field.required
        ):
            return True
    return False
