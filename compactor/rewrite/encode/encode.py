"""The `encode` rewrite: decode the data files of one output task, encode them into one file of full row groups.

Plain values in, plain values out, no Spark and no Java: it runs inside a Spark task on one core. Rows keep their order,
columns are matched by field id, deletes of all kinds are applied, V3 row lineage is kept. A file that cannot be encoded
without changing a row is refused, with a reason. After a failure no file is left at the output's location.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactor.errors import GiveUpError
from compactor.iceberg.manifest_lists import ROW_LINEAGE_VERSION
from compactor.reasons import Reason, Refusal
from compactor.rewrite.deletes.equality_deletes import EncodeInput, InputFiles
from compactor.rewrite.deletes.key_search import KeyRows
from compactor.rewrite.deletes.position_deletes import NO_POSITIONS, Positions, deleted_positions, kept_rows
from compactor.rewrite.deletes.row_maps import InputRows, check_rows, in_order, packed
from compactor.rewrite.encode.options import (
    BROTLI,
    CODEC_KEY,
    DEFAULT_CODEC,
    SCHEMA_ARGUMENTS,
    WriterOptions,
    codec_of,
    writer_options,
)
from compactor.rewrite.encode.writer import EncodedFile, RowGroupWriter, most_memory, row_groups_within
from compactor.rewrite.encode.written_metrics import metrics_modes
from compactor.rewrite.parquet.footer import footer_in
from compactor.rewrite.parquet.thrift import Struct
from compactor.rewrite.reading.files import WHOLE_FILE_BYTES, data_bytes, open_parquet, tables
from compactor.rewrite.reading.memory import LEAST_BYTES, HostMemory, this_host
from compactor.rewrite.reading.schema import RefusedError, WrittenSchema, written_schema
from compactor.storage.byte_store import ByteStore


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """Encode files into one file; the rows keep their order.

    Attributes:
        files: The inputs.
        output: Location of the new file, which must not exist.
        properties: The table's properties.
        format_version: The table's.
        keep_row_lineage: Write `_row_id` and `_last_updated_sequence_number` (V3).
        sorted_field_ids: Columns of the table's sort order whose transforms keep order: they get bounds in every
            default metrics mode. The rows are not sorted.
    """

    files: InputFiles
    output: str
    properties: tuple[tuple[str, str], ...] = ()
    format_version: int = 2
    keep_row_lineage: bool = False
    sorted_field_ids: tuple[int, ...] = ()


def encode_refusal(task: EncodeTask) -> Refusal | None:
    """Why the task cannot be encoded, by the schema and the formats of delete files alone; reads no file.

    Reasons: `type_not_supported`, `column_names_collide`, `delete_file_format`, `equality_deletes` (of columns that
    `encode` cannot compare), `row_lineage_unknown` (lineage requested below format version 3), `duplicate_inputs`.
    """
    if task.keep_row_lineage and task.format_version < ROW_LINEAGE_VERSION:
        return Refusal(Reason.ROW_LINEAGE_UNKNOWN, f"format version {task.format_version} has no row lineage")
    if len(task.files.position_deletes) < len(task.files.inputs):
        return Refusal(Reason.DUPLICATE_INPUTS, "a data file is listed twice, so its rows would be duplicated")
    try:
        _written(task)
        return task.files.deletes_refusal()
    except RefusedError as error:
        return error.refusal


def encode(task: EncodeTask, host: HostMemory | None = None) -> EncodedFile | Refusal:
    """Write the task's output file. Waits until `host` (by default this one) has the memory for it.

    Returns:
        The new file, or why none was written: the reasons of `encode_refusal`, and for files `no_field_ids`,
        `duplicate_field_ids`, `required_field_missing`, `type_not_supported`, `not_supported_by_arrow`.

    Raises:
        GiveUpError: `row_count_mismatch`, `unreadable_footer`, `unreadable_data`, `unreadable_delete_file`,
            `encrypted`, `null_in_required_field`, `value_out_of_range`, `not_encodable`, `output_exists`, or an
            error of the store.
        RetryError: the store does not answer, or there is not enough memory.
    """
    refusal = encode_refusal(task)
    if refusal is not None:
        return refusal
    try:
        return _Encoding(task).run(host or this_host())
    except RefusedError as error:
        return error.refusal


def encoded_schema(task: EncodeTask) -> tuple[Struct, ...]:
    """The Parquet schema of the file that `encode` writes, without the columns of row lineage.

    Raises:
        RefusedError: as in `encode_refusal`.
    """
    file = io.BytesIO()
    pq.ParquetWriter(file, written_schema(task.files.schema, with_lineage=False).arrow, **SCHEMA_ARGUMENTS).close()
    return footer_in(file.getvalue()).schema


@dataclass(frozen=True, slots=True)
class _Deleted:
    """Positions that deletes remove from each input, by what named them."""

    by_position: Mapping[str, Positions]
    by_value: Mapping[str, Positions]

    def of(self, location: str) -> Positions:
        by_position = self.by_position.get(location, NO_POSITIONS)
        by_value = self.by_value.get(location, NO_POSITIONS)
        return np.union1d(by_position, by_value) if len(by_value) else by_position

    def rows_of(self, source: EncodeInput) -> InputRows:
        by_position = self.by_position.get(source.location, NO_POSITIONS)
        by_value = np.setdiff1d(self.by_value.get(source.location, NO_POSITIONS), by_position)
        rows = source.records
        return InputRows(source.location, rows, 0, packed(by_position, rows), packed(by_value, rows))


def _deleted(files: InputFiles, store: ByteStore) -> _Deleted:
    by_value = KeyRows(files, store, WHOLE_FILE_BYTES).deleted() if files.equality_deletes else {}
    return _Deleted(deleted_positions(store, files.position_deletes), by_value)


def _written(task: EncodeTask) -> WrittenSchema:
    return written_schema(task.files.schema, with_lineage=task.keep_row_lineage)


class _Encoding:
    """One output task while it is encoded."""

    def __init__(self, task: EncodeTask) -> None:
        self._task = task
        self._files = task.files
        self._store = task.files.store_for(task.output)
        self._deleted = _Deleted({}, {})
        self._written = _written(task)
        self._reader = task.files.reader(self._store, self._written)
        self._rows_read = 0
        self._rows_deleted = 0

    def run(self, host: HostMemory) -> EncodedFile:
        properties = self._properties()
        options = writer_options(self._written, properties, sum(each.records for each in self._files.inputs))
        deletes = self._files.deletes_memory
        wanted = deletes + most_memory(options, self._files.size)
        with host.reserved(wanted) as reserved:
            self._deleted = _deleted(self._files, self._store)
            if reserved < wanted:
                options = row_groups_within(options, max(LEAST_BYTES, reserved - deletes))
            return self._run(options, properties)

    def _run(self, options: WriterOptions, properties: dict[str, str]) -> EncodedFile:
        modes = metrics_modes(self._files.schema, self._written.leaves, properties, self._task.sorted_field_ids)
        output = self._store.create(self._task.output)
        try:
            writer = RowGroupWriter(output, self._written, options, modes)
        except BaseException:
            output.abort()
            raise
        try:
            return self._write(writer)
        except BaseException:
            writer.abort()
            raise

    def _properties(self) -> dict[str, str]:
        """The table's properties, with the default codec instead of Brotli if readers may lack it.

        Spark has no Brotli codec unless it was installed. An input file with Brotli shows that it was.
        """
        properties = dict(self._task.properties)
        if codec_of(properties) != BROTLI or not self._files.inputs:
            return properties
        first = self._files.inputs[0]
        metadata = open_parquet(self._store, first.location, first.size).metadata
        has_it = metadata.num_row_groups and metadata.row_group(0).column(0).compression.lower() == BROTLI
        return properties if has_it else {**properties, CODEC_KEY: DEFAULT_CODEC}

    def _write(self, writer: RowGroupWriter) -> EncodedFile:
        remaining = float(self._files.size)
        for each in self._files.inputs:
            remaining -= each.size
            for table, stored, of_this_file in self._tables(each):
                writer.add(table, stored, remaining + of_this_file)
        written = replace(writer.finish(), rows_deleted=self._rows_deleted)
        if written.rows != self._rows_read - self._rows_deleted:
            raise GiveUpError(
                f"{self._task.output}: {self._rows_read} rows were read and {self._rows_deleted} of them deleted, but "
                f"{written.rows} were written",
                reason=Reason.ROW_COUNT_MISMATCH,
            )
        inputs = in_order(self._deleted.rows_of(each) for each in self._files.inputs)
        check_rows(self._task.output, inputs, written.rows)
        return replace(written, inputs=inputs)

    def _tables(self, source: EncodeInput) -> Iterator[tuple[pa.Table, float, float]]:
        """The rows of one input without deleted ones, their stored bytes, and the bytes of the rows yet to be read."""
        file, plan = self._reader.open(source.location, source.size)
        source.check_rows(file.metadata.num_rows)
        positions = self._deleted.of(source.location)
        self._rows_deleted += int(np.searchsorted(positions, source.records))
        row_bytes = data_bytes(file, source.size) / max(1, source.records)
        position = 0
        for read in tables(file, source.location, plan.columns):
            table = plan.projection.apply(read)
            if self._task.keep_row_lineage:
                table = _with_lineage(table, source, position)
            kept = kept_rows(positions, position, table.num_rows)
            position += table.num_rows
            if kept is not None:
                table = table.filter(kept)
            yield table, table.num_rows * row_bytes, (source.records - position) * row_bytes
        source.check_rows(position)
        self._rows_read += position


def _with_lineage(table: pa.Table, source: EncodeInput, position: int) -> pa.Table:
    """The table with its last two columns, row id and sequence number, completed as Iceberg's readers do.

    A file without a first row id has no lineage, even if its columns hold values (as in Iceberg's ParquetValueReaders).
    """
    width, rows = table.num_columns, table.num_rows
    if source.first_row_id is None:
        ids = numbers = pa.chunked_array([pa.nulls(rows, pa.int64())])
    else:
        first = source.first_row_id + position
        ids = pc.coalesce(table.column(width - 2), pa.array(np.arange(first, first + rows, dtype=np.int64)))
        numbers = pc.coalesce(table.column(width - 1), pa.scalar(source.data_sequence_number, pa.int64()))
    table = table.set_column(width - 2, table.schema.field(width - 2), ids)
    return table.set_column(width - 1, table.schema.field(width - 1), numbers)
