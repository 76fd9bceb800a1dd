"""What becomes of deletes: rebased, carried, converted, and all of these compacted again; read by six engines.

\b
  python -m tests.correctness.delete_paths [--readers FOLDER]

Each path is played on format versions 2 and 3, with and without partitions. Afterwards the rows must equal a model in
Spark, PyIceberg, DuckDB, Polars, ClickHouse and Daft. A reader that cannot read such a table is shown with its reason.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from compactor.iceberg.tables import Catalogs
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import Request, plan_table
from compactor.spark.session import spark_session
from tests.conftest import Lake, lake_settings
from tests.correctness.other_readers import READERS, OtherReaders, other_readers
from tests.correctness.stage import any_size_splices
from tests.integration.table_kit import MERGE_ON_READ, conversion, create, delete_equal, insert, planned, run

COLUMNS = ("id", "a", "k")
BY = {"whole": "", "by a": "PARTITIONED BY (a)"}
MOST_CARRIED = 0.15
Rows = list[tuple[object, ...]]


def inserted(commits: int, first: int = 0) -> Rows:
    """What `insert` inserts."""
    return [(number + first, f"p{number % 2}", number + first) for number in range(10)] * commits


def without(rows: Rows, *ids: int) -> Rows:
    return [row for row in rows if row[0] not in ids]


def rebased(lake: Lake, table: str) -> Rows:
    """Rows are deleted between the plan and the commit."""
    insert(lake, table, 4)
    plan = planned(lake, table)
    lake.sql(f"DELETE FROM lake.{table} WHERE id IN (2, 7)")
    result = run(lake, plan)
    assert sum(group.rows_rebased for group in result.groups), "no row was rebased"
    return without(inserted(4), 2, 7)


def carried(lake: Lake, table: str) -> Rows:
    """Few rows are deleted: row groups are copied, the deletes with them."""
    rows = with_hundreds(lake, table)
    lake.sql(f"DELETE FROM lake.{table} WHERE id IN (102, 103)")
    splice(lake, table)
    return without(rows, 102, 103)


def carried_by_key(lake: Lake, table: str) -> Rows:
    """Few keys are deleted: row groups are copied, the deletes become positions."""
    rows = with_hundreds(lake, table)
    if lake.view(table).metadata.spec().fields:
        delete_equal(lake, table, "id", [102], partition=["p0"])
        delete_equal(lake, table, "id", [103], partition=["p1"])
    else:
        delete_equal(lake, table, "id", [102, 103])
    splice(lake, table)
    return without(rows, 102, 103)


def with_hundreds(lake: Lake, table: str) -> Rows:
    """Seven commits of ten rows, the last one with ids from 100 on."""
    insert(lake, table, 6)
    maybe_null = "(SELECT nullif(id + 100, 0) AS id FROM range(10))"  # as in the other files: range's ids are required
    lake.sql(f"INSERT INTO lake.{table} SELECT /*+ COALESCE(1) */ id, concat('p', id % 2), id FROM {maybe_null}")
    return [*inserted(6), *inserted(1, 100)]


def converted(lake: Lake, table: str) -> Rows:
    """Equality deletes become positions."""
    insert(lake, table, 2)
    one_partition = bool(lake.view(table).metadata.spec().fields)
    delete_equal(lake, table, "id", [4, 5], partition=["p1"] if one_partition else ())
    insert(lake, table, 4)
    convert(lake, table)
    return [*without(inserted(2), *([5] if one_partition else [4, 5])), *inserted(4)]


def converted_and_spliced(lake: Lake, table: str) -> Rows:
    """The positions are carried by a splice."""
    rows = converted(lake, table)
    splice(lake, table)
    return rows


def again(path: Callable[[Lake, str], Rows]) -> Callable[[Lake, str], Rows]:
    """More rows, more deletes, then every file is rewritten."""

    def compacted_again(lake: Lake, table: str) -> Rows:
        rows = path(lake, table)
        insert(lake, table, 2)
        lake.sql(f"DELETE FROM lake.{table} WHERE id = 9")
        lake.compact(table, force=True, rewrite_all=True)
        return without([*rows, *inserted(2)], 9)

    return compacted_again


PATHS: dict[str, Callable[[Lake, str], Rows]] = {
    "rebased": rebased,
    "carried": carried,
    "carried by key": carried_by_key,
    "converted": converted,
    "converted and spliced": converted_and_spliced,
    "rebased and again": again(rebased),
    "carried and again": again(carried),
    "carried by key and again": again(carried_by_key),
    "converted and spliced and again": again(converted_and_spliced),
}


def splice(lake: Lake, table: str) -> None:
    """Compact, and see that deleted rows were carried."""
    view = lake.view(table)
    policy = lake.settings.policy.for_table(view.name).model_copy(update={"carried_delete_ratio": MOST_CARRIED})
    result = run(lake, plan_table(view, policy, ManifestCache(1 << 24), Request(force=True)))
    assert sum(group.rows_carried for group in result.groups), "no row was carried"


def convert(lake: Lake, table: str) -> None:
    result = conversion(lake, table).convert()
    assert result.deletes_removed, "nothing was converted"


@dataclass(frozen=True)
class Read:
    """What one reader saw of a table after a path: `ok`, or what is different."""

    path: str
    version: int
    by: str
    reader: str
    seen: str


def play(lake: Lake, readers: OtherReaders, path: str, version: int, by: str) -> list[Read]:
    """One path on one table, read by all."""
    table = f"db.paths_{abs(hash((path, version, by))):x}"
    create(lake, table, version, MERGE_ON_READ, BY[by])
    expected = sorted(PATHS[path](lake, table), key=repr)
    found: dict[str, Rows | str] = {"spark": by_spark(lake, table), "pyiceberg": by_pyiceberg(lake, table)}
    metadata = lake.view(table).metadata_location
    found |= {reader: readers.read(reader, metadata, COLUMNS) for reader in READERS}
    return [Read(path, version, by, reader, seen(expected, rows)) for reader, rows in found.items()]


def by_spark(lake: Lake, table: str) -> Rows:
    return sorted((tuple(row) for row in lake.sql(f"SELECT {', '.join(COLUMNS)} FROM lake.{table}")), key=repr)


def by_pyiceberg(lake: Lake, table: str) -> Rows | str:
    try:
        rows = lake.catalog.load_table(lake.name(table).identifier).scan().to_arrow().select(COLUMNS).to_pylist()
    except Exception as error:  # noqa: BLE001 - shown
        return f"{type(error).__name__}: {error}"
    return sorted((tuple(row.values()) for row in rows), key=repr)


def seen(expected: Rows, rows: Rows | str) -> str:
    if isinstance(rows, str):
        return f"cannot: {rows}"
    lost, new = len(set(map(repr, expected)) - set(map(repr, rows))), len(rows) - len(expected)
    return "ok" if list(map(repr, rows)) == list(map(repr, expected)) else f"wrong: {lost} lost, {new} more"


@contextmanager
def own_lake(folder: Path) -> Iterator[Lake]:
    """A catalog and a session that splice files of any size."""
    settings = lake_settings(folder, policy={"min_row_group_size": 0, "min_input_files": 2})
    session = spark_session(settings, "firnline-deletes")
    try:
        with any_size_splices():
            lake = Lake(folder, settings, session, Catalogs(settings.catalogs))
            lake.sql("CREATE NAMESPACE IF NOT EXISTS lake.db")
            yield lake
    finally:
        session.stop()


@click.command(help=__doc__)
@click.option("--readers", "folder", type=click.Path(path_type=Path), help="Where the readers' environment is kept.")
@click.option("--paths", default=",".join(PATHS), show_default=True, help="Paths, comma-separated.")
def main(folder: Path | None, paths: str) -> None:
    console = Console(width=180)
    reads: list[Read] = []
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        readers = stack.enter_context(other_readers(folder or Path(scratch) / "readers"))
        lake = stack.enter_context(own_lake(Path(scratch)))
        for path, version, by in product((each for each in PATHS if each in paths.split(",")), (2, 3), BY):
            new = play(lake, readers, path, version, by)
            reads += new
            console.print(f"{path}, V{version}, {by}: {', '.join(f'{r.reader} {r.seen}' for r in new)}")
    table = Table("path", "version", "partitions", "reader", "seen")
    for read in reads:
        if read.seen != "ok":
            table.add_row(read.path, str(read.version), read.by, read.reader, read.seen)
    console.print(f"{sum(read.seen == 'ok' for read in reads)} of {len(reads)} reads equal the model")
    console.print(table)
    sys.exit(int(any(read.seen.startswith("wrong") for read in reads)))


if __name__ == "__main__":
    main()
