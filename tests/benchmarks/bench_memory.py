"""Peak memory of one worker: a splice of 80 row groups of 128 MB, and an encode of several full row groups.

Each runs in a process of its own, as a Spark task's Python worker does. The splice's inputs are 80 names (hard links)
of one file of 20 columns that do not compress; its 10 GB output is real.

    python -m tests.benchmarks.bench_memory [--row-groups 80] [--row-group-mb 128] [--folder DIR]
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType
from rich.console import Console

from compactor.rewrite.deletes.equality_deletes import EncodeInput, InputFiles
from compactor.rewrite.encode.encode import EncodeTask
from compactor.rewrite.splice.checks import SpliceLimits
from compactor.rewrite.tasks.output_task import SpliceTask, TaskInput
from compactor.spark.session import WORKER_ENVIRONMENT
from tests.benchmarks.harness import bench_folder, options_of

COLUMNS = 20
MEGABYTE = 1_000_000

WORKER = """
import json, sys
def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
bare = peak()
import pickle
from compactor.rewrite.tasks.output_task import run_task
work = pickle.load(open(sys.argv[1], "rb"))
loaded = peak()
written = run_task(work)
print(json.dumps({"bare": bare, "loaded": loaded, "peak": peak(), "outcome": repr(written)[:300]}))
"""


def table_schema() -> Schema:
    kinds = [LongType(), DoubleType(), StringType(), LongType()]
    return Schema(*(NestedField(i + 1, f"c{i}", kinds[i % len(kinds)], required=False) for i in range(COLUMNS)))


def write_file(path: Path, row_group_bytes: int, row_groups: int, rows_of_group: int, codec: str) -> int:
    """A file of random values, in row groups of about `row_group_bytes`; returns its rows."""
    random = np.random.default_rng(1)
    schema = schema_to_pyarrow(table_schema())
    rows = row_group_bytes // (COLUMNS * 10)
    with pq.ParquetWriter(path, schema, compression=codec, use_dictionary=False) as writer:
        for _ in range(row_groups):
            columns = [_values(field.type, rows, random) for field in schema]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=rows_of_group or rows)
    return rows * row_groups


def _values(kind: pa.DataType, rows: int, random: np.random.Generator) -> pa.Array:
    if kind not in (pa.string(), pa.large_string()):
        return pa.array(random.integers(0, 2**62, rows)).cast(kind, safe=False)
    text = random.bytes(rows * 4).hex()
    return pa.array([text[start : start + 8] for start in range(0, rows * 8, 8)], kind)


def run_worker(work: object, folder: Path) -> dict[str, float | str]:
    (folder / "work.pickle").write_bytes(pickle.dumps(work))
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(folder / "work.pickle")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **WORKER_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    found: dict[str, float | str] = json.loads(done.stdout)
    return found


def report(console: Console, what: str, found: dict[str, float | str], row_group: float) -> None:
    bare, loaded, peak = (float(found[key]) / MEGABYTE for key in ("bare", "loaded", "peak"))
    console.print(
        f"{what}: interpreter {bare:.0f} MB, with the worker's modules {loaded:.0f} MB, peak {peak:.0f} MB: "
        f"{peak - bare:.0f} MB above the interpreter = {(peak - bare) / row_group:.2f} row groups\n"
        f"  {str(found['outcome'])[:160]}"
    )


def linked(path: Path, count: int) -> list[str]:
    """So many other names of a file, as locations."""
    names = [path.with_name(f"{path.stem}-{number}.parquet") for number in range(count)]
    for name in names:
        os.link(path, name)
    return [f"file://{name}" for name in names]


def spliced(folder: Path, row_groups: int, row_group: int, console: Console) -> None:
    first, output = folder / "input.parquet", folder / "spliced.parquet"
    rows = write_file(first, row_group, 1, 0, "none")
    size = first.stat().st_size
    names = linked(first, row_groups)
    inputs = tuple(EncodeInput(name, size, rows) for name in names)
    files = InputFiles(inputs, table_schema().model_dump_json())
    splice = SpliceTask(files, f"file://{output}", 0.0, SpliceLimits())
    console.print(f"{row_groups} inputs of {size / MEGABYTE:.0f} MB, {COLUMNS} columns")
    report(console, "splice", run_worker(TaskInput(splice, None), folder), size / MEGABYTE)
    console.print(f"  output {output.stat().st_size / 1e9:.1f} GB")
    output.unlink()


def encoded(folder: Path, files: int, row_group: int, console: Console) -> None:
    tiny, output = folder / "tiny.parquet", folder / "encoded.parquet"
    rows = write_file(tiny, row_group, 1, 5000, "zstd")
    size = tiny.stat().st_size
    encode = EncodeTask(
        InputFiles(
            tuple(EncodeInput(name, size, rows) for name in linked(tiny, files)), table_schema().model_dump_json()
        ),
        f"file://{output}",
        properties=(("write.parquet.row-group-size-bytes", str(row_group)),),
    )
    console.print(f"{files} inputs of {size / MEGABYTE:.0f} MB in tiny row groups")
    report(console, "encode", run_worker(TaskInput(None, encode), folder), row_group / MEGABYTE)
    written = pq.read_metadata(output)
    sizes = [written.row_group(number).total_byte_size / MEGABYTE for number in range(written.num_row_groups)]
    console.print(f"  {written.num_row_groups} row groups, {', '.join(f'{size:.0f}' for size in sizes)} MB")


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--row-groups", type=int, default=80)
    parser.add_argument("--row-group-mb", type=int, default=128)
    parser.add_argument("--encode-files", type=int, default=6, help="Input files of one row group's bytes each.")
    options = parser.parse_args()
    row_group = options.row_group_mb * MEGABYTE
    with bench_folder(options.folder) as (folder, console):
        spliced(folder, options.row_groups, row_group, console)
        encoded(folder, options.encode_files, row_group, console)


if __name__ == "__main__":
    main()
