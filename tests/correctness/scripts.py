"""A table as a script: schema, partitioning and the operations that made it what it is. Plain frozen values, so that a
case can be printed, compared, generated and played again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

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


class Operation(Protocol):
    """One step of a script."""

    def perform(self, lake: Lake, table: str) -> None:
        """Carry it out."""


@dataclass(frozen=True)
class Append:
    """Rows by one writer, in one commit; `writer` None: the one the cell is about."""

    rows: int = 8
    seed: int = 0
    writer: str | None = None

    def perform(self, lake: Lake, table: str) -> None:
        chosen = self.writer or "java"
        loaded = lake.catalog.load_table(lake.name(table).identifier)
        rows = random_rows(loaded.schema(), self.rows, self.seed)
        if chosen == "spark":
            frame = lake.session.createDataFrame(_spark_arrow(rows))
            frame.coalesce(1).writeTo(lake.name(table).spark).append()
        elif chosen == "pyiceberg":
            _pyiceberg(lambda: loaded.append(rows))
        elif chosen in JAVA_FORMATS:
            JavaWriter(lake, table).append(rows, JAVA_FORMATS[chosen])
        else:
            append_raw(lake, table, rows, chosen)


@dataclass(frozen=True)
class DeletePositions:
    """Position deletes (V2) for a fraction of all rows; from V3 on deletion vectors."""

    fraction: float = 0.3
    seed: int = 0
    per_file: bool = True

    def perform(self, lake: Lake, table: str) -> None:
        java = JavaWriter(lake, table)
        if java.metadata.format_version >= 3:
            java.delete_by_vectors(self.fraction, self.seed)
        elif java.metadata.format_version == 2:
            java.delete_positions(self.fraction, self.seed, per_file=self.per_file)


@dataclass(frozen=True)
class DeleteEqual:
    """Equality deletes of random values; `everywhere`: by the table's unpartitioned spec."""

    columns: tuple[str, ...] = ("id",)
    rows: int = 4
    seed: int = 0
    everywhere: bool = False

    def perform(self, lake: Lake, table: str) -> None:
        java = JavaWriter(lake, table)
        columns = [name for name in self.columns if name in {column.name for column in java.schema.fields}]
        if not columns or java.metadata.format_version < 2:
            return
        specs = [spec.spec_id for spec in java.metadata.partition_specs if spec.is_unpartitioned()]
        if self.everywhere and not specs:
            return
        rows = random_rows(java.schema, self.rows, self.seed)
        java.delete_equal(rows, columns, specs[0] if self.everywhere else None)


@dataclass(frozen=True)
class Sql:
    """Any statement; `{table}` is the table."""

    text: str

    def perform(self, lake: Lake, table: str) -> None:
        lake.sql(self.text.replace("{table}", lake.name(table).spark))


@dataclass(frozen=True)
class Upsert:
    """PyIceberg's upsert by `id`."""

    rows: int = 4
    seed: int = 0

    def perform(self, lake: Lake, table: str) -> None:
        loaded = lake.catalog.load_table(lake.name(table).identifier)
        rows = random_rows(loaded.schema(), self.rows, self.seed)
        seen: set[Any] = set()
        keep = [index for index, key in enumerate(rows["id"].to_pylist()) if not (key in seen or seen.add(key))]
        _pyiceberg(lambda: loaded.upsert(rows.take(keep), join_cols=["id"]))


@dataclass(frozen=True)
class Overwrite:
    """PyIceberg's copy-on-write delete of ids below a bound."""

    below: int = 10

    def perform(self, lake: Lake, table: str) -> None:
        loaded = lake.catalog.load_table(lake.name(table).identifier)
        _pyiceberg(lambda: loaded.delete(f"id < {self.below}"))


