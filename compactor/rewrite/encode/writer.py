"""Write the output of `encode`: full row groups, sized by measured bytes; no file is left after a failure."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.errors import GiveUpError, RetryError
from compactor.reasons import Reason
from compactor.rewrite.deletes.row_maps import InputRows
from compactor.rewrite.encode.doubts import Doubt, doubts_of, without_doubtful
from compactor.rewrite.encode.options import WriterOptions
from compactor.rewrite.encode.written_metrics import MetricsMode, WrittenMetrics
from compactor.rewrite.parquet.column_metrics import ColumnMetrics
from compactor.rewrite.reading.memory import UNPACKED_RATIO
from compactor.rewrite.reading.schema import WrittenSchema
from compactor.storage.byte_store import OutputFile

SINK_BUFFER_BYTES: Final = 1024 * 1024
IN_MEMORY_RATIO: Final = 3  # a row group is closed when its rows take this many times the target in memory
PEAK_RATIO: Final = IN_MEMORY_RATIO + 1  # most memory of an encode by the target: rows, and the pages written from them
LEAST_ROW_GROUP_BYTES: Final = 1024 * 1024
MOST_ROWS: Final = 64 * 1024 * 1024  # Arrow splits a larger row group, whose parts would need doubts of their own
TAIL_SHARE: Final = 8  # the last row group may be larger than the target by one part in this many


def most_memory(options: WriterOptions, input_bytes: int) -> int:
    """Bytes of memory that writing takes at most. Small inputs do not fill a row group."""
    return min(PEAK_RATIO * options.row_group_bytes, UNPACKED_RATIO * input_bytes)


def row_groups_within(options: WriterOptions, memory: int) -> WriterOptions:
    """Options whose row groups fit into so many bytes of memory. The file is the same otherwise."""
    fitting = max(LEAST_ROW_GROUP_BYTES, memory // PEAK_RATIO)
    return replace(options, row_group_bytes=min(options.row_group_bytes, fitting))


@dataclass(frozen=True, slots=True)
class EncodedFile:
    """The new file. With `rows == 0` all rows were deleted and no file was written.

    Attributes:
        rows: Rows in the new file.
        metrics: Column metrics of the new file.
        size: Its bytes.
        split_offsets: Offsets of its row groups.
        rows_deleted: Rows that deletes name, counted before they are removed.
        inputs: Where it holds the rows of each input.
    """

    rows: int
    metrics: ColumnMetrics
    size: int = 0
    split_offsets: tuple[int, ...] = ()
    rows_deleted: int = 0
    inputs: tuple[InputRows, ...] = ()


class _Sink(io.RawIOBase):
    """An `OutputFile` as a Python file for Arrow. Closing it does not finish the output.

    After an abort it accepts bytes and drops them: Arrow's writers flush when they are garbage-collected.
    Bytes that are written once `held` is not None are appended to it instead, so that they can be changed.
    """

    def __init__(self, output: OutputFile) -> None:
        super().__init__()
        self._output = output
        self.given_up = False
        self.held: bytearray | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._output.position + len(self.held or b"")

    def write(self, data: Any) -> int:
        if self.given_up:
            return len(data)
        if self.held is None:
            self._output.write(data)
        else:
            self.held += data
        return len(data)


@dataclass(slots=True)
class _Collected:
    """Rows that wait for their row group: approximate bytes in their files, and bytes in memory."""

    tables: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    stored: float = 0.0
    in_memory: int = 0

    def add(self, table: pa.Table, stored: float) -> None:
        self.tables.append(table)
        self.rows += table.num_rows
        self.stored += stored
        self.in_memory += table.nbytes


class RowGroupWriter:
    """Collects tables and writes each full row group at once.

    The size of rows is estimated from their size in the input files, corrected by the sizes of the row groups written
    so far.
    """

    def __init__(
        self, output: OutputFile, written: WrittenSchema, options: WriterOptions, modes: Mapping[int, MetricsMode]
    ) -> None:
        self._output = output
        self._written = written
        self._metrics = WrittenMetrics(written, modes)
        self._raw_sink = _Sink(output)
        self._sink = pa.BufferedOutputStream(pa.PythonFile(self._raw_sink, mode="w"), SINK_BUFFER_BYTES)
        self._options = options
        self._writer: pq.ParquetWriter | None = None
        self._doubts: list[tuple[Doubt, ...]] = []
        self._collected = _Collected()
        self._shrinking = 1.0

    def add(self, table: pa.Table, stored: float, remaining: float) -> None:
        """Add rows; write a row group if it is full.

        Args:
            table: Rows of the written schema, at most `MOST_ROWS`.
            stored: Approximate bytes of the rows in their file.
            remaining: Approximate bytes of all rows still to be added.

        Raises:
            GiveUpError: `not_encodable`: a value does not fit its Parquet type.
            RetryError: `out_of_memory`, or the storage failed.
        """
        target = self._options.row_group_bytes
        if self._collected.rows + table.num_rows > MOST_ROWS:
            self._write_row_group()
        if table.num_rows:
            self._collected.add(table, stored)
        waiting = self._collected
        if waiting.in_memory >= IN_MEMORY_RATIO * target:
            self._write_row_group()
        elif waiting.stored * self._shrinking >= target:
            rest = (waiting.stored + remaining) * self._shrinking
            if rest > target + target / TAIL_SHARE:
                self._write_row_group()

    def finish(self) -> EncodedFile:
        """Write the last row group and the footer, and make the file durable. Without any row no file is written.

        Raises:
            RetryError: the storage failed.
            GiveUpError: the footer's row count differs from the rows written.
        """
        self._write_row_group()
        if self._writer is None:
            self.abort()
            return EncodedFile(rows=0, metrics=self._metrics.result({}))
        self._writer.add_key_value_metadata({"iceberg.schema": self._written.iceberg.model_dump_json()})
        self._close(self._writer)
        metadata = self._writer.writer.metadata
        size = self._output.finish()
        if metadata.num_rows != self._metrics.rows:
            raise GiveUpError(
                f"{self._metrics.rows} rows were written, but the new file's footer says {metadata.num_rows}",
                reason=Reason.ROW_COUNT_MISMATCH,
            )
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        return EncodedFile(
            rows=self._metrics.rows,
            metrics=self._metrics.result(self._column_sizes(groups)),
            size=size,
            split_offsets=tuple(_start(group.column(0)) for group in groups),
        )

    def abort(self) -> None:
        """Remove the file. Nothing can be added afterwards."""
        self._raw_sink.given_up = True
        self._collected = _Collected()
        self._output.abort()

    def _close(self, writer: pq.ParquetWriter) -> None:
        """Write the filters, the page indexes and the footer, without what readers would misunderstand."""
        if any(map(any, self._doubts)):
            self._sink.flush()
            self._raw_sink.held = bytearray()
        writer.close()
        self._sink.close()
        if self._raw_sink.held is not None:
            self._output.write(without_doubtful(bytes(self._raw_sink.held), self._doubts))

    def _write_row_group(self) -> None:
        if not self._collected.tables:
            return
        table, stored = pa.concat_tables(self._collected.tables), self._collected.stored
        self._collected = _Collected()
        self._metrics.add(table)
        before = self._sink.tell()
        try:
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._sink, self._written.arrow, **self._options.for_rows(table))
            self._writer.write_table(table, row_group_size=table.num_rows)
        except MemoryError as error:
            raise RetryError(
                f"Not enough memory to encode a row group of {table.nbytes} bytes: {error}", reason=Reason.OUT_OF_MEMORY
            ) from error
        except (pa.ArrowInvalid, NotImplementedError) as error:
            raise GiveUpError(f"Rows cannot be written as Parquet: {error}", reason=Reason.NOT_ENCODABLE) from error
        self._doubts.append(doubts_of(table))
        self._shrinking = min(1.0, (self._sink.tell() - before) / max(1.0, stored))
        del table
        pa.default_memory_pool().release_unused()

    def _column_sizes(self, groups: list[Any]) -> dict[int, int]:
        """Compressed bytes by field id; the columns of a row group are in schema order."""
        return {
            leaf.field.field_id: sum(group.column(index).total_compressed_size for group in groups)
            for index, leaf in enumerate(self._written.leaves)
        }


def _start(column: Any) -> int:
    """Offset of a column chunk's first page."""
    offsets = (column.dictionary_page_offset, column.data_page_offset)
    return int(min(offset for offset in offsets if offset))
