"""A table as a script: schema, partitioning and the operations that made it what it is. Plain frozen values, so that a
case can be printed, compared, generated and played again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import NotInstalledError
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import IcebergType, NestedField

from tests.conftest import Lake
from tests.correctness.java_writers import JavaWriter
from tests.correctness.raw_writers import RAW_WRITERS, append_raw
from tests.correctness.stage import NAMESPACE, java_catalog, java_table
from tests.correctness.values import random_rows

JAVA_FORMATS = {"java": "parquet", "java-orc": "orc", "java-avro": "avro"}
WRITERS = ("spark", "pyiceberg", *JAVA_FORMATS, *RAW_WRITERS)


class WriterCannot(Exception):  # noqa: N818 - not an error of the cell: this writer has no such feature
    """The writer itself does not do this kind of table."""


@dataclass(frozen=True)
class Append:
    """Rows by one writer, in one commit; `writer` None: the one the cell is about."""

    rows: int = 8
    seed: int = 0
    writer: str | None = None


@dataclass(frozen=True)
class DeletePositions:
    """Position deletes (V2) for a fraction of all rows; from V3 on deletion vectors."""

    fraction: float = 0.3
    seed: int = 0
    per_file: bool = True


@dataclass(frozen=True)
class DeleteEqual:
    """Equality deletes of random values; `everywhere`: by the table's unpartitioned spec."""

    columns: tuple[str, ...] = ("id",)
    rows: int = 4
    seed: int = 0
    everywhere: bool = False


@dataclass(frozen=True)
class Sql:
    """Any statement; `{table}` is the table."""

    text: str


@dataclass(frozen=True)
class Upsert:
    """PyIceberg's upsert by `id`."""

    rows: int = 4
    seed: int = 0


@dataclass(frozen=True)
class Overwrite:
    """PyIceberg's copy-on-write delete of ids below a bound."""

    below: int = 10


@dataclass(frozen=True)
class AddColumn:
    """`default`: JSON of a V3 default; `parent`: a struct's name."""

    name: str
    kind: IcebergType
    parent: str | None = None
    default: Any = None


@dataclass(frozen=True)
class DropColumn:
    name: str


@dataclass(frozen=True)
class RenameColumn:
    name: str
    new: str


@dataclass(frozen=True)
class WidenColumn:
    name: str
    kind: IcebergType


@dataclass(frozen=True)
class MoveFirst:
    name: str


@dataclass(frozen=True)
class EvolveSpec:
    """Partition fields to drop and to add, as `day(ts)` or `name`."""

    drop: tuple[str, ...] = ()
    add: tuple[str, ...] = ()


@dataclass(frozen=True)
class SortBy:
    columns: tuple[str, ...]


@dataclass(frozen=True)
class SetProperties:
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class RollBack:
    """The snapshot before the last one is current again."""


Operation = (
    Append | DeletePositions | DeleteEqual | Sql | Upsert | Overwrite | AddColumn | DropColumn | RenameColumn
    | WidenColumn | MoveFirst | EvolveSpec | SortBy | SetProperties | RollBack
)  # fmt: skip


@dataclass(frozen=True)
class Script:
    """`columns` are (name, type) pairs; `partition` as in `EvolveSpec.add`."""

    columns: tuple[tuple[str, IcebergType], ...]
    operations: tuple[Operation, ...]
    partition: tuple[str, ...] = ()
    version: int = 2
    properties: tuple[tuple[str, str], ...] = field(default=())


def play(lake: Lake, script: Script, writer: str = "java", table: str | None = None) -> str:
    """Create a table and carry the script out; the table's name.

    Raises:
        WriterCannot: the writer does not do this.
    """
    name = table or f"{NAMESPACE}.t{uuid.uuid4().hex[:12]}"
    create(lake, name, script)
    for operation in script.operations:
        perform(operation, lake, name, writer)
    return name


