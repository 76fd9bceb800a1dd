"""Wide tables: which engine `auto` takes for 10, 200 and 2,000 columns, and what its files cost their readers.

Files are written by PyIceberg, rewritten by firnline and by Spark's `rewrite_data_files`, then opened and scanned with
three readers, interleaved; medians, as ratios to Spark's files.

    python -m tests.benchmarks.bench_width [10 200 2000] [--files 16] [--file-mb 8] [--rounds 7]
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as arrow_dataset
import pyarrow.parquet as pq
from rich.console import Console

from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import Request, plan_table
from compactor.table_names import TableName
from tests.benchmarks.harness import bench_folder, local_lake, options_of, rewriter_of, rounds, show_pairs
from tests.conftest import Lake

BYTES_PER_VALUE = 8
GOAL = 1.10


def make_table(lake: Lake, name: TableName, width: int, files: int, file_bytes: float) -> int:
    """A table of `width` columns of doubles that hardly compress; returns its snapshot."""
    names = [f"c{number:04d}" for number in range(width)]
    schema = pa.schema([(column, pa.float64()) for column in names])
    table = lake.catalog.create_table(name.identifier, schema)
    rows = max(1, round(file_bytes / (width * BYTES_PER_VALUE)))
    random = np.random.default_rng(width)
    for _ in range(files):
        table.append(pa.table([random.random(rows) for _ in names], schema=schema))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return int(snapshot.snapshot_id)


def kept(lake: Lake, name: TableName, folder: Path) -> list[str]:
    """Copies of the table's files, so that it can be rolled back."""
    folder.mkdir()
    rows = lake.sql(f"SELECT file_path FROM {name}.data_files ORDER BY file_path")
    paths = [row.file_path.removeprefix("file:") for row in rows]
    return [str(shutil.copy(path, folder / f"{number}.parquet")) for number, path in enumerate(paths)]


def readers(session: Any, columns: list[str]) -> dict[str, Callable[[list[str]], Any]]:
    few = ", ".join(f"sum({name})" for name in columns[:3])  # a sum: a count, least or greatest stands in statistics

    def spark(files: list[str], *names: str) -> None:
        session.read.parquet(*files).select(*names).write.format("noop").mode("overwrite").save()

    return {
        "DuckDB, open": lambda files: duckdb.sql(f"SELECT count(*) FROM read_parquet({files})").fetchall(),
        "DuckDB, 3 columns": lambda files: duckdb.sql(f"SELECT {few} FROM read_parquet({files})").fetchall(),
        "DuckDB, all": lambda files: duckdb.sql(f"SELECT sum(columns(*)) FROM read_parquet({files})").fetchall(),
        "PyArrow, open": lambda files: [pq.read_metadata(path).num_rows for path in files],
        "PyArrow, 3 columns": lambda files: arrow_dataset.dataset(files).to_table(columns=columns[:3]),
        "PyArrow, all": lambda files: arrow_dataset.dataset(files).to_table(),
        "Spark, open": lambda files: session.read.parquet(*files).count(),
        "Spark, 3 columns": lambda files: spark(files, *columns[:3]),
        "Spark, all": lambda files: spark(files, "*"),
    }


def footer_bytes(paths: list[str]) -> int:
    return max(pq.read_metadata(path).serialized_size for path in paths)


def measure(lake: Lake, width: int, files: int, file_mb: float, count: int, console: Console) -> None:
    name = TableName("lake", ("db",), f"wide_{width}")
    snapshot = make_table(lake, name, width, files, file_mb * 1e6)
    cache = ManifestCache(1 << 26)
    plan = plan_table(lake.view(str(name)), lake.settings.policy.for_table(name), cache, Request(force=True))
    result = rewriter_of(lake, cache).run(plan)
    ours = kept(lake, name, lake.folder / f"ours-{width}")
    lake.sql(f"CALL lake.system.rollback_to_snapshot('db.{name.name}', {snapshot})")
    lake.sql(f"CALL lake.system.rewrite_data_files(table => 'db.{name.name}')")
    theirs = kept(lake, name, lake.folder / f"theirs-{width}")
    console.print(f"\n{width} columns: {files} files of {plan.bytes / files / 1e6:.1f} MB")
    for group in result.groups:
        console.print(f"  engine {group.rewritten.engine} ({group.rewritten.reason}), {result.rewrite_seconds:.2f} s")
    for who, paths in (("firnline", ours), ("Spark", theirs)):
        size = sum(Path(path).stat().st_size for path in paths)
        console.print(
            f"  {who}: {len(paths)} files, {size / 1e6:.1f} MB, {pq.read_metadata(paths[0]).num_row_groups} row groups "
            f"in the first, footer {footer_bytes(paths):,} bytes = {100 * footer_bytes(paths) / size:.2f} %"
        )
    pairs = {
        reader: tuple(rounds({"": lambda: read(ours), " ": lambda: read(theirs)}, count).values())  # noqa: B023 - called at once
        for reader, read in readers(lake.session, [f"c{number:04d}" for number in range(width)]).items()
    }
    show_pairs(console, f"{width} columns", "firnline's files", "Spark's files", GOAL, pairs)
    query = "SELECT count(*), sum(hash(columns(*))::hugeint) FROM read_parquet({})"
    equal = {str(duckdb.sql(query.format(files)).fetchall()) for files in (ours, theirs)}
    assert len(equal) == 1, "contents differ"
    lake.sql(f"DROP TABLE {name} PURGE")


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("widths", nargs="*", type=int, default=[10, 200, 2000])
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--file-mb", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    conf = {"spark.driver.memory": "6g", "spark.sql.codegen.maxFields": "100"}
    with (
        bench_folder(options.folder) as (folder, console),
        local_lake(folder, spark={"master": "local[2]", "conf": conf}) as lake,
    ):
        for width in options.widths:
            measure(lake, width, options.files, options.file_mb, options.rounds, console)


if __name__ == "__main__":
    main()
