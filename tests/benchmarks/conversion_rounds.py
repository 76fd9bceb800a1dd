"""Case (g): equality deletes converted to positions, beside a plain copy and Spark's action, which rewrites files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.filesize import decimal

from compactor.commit.in_flight import new_run_id
from compactor.manifests.cache import ManifestCache
from compactor.planning.conversion import plan_conversion
from compactor.planning.inventory import take_inventory
from compactor.runs.convert import ConversionResult, Converting
from tests.benchmarks.harness import rewriter_of, rounds, show_rounds

if TYPE_CHECKING:
    from tests.benchmarks.bench_rewrite import Bench

COPY = "copy + fsync"
CONVERTED = "firnline convert"
REWRITTEN = "rewrite_data_files, delete-file-threshold 1"


def convert(bench: Bench) -> ConversionResult:
    """Plan and convert, as the command does."""
    cache = ManifestCache(64 * 1024 * 1024)
    view = bench.lake.catalogs.load(bench.name)
    conversion = plan_conversion(take_inventory(view, cache))
    return Converting(rewriter_of(bench.lake, cache), view, conversion, new_run_id(view)).convert()


def by_spark(bench: Bench) -> None:
    """What users do today: the files to which deletes apply are rewritten."""
    options = "options => map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true')"
    bench.lake.sql(f"CALL lake.system.rewrite_data_files(table => 'db.{bench.name.name}', {options})")


def conversion_rounds(bench: Bench, count: int, console: Console) -> None:
    """Interleaved rounds after one that warms up; the contents are compared once."""
    before = bench.contents()
    results: list[ConversionResult] = []

    def after(number: int, name: str, _seconds: float, result: Any) -> None:
        if name == COPY:
            bench.remove_folder()
            return
        assert number or bench.contents() == before, f"{name} changed the table"
        bench.roll_back()
        if name == CONVERTED:
            results.append(result)

    rivals = {COPY: bench.copy, CONVERTED: lambda: convert(bench), REWRITTEN: lambda: by_spark(bench)}
    found = rounds(rivals, count, after)
    result = results[-1]
    assert result.snapshot_after is not None
    title = f"(g) {bench.case.title}: {result.files_searched} files searched, {count} rounds"
    show_rounds(console, title, found, COPY)
    share = result.bytes_read / bench.small_bytes
    goal = f" (<= {bench.case.goal_read:.0%})" if bench.case.goal_read is not None else ""
    console.print(
        f"read {decimal(result.bytes_read)} of {decimal(bench.small_bytes)}: {share:.1%}{goal}; {result.rows:,} rows "
        f"of {result.files_hit} files deleted by position; contents equal in Spark's own read"
    )