def create(lake: Lake, table: str, script: Script) -> None:
    """Create the table through Iceberg's Java catalog: PyIceberg writes no V3 metadata."""
    name = lake.name(table)
    jvm = lake.session._jvm
    iceberg = jvm.org.apache.iceberg
    schema = _java_schema(lake, dict(script.columns))
    builder = iceberg.PartitionSpec.builderFor(schema)
    for text in script.partition:
        transform, argument, column = parse_field(text)
        method = getattr(builder, transform)
        builder = method(column, argument) if argument else method(column)
    properties = jvm.java.util.HashMap()
    properties.put("format-version", str(script.version))
    for key, value in script.properties:
        properties.put(key, value.replace("{folder}", f"file://{lake.folder}/{table}"))
    identifier = iceberg.catalog.TableIdentifier.parse(".".join(name.identifier))
    java_catalog(lake, name.catalog).createTable(identifier, schema, builder.build(), properties)


def parse_field(text: str) -> tuple[str, int | None, str]:
    """`bucket(4, id)` → ("bucket", 4, "id"); a bare name is the identity."""
    if "(" not in text:
        return "identity", None, text
    transform, _, rest = text.partition("(")
    *argument, column = rest.rstrip(")").split(", ")
    return transform, int(argument[0]) if argument else None, column


def _java_schema(lake: Lake, columns: Mapping[str, IcebergType]) -> Any:
    fields = [NestedField(1000 + number, name, kind) for number, (name, kind) in enumerate(columns.items())]
    return lake.session._jvm.org.apache.iceberg.SchemaParser.fromJson(
        assign_fresh_schema_ids(Schema(*fields)).model_dump_json()
    )


# --- operations -------------------------------------------------------------------------------------------------------


@singledispatch
def perform(operation: Operation, lake: Lake, table: str, writer: str) -> None:
    """Carry out one operation."""
    raise NotImplementedError(operation)


@perform.register
def _(operation: Append, lake: Lake, table: str, writer: str) -> None:
    chosen = operation.writer or writer
    loaded = lake.catalog.load_table(lake.name(table).identifier)
    rows = random_rows(loaded.schema(), operation.rows, operation.seed)
    if chosen == "spark":
        frame = lake.session.createDataFrame(_spark_arrow(rows))
        frame.coalesce(1).writeTo(lake.name(table).spark).append()
    elif chosen == "pyiceberg":
        _pyiceberg(lambda: loaded.append(rows))
    elif chosen in JAVA_FORMATS:
        JavaWriter(lake, table).append(rows, JAVA_FORMATS[chosen])
    else:
        append_raw(lake, table, rows, chosen)


def _pyiceberg(write: Callable[[], Any]) -> None:
    try:
        write()
    except (NotImplementedError, NotInstalledError, ZeroDivisionError) as error:
        # PyIceberg 0.12 divides by the rows it finds of a partition value, and no row equals NaN.
        raise WriterCannot(str(error).split("\n", maxsplit=1)[0]) from error
    except ValueError as error:
        if "Cannot write" not in str(error):
            raise
        raise WriterCannot(str(error)) from error


def _spark_arrow(rows: pa.Table) -> pa.Table:
    """Arrow types that Spark knows: UUIDs as text, large and fixed binaries as plain ones."""
    columns, fields = [], []
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        kept = column
        if isinstance(column.type, pa.BaseExtensionType):
            kept = pa.chunked_array([pa.array([str(uuid.UUID(bytes=v)) if v else None for v in _storage(column)])])
        elif pa.types.is_fixed_size_binary(column.type):
            kept = column.cast(pa.binary())
        elif pa.types.is_time(column.type):
            raise WriterCannot("Spark has no type for time")
        columns.append(kept)
        fields.append(pa.field(name, kept.type))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _storage(column: pa.ChunkedArray) -> list[bytes | None]:
    return column.cast(column.type.storage_type).to_pylist()


@perform.register
def _(operation: DeletePositions, lake: Lake, table: str, writer: str) -> None:
    java = JavaWriter(lake, table)
    if java.metadata.format_version >= 3:
        java.delete_by_vectors(operation.fraction, operation.seed)
    elif java.metadata.format_version == 2:
        java.delete_positions(operation.fraction, operation.seed, per_file=operation.per_file)


@perform.register
def _(operation: DeleteEqual, lake: Lake, table: str, writer: str) -> None:
    java = JavaWriter(lake, table)
    columns = [name for name in operation.columns if name in {column.name for column in java.schema.fields}]
    if not columns or java.metadata.format_version < 2:
        return
    specs = [spec.spec_id for spec in java.metadata.partition_specs if spec.is_unpartitioned()]
    if operation.everywhere and not specs:
        return
    rows = random_rows(java.schema, operation.rows, operation.seed)
    java.delete_equal(rows, columns, specs[0] if operation.everywhere else None)


