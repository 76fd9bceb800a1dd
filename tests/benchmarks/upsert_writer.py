"""A table with upserts as a Flink job writes them, with Iceberg's Java writers, on a clock that the caller sets.

Flink's sink in upsert mode makes one `RowDelta` per checkpoint (`BaseDeltaTaskWriter`, `BaseEqualityDeltaWriter`). For
each touched partition it holds one data file and one equality delete file with the key of every row. A key that occurs
again within the checkpoint costs a position delete of the earlier row in the same data file instead: in V2 a position
delete file per data file, in V3 a deletion vector; all vectors of a checkpoint are in one Puffin file.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField, StringType

from compactor.iceberg.manifest_lists import ROW_LINEAGE_VERSION
from compactor.locations import plain_path
from tests.conftest import Lake
from tests.correctness.java_writers import JavaWriter

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "version", LongType(), required=False),
    NestedField(3, "payload", StringType(), required=False),
)
PAYLOAD_BYTES = 12


@dataclass(frozen=True)
class Upserts:
    """What the job writes. `rows` per checkpoint and bucket; `repeats`: mean share of them whose key is upserted again
    in the same checkpoint, drawn for each checkpoint and bucket from half of it to one and a half times.
    """

    version: int = 2
    buckets: int = 4
    rows: int = 300
    keys: int = 20_000
    repeats: float = 0.3


@dataclass
class ClockedTable:
    """An Iceberg table whose commits carry the time that the caller sets; that time lies behind the machine's."""

    lake: Lake
    name: str
    upserts: Upserts
    moments: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        by = f"PARTITIONED BY (bucket({self.upserts.buckets}, id))" if self.upserts.buckets > 1 else ""
        self.lake.sql(
            f"CREATE TABLE lake.{self.name} (id bigint NOT NULL, version bigint, payload string) USING iceberg {by} "
            f"TBLPROPERTIES ('format-version'='{self.upserts.version}')"
        )

    def stamp(self, at: float) -> None:
        """Give new snapshots the time `at`. Java keeps the machine's time of snapshots it made, and writes it again."""
        path = Path(plain_path(self.lake.catalog.load_table(self.name).metadata_location))
        tree = json.loads(path.read_text())
        moment, today = int(at * 1000), int((time.time() - 86_400) * 1000)
        for snapshot in tree.get("snapshots", ()):
            snapshot["timestamp-ms"] = self.moments.setdefault(snapshot["snapshot-id"], moment)
        for entry in tree.get("snapshot-log", ()):
            entry["timestamp-ms"] = self.moments[entry["snapshot-id"]]
        for entry in tree.get("metadata-log", ()):
            entry["timestamp-ms"] = moment if entry["timestamp-ms"] > today else entry["timestamp-ms"]
        tree["last-updated-ms"] = moment
        path.write_text(json.dumps(tree))
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the earlier content


