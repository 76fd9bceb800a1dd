"""Speed and memory of `encode`: many tiny files into four, beside PyArrow, Polars and a plain copy, in one run.

Ten columns as in the demo's table. Every contender gets four shares in two processes of one thread each; rounds are
interleaved, figures are medians. The copy reads and writes the same bytes and changes nothing.

    python -m tests.benchmarks.bench_encode [--files 2000] [--rounds 5] [--folder DIR]
    python -m tests.benchmarks.bench_encode --memory [--folder DIR]
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)
from rich.console import Console
from rich.table import Table

from compactor.rewrite.deletes.equality_deletes import EncodeInput
from compactor.rewrite.encode.encode import EncodeTask, encode
from compactor.rewrite.encode.writer import EncodedFile
from compactor.rewrite.reading.schema import written_schema
from tests.benchmarks.machine import description

SHARES = 4
PROCESSES = 2
ROWS = 3300  # about 104 KB a file
MIB = 1024 * 1024
ROW_GROUP = 128 * MIB
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "at", TimestamptzType()),
    NestedField(3, "kind", StringType()),
    NestedField(4, "region", StringType()),
    NestedField(5, "device", IntegerType()),
    NestedField(6, "session", LongType()),
    NestedField(7, "amount", DoubleType()),
    NestedField(8, "latitude", DoubleType()),
    NestedField(9, "longitude", DoubleType()),
    NestedField(10, "mobile", BooleanType()),
)
KINDS = np.array(["view", "click", "order", "refund"])
REGIONS = np.array([f"region-{number}" for number in range(40)])
DICTIONARIES = ["kind", "region", "device", "amount", "latitude", "longitude"]


def events(random: np.random.Generator, first: int, rows: int) -> list[pa.Array]:
    ids = np.sort(random.integers(first, first + SHARES * rows, rows))
    moments = 1_767_225_600_000_000 + ids * 1000 + random.integers(0, 1000, rows)
    return [
        pa.array(ids),
        pa.array(moments).view(pa.timestamp("us", "UTC")),
        pa.array(KINDS[random.integers(0, len(KINDS), rows)]),
        pa.array(REGIONS[random.integers(0, len(REGIONS), rows)]),
        pa.array(random.integers(0, 1_000_000, rows).astype(np.int32)),
        pa.array(random.integers(-(2**63), 2**63 - 1, rows)),
        pa.array(np.round(random.random(rows) * 1000, 2)),
        pa.array(np.round(random.random(rows) * 180 - 90, 2)),
        pa.array(np.round(random.random(rows) * 360 - 180, 2)),
        pa.array(random.random(rows) < 0.6),
    ]


def make_files(folder: Path, files: int) -> list[Path]:
    folder.mkdir()
    random = np.random.default_rng(1)
    arrow = written_schema(SCHEMA, with_lineage=False).arrow
    paths = [folder / f"{number:06d}.parquet" for number in range(files)]
    for number, path in enumerate(paths):
        pq.write_table(
            pa.table(events(random, number * SHARES * ROWS, ROWS), schema=arrow), path, store_schema=False,
            compression="zstd", compression_level=3, write_page_index=True, write_page_checksum=True,
            use_dictionary=DICTIONARIES,
        )  # fmt: skip
    return paths


# --- contenders: one share of files → one file --------------------------------------------------------------------


def by_encode(paths: list[Path], output: Path) -> None:
    inputs = tuple(EncodeInput(str(path), path.stat().st_size, ROWS) for path in paths)
    result = encode(EncodeTask(inputs, str(output), SCHEMA.model_dump_json()))
    assert isinstance(result, EncodedFile), result


def by_pyarrow(paths: list[Path], output: Path) -> None:
    tables = [pq.ParquetFile(path, pre_buffer=False).read(use_threads=False) for path in paths]
    pq.write_table(pa.concat_tables(tables), output, compression="zstd", compression_level=3, row_group_size=2**26)
    synced(output)


def by_polars(paths: list[Path], output: Path) -> None:
    import polars as pl  # noqa: PLC0415

    pl.read_parquet(paths, glob=False).write_parquet(output, compression="zstd", compression_level=3)
    synced(output)


def by_copy(paths: list[Path], output: Path) -> None:
    with output.open("wb", buffering=0) as sink:
        for path in paths:
            sink.write(path.read_bytes())
        os.fsync(sink.fileno())


def synced(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


CONTENDERS: dict[str, Callable[[list[Path], Path], None]] = {
    "copy + fsync": by_copy,
    "encode": by_encode,
    "PyArrow": by_pyarrow,
    "Polars": by_polars,
}


def processor_seconds(name: str, paths: list[Path], output: Path) -> float:
    started = time.process_time()
    CONTENDERS[name](paths, output)
    return time.process_time() - started


def measured(pool: ProcessPoolExecutor, name: str, paths: list[Path], folder: Path) -> tuple[float, float, int]:
    """Seconds, processor seconds and bytes written for all shares."""
    folder.mkdir()
    os.sync()
    started = time.perf_counter()
    works = [
        pool.submit(processor_seconds, name, paths[share::SHARES], folder / f"{share}.parquet")
        for share in range(SHARES)
    ]
    processor = sum(work.result() for work in works)
    seconds = time.perf_counter() - started
    size = sum(path.stat().st_size for path in folder.iterdir())
    shutil.rmtree(folder)
    return seconds, processor, size


def speed(folder: Path, files: int, rounds: int, console: Console) -> None:
    os.environ["POLARS_MAX_THREADS"] = "1"
    paths = make_files(folder / "small", files)
    total = sum(path.stat().st_size for path in paths)
    console.print(f"{files} files, {total / 1e6:.0f} MB, {files * ROWS:,} rows, into {SHARES}")
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    processor: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    sizes: dict[str, int] = {}
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for number in range(rounds + 1):
            for name, taken in seconds.items():
                each, of_processor, sizes[name] = measured(pool, name, paths, folder / "out")
                if number:  # the first round warms up
                    taken.append(each)
                    processor[name].append(of_processor)
    table = Table(title=f"medians of {rounds} interleaved rounds")
    for heading in ("", "median s", "min s", "max s", "x copy", "processor s", "MB written"):
        table.add_column(heading, justify="left" if not heading else "right")
    copy = statistics.median(seconds["copy + fsync"])
    for name, taken in seconds.items():
        median = statistics.median(taken)
        table.add_row(
            name, f"{median:.2f}", f"{min(taken):.2f}", f"{max(taken):.2f}", f"{median / copy:.1f}",
            f"{statistics.median(processor[name]):.2f}", f"{sizes[name] / 1e6:.0f}",
        )  # fmt: skip
    console.print(table)


# --- memory -------------------------------------------------------------------------------------------------------


def make_wide_files(folder: Path, files: int) -> list[Path]:
    """Twenty columns: those above, twice; files of about 16 MB."""
    folder.mkdir()
    random = np.random.default_rng(2)
    arrow = wide_arrow()
    paths = [folder / f"{number:03d}.parquet" for number in range(files)]
    for number, path in enumerate(paths):
        columns = [column for _ in range(2) for column in events(random, number * 1_000_000, 250_000)]
        pq.write_table(
            pa.table(columns, schema=arrow), path, store_schema=False, compression="zstd", row_group_size=50_000
        )
    return paths


def wide_schema() -> Schema:
    twice = [(copy, field) for copy in range(2) for field in SCHEMA.fields]
    return Schema(
        *[NestedField(100 * copy + field.field_id, f"{field.name}{copy}", field.field_type) for copy, field in twice]
    )


def wide_arrow() -> pa.Schema:
    return written_schema(wide_schema(), with_lineage=False).arrow


def encode_wide(paths: list[Path], output: Path, row_group: int) -> tuple[int, int, int, int]:
    """Peak resident bytes before and after encoding, row groups, and bytes written; in a process of its own."""
    rows = [pq.ParquetFile(path).metadata.num_rows for path in paths]
    inputs = tuple(EncodeInput(str(path), path.stat().st_size, n) for path, n in zip(paths, rows, strict=True))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    properties = (("write.parquet.row-group-size-bytes", str(row_group)),)
    result = encode(EncodeTask(inputs, str(output), wide_schema().model_dump_json(), properties=properties))
    assert isinstance(result, EncodedFile), result
    return before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, result.row_groups, result.size


def memory(folder: Path, console: Console) -> None:
    paths = make_wide_files(folder / "wide", 25)
    total = sum(path.stat().st_size for path in paths)
    console.print(f"{len(paths)} files of 20 columns, {total / 1e6:.0f} MB")
    for row_group in (ROW_GROUP, ROW_GROUP // 4):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            before, after, groups, size = pool.submit(
                encode_wide, paths, folder / f"{row_group}.parquet", row_group
            ).result()
        console.print(
            f"row groups of {row_group / MIB:.0f} MiB: {groups} of them, {size / 1e6:.0f} MB; "
            f"peak {after / MIB:.0f} MiB, {(after - before) / row_group:.1f} row groups more than before encoding"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    console = Console(width=120)
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        console.print(description(Path(scratch)))
        if options.memory:
            memory(Path(scratch), console)
        else:
            speed(Path(scratch), options.files, options.rounds, console)


if __name__ == "__main__":
    main()
