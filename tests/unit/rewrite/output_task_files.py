"""Inputs of one output task, with and without deletes and row lineage, and the output that is written of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from compactor.rewrite.deletes.equality_deletes import EncodeInput, EqualityDelete, InputFiles
from compactor.rewrite.encode.encode import EncodeTask, encode
from compactor.rewrite.encode.writer import EncodedFile
from compactor.rewrite.splice.checks import SpliceLimits
from compactor.rewrite.tasks.output_task import SpliceTask, TaskInput, TaskResult, run_task
from tests.unit.rewrite.encode_support import column, deletes

SCHEMA = Schema(NestedField(1, "id", "long", required=False), NestedField(2, "s", "string", required=False))
ARROW = pa.schema([column("id", pa.int64(), 1), column("s", pa.string(), 2)])
LARGE = 4000  # rows of a file that is worth keeping
LIMITS = SpliceLimits(min_row_group_bytes=8000, min_chunk_bytes=0, max_footer_fraction=10)


class Files:
    """Inputs of one output task, in arrival order. `large`: the first ones, which are worth keeping."""

    def __init__(
        self, folder: Path, large: int = 0, *, encoded: bool = False, most_carried: float = 0.0, lineage: bool = False
    ) -> None:
        self.folder = folder
        self.lineage = lineage
        self.most_carried = most_carried
        self.by_value = False
        self.inputs: list[EncodeInput] = []
        self.rows: list[int] = []
        for _ in range(large):
            self.add(LARGE, encoded=encoded)

    def add(self, rows: int, *, encoded: bool = False, first_row_id: int | None = None) -> EncodeInput:
        first, number = len(self.rows), len(self.inputs)
        self.rows += range(first, first + rows)
        path = self.folder / f"{number}.parquet"
        ids = list(range(first, first + rows))
        table = pa.table({"id": ids, "s": [f"text {value * 7919}" for value in ids]}, schema=ARROW)
        pq.write_table(table, path, compression="none", use_dictionary=False)
        made = EncodeInput(f"file://{path}", path.stat().st_size, rows, number + 1, first_row_id)
        if encoded:
            task = self.encode([made], f"file://{self.folder}/{number}-encoded.parquet")
            written = encode(task)
            assert isinstance(written, EncodedFile)
            made = replace(made, location=task.output, size=written.size)
        self.inputs.append(made)
        return made

    def delete(self, number: int, positions: list[int]) -> None:
        location = self.inputs[number].location
        file = deletes(self.folder / f"{number}-deletes.parquet", [(location, position) for position in positions])
        before = sum(each.records for each in self.inputs[:number])
        for position in positions:
            self.rows.remove(before + position)
        file = replace(file, location=f"file://{file.location}")
        self.inputs[number] = replace(self.inputs[number], position_deletes=(file,))

    def delete_ids(self, ids: list[int], sequence_number: int = 9) -> None:
        """An equality delete of these ids, newer than all inputs."""
        path = self.folder / "by-value.parquet"
        pq.write_table(pa.table({"id": ids}, schema=pa.schema([ARROW.field("id")])), path)
        delete = EqualityDelete(f"file://{path}", path.stat().st_size, sequence_number, (1,))
        self.inputs = [replace(each, equality_deletes=(delete,)) for each in self.inputs]
        self.by_value = True
        self.rows = [each for each in self.rows if each not in ids]

    def encode(self, inputs: list[EncodeInput], output: str) -> EncodeTask:
        return EncodeTask(
            InputFiles(tuple(inputs), SCHEMA.model_dump_json()),
            output,
            properties=(("write.parquet.compression-codec", "uncompressed"),),
            format_version=3 if self.lineage else 2,
            keep_row_lineage=self.lineage,
        )

    def work(self) -> TaskInput:
        encode = self.encode(self.inputs, f"file://{self.folder}/output.parquet")
        splice = SpliceTask(encode.files, encode.output, self.most_carried, LIMITS, self.lineage, self.by_value)
        return TaskInput(splice, encode, f"file://{self.folder}/aside.parquet")

    def write(self) -> TaskResult:
        written = run_task(self.work())
        assert isinstance(written, TaskResult)
        assert not (self.folder / "aside.parquet").exists()
        return written

    @property
    def output(self) -> pa.Table:
        return pq.ParquetFile(self.folder / "output.parquet").read()
