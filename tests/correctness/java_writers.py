"""Iceberg's Java generic writers, as Flink and Kafka Connect use them: data files, equality and position deletes,
deletion vectors.

Rows cross to the JVM as one Parquet file per output, read there by Iceberg's generic reader: a call per value would
cost a hundred times as much.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform

from tests.conftest import Lake
from tests.correctness.stage import java_table


class JavaWriter:
    """Writers for one table at its present metadata."""

    def __init__(self, lake: Lake, table: str) -> None:
        self.lake = lake
        self.jvm = lake.session._jvm
        self.iceberg = self.jvm.org.apache.iceberg
        self.table = java_table(lake, table)
        self.metadata = lake.catalog.load_table(lake.name(table).identifier).metadata
        self.schema = self.metadata.schema()
        self._gateway = lake.session.sparkContext._gateway
        self._scratch = lake.folder / "rows"
        self._scratch.mkdir(exist_ok=True)

    # --- data ---------------------------------------------------------------------------------------------------------

    def append(self, rows: pa.Table, file_format: str = "parquet") -> None:
        """One commit, one file per partition of the default spec."""
        commit = self.table.newAppend()
        for part in self.split(rows):
            commit.appendFile(self.data_file(part, file_format))
        commit.commit()

    def data_file(self, rows: pa.Table, file_format: str) -> Any:
        """Write rows of one partition; the Java `DataFile`."""
        kind = self._format(file_format)
        records, spec = self._records(rows), self.table.spec()
        partition = self.partition(records, spec)
        writer = self._factory().dataFileFormat(kind).build().newDataWriter(
            self._output(kind, spec, partition), spec, partition
        )  # fmt: skip
        self._write_all(writer, records)
        return writer.toDataFile()

    def split(self, rows: pa.Table, spec_id: int | None = None) -> list[pa.Table]:
        """`rows` cut by partition of a spec (default: the table's default), in order of first appearance."""
        spec = self.metadata.specs()[self.metadata.default_spec_id if spec_id is None else spec_id]
        return split_by_partition(rows, spec, self.schema)

    def partition(self, records: Any, spec: Any) -> Any:
        """The partition of the first record, computed by Iceberg."""
        key = self.iceberg.PartitionKey(spec, self.table.schema())
        wrapper = self.iceberg.data.InternalRecordWrapper(self.table.schema().asStruct())
        key.partition(wrapper.wrap(records.iterator().next()))
        return key

    # --- deletes ------------------------------------------------------------------------------------------------------

    def delete_equal(self, rows: pa.Table, columns: Sequence[str], spec_id: int | None = None) -> None:
        """Equality deletes of these values, a file per partition of the spec; unpartitioned specs delete everywhere."""
        spec_id = self.metadata.default_spec_id if spec_id is None else spec_id
        spec = self.table.specs()[spec_id]
        names = self.jvm.java.util.ArrayList()
        for name in columns:
            names.add(name)
        compared = self.table.schema().select(names)
        ids = self._gateway.new_array(self.jvm.int, len(columns))
        for index, name in enumerate(columns):
            ids[index] = compared.findField(name).fieldId()
        kind = self._format("parquet")
        factory = self._factory().deleteFileFormat(kind).equalityFieldIds(ids).equalityDeleteRowSchema(compared).build()
        commit = self.table.newRowDelta()
        for part in self.split(rows, spec_id):
            partition = self.partition(self._records(part), spec)
            writer = factory.newEqualityDeleteWriter(self._output(kind, spec, partition), spec, partition)
            self._write_all(writer, self._records(part, compared))
            commit.addDeletes(writer.toDeleteFile())
        commit.commit()

    def delete_positions(self, fraction: float, seed: int, *, per_file: bool = True) -> None:
        """V2 position deletes for about `fraction` of the rows: a delete file per data file, or per partition."""
        rng = random.Random(seed)
        groups: dict[Any, list[tuple[str, list[int], Any]]] = {}
        for file in sorted((task.file() for task in self._tasks()), key=lambda file: str(file.location())):
            positions = [number for number in range(file.recordCount()) if rng.random() < fraction]
            if positions:
                key = str(file.location()) if per_file else (file.specId(), str(file.partition().toString()))
                groups.setdefault(key, []).append((str(file.location()), positions, file))
        if not groups:
            return
        kind = self._format("parquet")
        factory = self._factory().deleteFileFormat(kind).build()
        commit = self.table.newRowDelta()
        for group in groups.values():
            file = group[0][2]
            spec = self.table.specs()[file.specId()]
            writer = factory.newPositionDeleteWriter(self._output(kind, spec, file.partition()), spec, file.partition())
            delete = self.iceberg.deletes.PositionDelete.create()
            for path, positions, _ in group:
                for position in positions:
                    writer.write(delete.set(path, position))
            writer.close()
            commit.addDeletes(writer.toDeleteFile())
        commit.commit()

    def delete_by_vectors(self, fraction: float, seed: int) -> None:
        """V3 deletion vectors for about `fraction` of the rows; deletes a file already has are merged and replaced."""
        rng = random.Random(seed)
        previous = self.jvm.java.util.HashMap()
        tasks = sorted(self._tasks(), key=lambda task: str(task.file().location()))
        for task in tasks:
            self._load_previous(task, previous)
        outputs = self.iceberg.io.OutputFileFactory.builderFor(self.table, 1, 1).format(self._format("puffin")).build()
        writer = self.iceberg.deletes.BaseDVFileWriter(outputs, self._lookup(previous))
        for task in tasks:
            file = task.file()
            spec = self.table.specs()[file.specId()]
            for position in range(file.recordCount()):
                if rng.random() < fraction:
                    writer.delete(file.location(), position, spec, file.partition())
        writer.close()
        result = writer.result()
        if result.deleteFiles().isEmpty():
            return
        commit = self.table.newRowDelta().validateFromSnapshot(self.table.currentSnapshot().snapshotId())
        for file in result.deleteFiles():
            commit.addDeletes(file)
        for file in result.rewrittenDeleteFiles():
            commit.removeDeletes(file)
        commit.commit()

    def _load_previous(self, task: Any, previous: Any) -> None:
        """Positions already deleted in the task's file, as BaseDVFileWriter asks for them."""
        inputs, deletes = self.jvm.java.util.HashMap(), self.jvm.java.util.ArrayList()
        for delete in task.deletes():
            if delete.content().name() == "POSITION_DELETES":
                inputs.put(delete, self.table.io().newInputFile(delete.location()))
                deletes.add(delete)
        if not deletes.isEmpty():
            loader = self.iceberg.data.BaseDeleteLoader(self._lookup(inputs))
            previous.put(task.file().location(), loader.loadPositionDeletes(deletes, task.file().location()))

    def _lookup(self, java_map: Any) -> Any:
        """A map as `java.util.function.Function`, null for what it does not hold; Scala's maps are functions."""
        scala = self.jvm.scala.jdk.javaapi
        return scala.FunctionConverters.asJavaFunction(
            scala.CollectionConverters.asScala(java_map).withDefaultValue(None)
        )

    # --- the JVM ------------------------------------------------------------------------------------------------------

    def _tasks(self) -> list[Any]:
        lists = self.jvm.org.apache.iceberg.relocated.com.google.common.collect.Lists
        return list(lists.newArrayList(self.table.newScan().planFiles().iterator()))

    def _format(self, name: str) -> Any:
        return self.iceberg.FileFormat.fromString(name)

    def _factory(self) -> Any:
        return getattr(self.iceberg.data, "GenericFileWriterFactory$Builder")(self.table)

    def _output(self, kind: Any, spec: Any, partition: Any) -> Any:
        factory = self.iceberg.io.OutputFileFactory.builderFor(self.table, 0, 0).format(kind).build()
        return factory.newOutputFile(spec, partition) if spec.isPartitioned() else factory.newOutputFile()

    def _records(self, rows: pa.Table, projection: Any = None) -> Any:
        """A Java iterable of generic records; every iteration reads the file anew."""
        path = self._scratch / f"{uuid.uuid4()}.parquet"
        pq.write_table(rows, path)
        return self.records_of(path, projection)

    def records_of(self, path: Path, projection: Any = None) -> Any:
        """Generic records of any Parquet file with field ids."""
        record = self._class("org.apache.iceberg.data.Record")
        input_file = self.table.io().newInputFile(path.as_uri())
        builder = self.iceberg.formats.FormatModelRegistry.readBuilder(self._format("parquet"), record, input_file)
        return builder.project(projection or self.table.schema()).build()

    def _class(self, name: str) -> Any:
        return self.jvm.java.lang.Class.forName(name, True, self.table.getClass().getClassLoader())

    def _write_all(self, writer: Any, records: Any) -> None:
        """`writer.write(Iterable)`: by reflection, because Py4J would choose `write(Object)`."""
        kinds = self._gateway.new_array(self.jvm.java.lang.Class, 1)
        kinds[0] = self.jvm.java.lang.Class.forName("java.lang.Iterable")
        method = self._class("org.apache.iceberg.io.FileWriter").getMethod("write", kinds)
        arguments = self._gateway.new_array(self.jvm.java.lang.Object, 1)
        arguments[0] = records
        method.invoke(writer, arguments)
        writer.close()


def split_by_partition(rows: pa.Table, spec: PartitionSpec, schema: Schema) -> list[pa.Table]:
    """`rows` cut by the spec's partition values, which PyIceberg computes row by row."""
    keys: list[list[Any]] = []
    for field in spec.fields:
        source = schema.find_field(field.source_id)
        values = internal_values(rows.column(source.name))
        transform = field.transform
        apply = None if isinstance(transform, IdentityTransform) else transform.transform(source.field_type)
        keys.append([apply(value) if apply else value for value in values])
    groups: dict[str, list[int]] = {}
    for index in range(rows.num_rows):
        groups.setdefault(repr([column[index] for column in keys]), []).append(index)
    return [rows.take(indices) for indices in groups.values()]


def internal_values(column: pa.ChunkedArray) -> list[Any]:
    """Values as Iceberg's transforms take them: dates in days, times and timestamps in their own unit."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return column.cast(kind.storage_type).to_pylist()
    if pa.types.is_date32(kind):
        return column.cast(pa.int32()).to_pylist()
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return column.cast(pa.int64()).to_pylist()
    return column.to_pylist()