class UpsertWriter(JavaWriter):
    """Writes one checkpoint per call, and keeps the newest version of every key in `model`."""

    def __init__(self, lake: Lake, table: ClockedTable, seed: int) -> None:
        super().__init__(lake, table.name)
        self.clocked = table
        self.upserts = table.upserts
        self.model: dict[int, int] = {}
        self.data_bytes = 0
        self._random = np.random.default_rng(seed)
        self._texts = random.Random(seed)
        self._checkpoint = 0
        self._written = 0
        self._keys = _keys_by_bucket(self.upserts)
        self._arrow = schema_to_pyarrow(SCHEMA)
        self._compared = self.table.schema().select(self._names("id"))
        ids = self._gateway.new_array(self.jvm.int, 1)
        ids[0] = SCHEMA.find_field("id").field_id
        kind = self._format("parquet")
        self._files = (
            self._factory()
            .dataFileFormat(kind)
            .deleteFileFormat(kind)
            .equalityFieldIds(ids)
            .equalityDeleteRowSchema(self._compared)
            .build()
        )

    def checkpoint(self, at: float) -> None:
        """Write and commit one checkpoint, at the time `at`."""
        self._checkpoint += 1
        commit = self.table.newRowDelta()
        superseded: list[tuple[Any, int]] = []
        for bucket, keys in enumerate(self._keys):
            partition = self._partition(bucket)
            rows, again = self._rows(keys)
            data = self._write_file(self._files.newDataWriter, rows, partition).toDataFile()
            commit.addRows(data)
            self.data_bytes += data.fileSizeInBytes()
            touched = rows.slice(again).select(["id"])
            deletes = self._write_file(self._files.newEqualityDeleteWriter, touched, partition, self._compared)
            commit.addDeletes(deletes.toDeleteFile())
            if again:
                superseded.append((data, again))
        for delete in self._position_deletes(superseded):
            commit.addDeletes(delete)
        commit.set("flink.job-id", "0" * 32)
        commit.set("flink.max-committed-checkpoint-id", str(self._checkpoint))
        commit.commit()
        self.clocked.stamp(at)

    def _rows(self, keys: Any) -> tuple[pa.Table, int]:
        """Rows of one data file. The first so many are superseded by later rows of the same keys."""
        wanted = self.upserts.rows
        again = int(wanted * self.upserts.repeats * self._random.uniform(0.5, 1.5))
        touched = self._random.choice(keys, wanted - again, replace=False)
        ids = np.concatenate([touched[:again], touched])
        versions = np.arange(self._written, self._written + wanted)
        self._written += wanted
        self.model.update(zip(touched.tolist(), versions[again:].tolist(), strict=True))
        texts = [self._texts.randbytes(PAYLOAD_BYTES).hex() for _ in range(wanted)]
        return pa.table([ids, versions, texts], schema=self._arrow), again

    def _write_file(self, new_writer: Any, rows: pa.Table, partition: Any, projection: Any = None) -> Any:
        spec = self.table.spec()
        writer = new_writer(self._output(self._format("parquet"), spec, partition), spec, partition)
        self._write_all(writer, self._records(rows, projection))
        for scratch in self._scratch.iterdir():
            scratch.unlink()
        return writer

    def _position_deletes(self, superseded: list[tuple[Any, int]]) -> Iterator[Any]:
        """Delete the first so many rows of new data files."""
        if self.upserts.version >= ROW_LINEAGE_VERSION:
            yield from self._vectors(superseded)
            return
        delete, spec = self.iceberg.deletes.PositionDelete.create(), self.table.spec()
        for data, count in superseded:
            output = self._output(self._format("parquet"), spec, data.partition())
            writer = self._files.newPositionDeleteWriter(output, spec, data.partition())
            path = data.location()
            for position in range(count):
                writer.write(delete.set(path, position))
            writer.close()
            yield writer.toDeleteFile()

    def _vectors(self, superseded: list[tuple[Any, int]]) -> Iterator[Any]:
        kind = self._format("puffin")
        outputs = self.iceberg.io.OutputFileFactory.builderFor(self.table, 0, 0).format(kind).build()
        writer = self.iceberg.deletes.BaseDVFileWriter(outputs, self._lookup(self.jvm.java.util.HashMap()))
        spec = self.table.spec()
        for data, count in superseded:
            path, partition = data.location(), data.partition()
            for position in range(count):
                writer.delete(path, position, spec, partition)
        writer.close()
        yield from writer.result().deleteFiles()

    def _partition(self, bucket: int) -> Any:
        spec = self.table.spec()
        place = self.iceberg.PartitionData(spec.partitionType())
        if spec.isPartitioned():
            place.set(0, bucket)
        return place

    def _names(self, *columns: str) -> Any:
        names = self.jvm.java.util.ArrayList()
        for name in columns:
            names.add(name)
        return names


def _keys_by_bucket(upserts: Upserts) -> list[Any]:
    """`keys` keys for each bucket, by Iceberg's own bucket function."""
    bucket_of = BucketTransform(upserts.buckets).transform(LongType())
    found: list[list[int]] = [[] for _ in range(upserts.buckets)]
    for key in range(upserts.keys * upserts.buckets):
        found[bucket_of(key) or 0].append(key)
    return [np.array(keys) for keys in found]