@perform.register
def _(operation: Sql, lake: Lake, table: str, writer: str) -> None:
    lake.sql(operation.text.replace("{table}", lake.name(table).spark))


@perform.register
def _(operation: Upsert, lake: Lake, table: str, writer: str) -> None:
    loaded = lake.catalog.load_table(lake.name(table).identifier)
    rows = random_rows(loaded.schema(), operation.rows, operation.seed)
    seen: set[Any] = set()
    keep = [index for index, key in enumerate(rows["id"].to_pylist()) if not (key in seen or seen.add(key))]
    _pyiceberg(lambda: loaded.upsert(rows.take(keep), join_cols=["id"]))


@perform.register
def _(operation: Overwrite, lake: Lake, table: str, writer: str) -> None:
    loaded = lake.catalog.load_table(lake.name(table).identifier)
    _pyiceberg(lambda: loaded.delete(f"id < {operation.below}"))


def _update(lake: Lake, table: str) -> Any:
    return java_table(lake, table).updateSchema()


@perform.register
def _(operation: AddColumn, lake: Lake, table: str, writer: str) -> None:
    kind = _java_schema(lake, {operation.name: operation.kind}).findType(operation.name)
    update = _update(lake, table)
    if operation.default is not None:
        literal = _literal(lake, operation.default)
        update.addColumn(operation.name, kind, "with a default", literal).commit()
    elif operation.parent:
        update.addColumn(operation.parent, operation.name, kind).commit()
    else:
        update.addColumn(operation.name, kind).commit()


def _literal(lake: Lake, value: Any) -> Any:
    expressions = lake.session._jvm.org.apache.iceberg.expressions.Expressions
    return expressions.lit(value)


@perform.register
def _(operation: DropColumn, lake: Lake, table: str, writer: str) -> None:
    _update(lake, table).deleteColumn(operation.name).commit()


@perform.register
def _(operation: RenameColumn, lake: Lake, table: str, writer: str) -> None:
    _update(lake, table).renameColumn(operation.name, operation.new).commit()


@perform.register
def _(operation: WidenColumn, lake: Lake, table: str, writer: str) -> None:
    kind = _java_schema(lake, {"widened": operation.kind}).findType("widened").asPrimitiveType()
    _update(lake, table).updateColumn(operation.name, kind).commit()


@perform.register
def _(operation: MoveFirst, lake: Lake, table: str, writer: str) -> None:
    _update(lake, table).moveFirst(operation.name).commit()


@perform.register
def _(operation: EvolveSpec, lake: Lake, table: str, writer: str) -> None:
    update = java_table(lake, table).updateSpec()
    for text in operation.drop:
        update = update.removeField(_term(lake, text))
    for text in operation.add:
        update = update.addField(_term(lake, text))
    update.commit()


def _term(lake: Lake, text: str) -> Any:
    transform, argument, column = parse_field(text)
    expressions = lake.session._jvm.org.apache.iceberg.expressions.Expressions
    if transform == "identity":
        return expressions.ref(column)
    method = getattr(expressions, transform)
    return method(column, argument) if argument else method(column)


@perform.register
def _(operation: SortBy, lake: Lake, table: str, writer: str) -> None:
    iceberg = lake.session._jvm.org.apache.iceberg
    order = java_table(lake, table).replaceSortOrder()
    for column in operation.columns:
        order = order.asc(iceberg.expressions.Expressions.ref(column), iceberg.NullOrder.NULLS_FIRST)
    order.commit()


@perform.register
def _(operation: SetProperties, lake: Lake, table: str, writer: str) -> None:
    update = java_table(lake, table).updateProperties()
    for key, value in operation.pairs:
        update = update.set(key, value)
    update.commit()


@perform.register
def _(operation: RollBack, lake: Lake, table: str, writer: str) -> None:
    loaded = java_table(lake, table)
    head = loaded.currentSnapshot()
    if head is not None and head.parentId() is not None:
        loaded.manageSnapshots().rollbackTo(head.parentId()).commit()


def roll_back_to(lake: Lake, table: str, snapshot_id: int) -> None:
    """Make a snapshot current again, whatever came after it."""
    java_table(lake, table).manageSnapshots().setCurrentSnapshot(snapshot_id).commit()