@dataclass(frozen=True)
class AddColumn:
    """`default`: JSON of a V3 default; `parent`: a struct's name."""

    name: str
    kind: IcebergType
    parent: str | None = None
    default: Any = None

    def perform(self, lake: Lake, table: str) -> None:
        kind = _java_schema(lake, {self.name: self.kind}).findType(self.name)
        update = _update(lake, table)
        if self.default is not None:
            literal = _literal(lake, self.default)
            update.addColumn(self.name, kind, "with a default", literal).commit()
        elif self.parent:
            update.addColumn(self.parent, self.name, kind).commit()
        else:
            update.addColumn(self.name, kind).commit()


@dataclass(frozen=True)
class DropColumn:
    name: str

    def perform(self, lake: Lake, table: str) -> None:
        _update(lake, table).deleteColumn(self.name).commit()


@dataclass(frozen=True)
class RenameColumn:
    name: str
    new: str

    def perform(self, lake: Lake, table: str) -> None:
        _update(lake, table).renameColumn(self.name, self.new).commit()


@dataclass(frozen=True)
class WidenColumn:
    name: str
    kind: IcebergType

    def perform(self, lake: Lake, table: str) -> None:
        kind = _java_schema(lake, {"widened": self.kind}).findType("widened").asPrimitiveType()
        _update(lake, table).updateColumn(self.name, kind).commit()


@dataclass(frozen=True)
class MoveFirst:
    name: str

    def perform(self, lake: Lake, table: str) -> None:
        _update(lake, table).moveFirst(self.name).commit()


@dataclass(frozen=True)
class EvolveSpec:
    """Partition fields to drop and to add, as `day(ts)` or `name`."""

    drop: tuple[str, ...] = ()
    add: tuple[str, ...] = ()

    def perform(self, lake: Lake, table: str) -> None:
        update = java_table(lake, table).updateSpec()
        for text in self.drop:
            update = update.removeField(_term(lake, text))
        for text in self.add:
            update = update.addField(_term(lake, text))
        update.commit()


@dataclass(frozen=True)
class SortBy:
    columns: tuple[str, ...]

    def perform(self, lake: Lake, table: str) -> None:
        iceberg = lake.session._jvm.org.apache.iceberg
        order = java_table(lake, table).replaceSortOrder()
        for column in self.columns:
            order = order.asc(iceberg.expressions.Expressions.ref(column), iceberg.NullOrder.NULLS_FIRST)
        order.commit()


@dataclass(frozen=True)
class SetProperties:
    pairs: tuple[tuple[str, str], ...]

    def perform(self, lake: Lake, table: str) -> None:
        update = java_table(lake, table).updateProperties()
        for key, value in self.pairs:
            update = update.set(key, value)
        update.commit()


@dataclass(frozen=True)
class RollBack:
    """The snapshot before the last one is current again."""

    def perform(self, lake: Lake, table: str) -> None:
        loaded = java_table(lake, table)
        head = loaded.currentSnapshot()
        if head is not None and head.parentId() is not None:
            loaded.manageSnapshots().rollbackTo(head.parentId()).commit()


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
        if isinstance(operation, Append) and operation.writer is None:
            operation = replace(operation, writer=writer)  # noqa: PLW2901
        operation.perform(lake, name)
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


def _update(lake: Lake, table: str) -> Any:
    return java_table(lake, table).updateSchema()


def _literal(lake: Lake, value: Any) -> Any:
    expressions = lake.session._jvm.org.apache.iceberg.expressions.Expressions
    return expressions.lit(value)


def _term(lake: Lake, text: str) -> Any:
    transform, argument, column = parse_field(text)
    expressions = lake.session._jvm.org.apache.iceberg.expressions.Expressions
    if transform == "identity":
        return expressions.ref(column)
    method = getattr(expressions, transform)
    return method(column, argument) if argument else method(column)


def roll_back_to(lake: Lake, table: str, snapshot_id: int) -> None:
    """Make a snapshot current again, whatever came after it."""
    java_table(lake, table).manageSnapshots().setCurrentSnapshot(snapshot_id).commit()
