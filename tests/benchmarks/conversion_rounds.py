"""Case (g): equality deletes converted to positions, beside a plain copy and Spark's action, which rewrites files."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from compactor.commit.in_flight import new_run_id
from compactor.manifests.cache import ManifestCache
from compactor.planning.conversion import plan_conversion
from compactor.planning.inventory import take_inventory
from compactor.runs.convert import ConversionResult, Converting

if TYPE_CHECKING:
    from tests.benchmarks.bench_rewrite import Bench

CONVERTED = "firnline convert"
REWRITTEN = "rewrite_data_files, delete-file-threshold 1"


def convert(bench: Bench) -> ConversionResult:
    """Plan and convert, as the command does."""
    cache = ManifestCache(64 * 1024 * 1024)
    view = bench.catalogs.load(bench.name)
    conversion = plan_conversion(take_inventory(view, cache))
    return Converting(bench.rewriter(cache), view, conversion, new_run_id(view)).convert()


def by_spark(bench: Bench) -> None:
    """What users do today: the files to which deletes apply are rewritten."""
    options = "options => map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true')"
    bench.session.sql(f"CALL lake.system.rewrite_data_files(table => 'db.{bench.name.name}', {options})").collect()


def conversion_rounds(bench: Bench, rounds: int, console: Console) -> None:
    """Interleaved rounds after one that warms up; the contents are compared once."""
    seconds: dict[str, list[float]] = {"copy + fsync": [], CONVERTED: [], REWRITTEN: []}
    before = bench.contents()
    result: ConversionResult | None = None
    for number in range(rounds + 1):
        for name in seconds:
            started = time.perf_counter()
            if name == CONVERTED:
                result = convert(bench)
            elif name == REWRITTEN:
                by_spark(bench)
            else:
                bench.copy()
            taken = time.perf_counter() - started
            if name == "copy + fsync":
                bench.remove_copy()
            else:
                assert number or bench.contents() == before, f"{name} changed the table"
                bench.roll_back()
            seconds[name] += [taken] if number else []
    assert result is not None
    assert result.snapshot_after is not None
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    table = Table(title=f"(g) {bench.case.title}: {result.files_searched} files searched, {rounds} rounds")
    for heading in ("", "median s", "x copy"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, median in medians.items():
        table.add_row(name, f"{median:.2f}", f"{median / medians['copy + fsync']:.2f}")
    console.print(table)
    share = result.bytes_read / bench.small_bytes
    goal = f" (<= {bench.case.goal_read:.0%})" if bench.case.goal_read is not None else ""
    console.print(
        f"read {decimal(result.bytes_read)} of {decimal(bench.small_bytes)}: {share:.1%}{goal}; {result.rows:,} rows "
        f"of {result.files_hit} files deleted by position; contents equal in Spark's own read",
        highlight=False,
    )
