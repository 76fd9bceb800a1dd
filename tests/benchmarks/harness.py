"""What the benchmarks share: options, a folder whose machine is printed, a local lake, interleaved rounds, tables."""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from compactor.iceberg.tables import Catalogs
from compactor.manifests.cache import ManifestCache
from compactor.runs.rewriter import Rewriter
from compactor.runs.slots import SlotPool
from compactor.settings.tree import CommitSettings, Settings
from compactor.spark.session import spark_session
from tests.benchmarks.machine import description
from tests.conftest import Lake


def options_of(text: str | None, *cases: str) -> argparse.ArgumentParser:
    """A parser whose help is the module's text; it knows `--folder`. `cases`: that may be named."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="Where the temporary folder is made.")
    if cases:
        parser.add_argument("cases", nargs="*", metavar="CASE", help=f"Of {' '.join(cases)}.")
    return parser


@contextmanager
def bench_folder(parent: Path | None = None, *, stderr: bool = False) -> Iterator[tuple[Path, Console]]:
    """A temporary folder, and the console on which the machine is printed."""
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    console = Console(width=140, stderr=stderr, highlight=False)
    with tempfile.TemporaryDirectory(dir=parent, prefix="bench-") as folder:
        console.print(description(Path(folder)))
        yield Path(folder), console


@contextmanager
def local_lake(folder: Path, **sections: Any) -> Iterator[Lake]:
    """A SQLite catalog `lake` with the namespace `db`, and a Spark session; `sections` of the settings."""
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    settings = Settings(catalogs={"lake": properties}, **{"spark": {"master": "local[2]"}, **sections})
    session = spark_session(settings, "firnline-benchmark")
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.db")
    try:
        yield Lake(folder, settings, session, Catalogs(settings.catalogs))
    finally:
        session.stop()


def rewriter_of(lake: Lake, cache: ManifestCache, slots: SlotPool | None = None, **more: Any) -> Rewriter:
    """A rewriter that waits for no writer."""
    return Rewriter(
        lake.session, lake.catalogs, cache, lake.in_flight(), slots=slots or SlotPool(2), lease_seconds=600,
        check_seconds=600, commit=CommitSettings(hold_seconds=0), **more,
    )  # fmt: skip


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Seconds, and the result."""
    started = time.perf_counter()
    result = work(*arguments)
    return time.perf_counter() - started, result


def rounds(
    rivals: Mapping[str, Callable[[], Any]],
    count: int,
    after: Callable[[int, str, float, Any], float | None] = lambda _number, _name, _seconds, _result: None,
) -> dict[str, list[float]]:
    """Seconds of each rival in so many rounds, after one that warms up; every second round goes backwards.

    `after`: called outside of the time with round, name, seconds and result; what it returns stands for the seconds.
    """
    found: dict[str, list[float]] = {name: [] for name in rivals}
    for number in range(count + 1):
        for name in list(rivals)[:: 1 if number % 2 else -1]:
            os.sync()
            taken, result = timed(rivals[name])
            other = after(number, name, taken, result)
            if number:
                found[name].append(taken if other is None else other)
    return found


def medians(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each rival."""
    return {name: statistics.median(values) for name, values in found.items()}


def show(
    console: Console, title: str, headings: Sequence[str], rows: Iterator[Sequence[object]] | Sequence[Any]
) -> None:
    """A table: the first column is text; floats have two digits."""
    table = Table(title=title)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in rows:
        table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row))
    console.print(table)


def show_rounds(console: Console, title: str, found: Mapping[str, Sequence[float]], *beside: str) -> None:
    """Medians, extremes, and the medians as multiples of those of the rivals `beside`."""
    middle = medians(found)
    rows = (
        (name, middle[name], min(values), max(values), *(middle[name] / middle[each] for each in beside))
        for name, values in found.items()
    )
    show(console, title, ("", "median s", "min s", "max s", *(f"x {name}" for name in beside)), list(rows))


def show_pairs(console: Console, title: str, ours: str, theirs: str, goal: float, pairs: Mapping[str, Any]) -> None:
    """Seconds of both for each reader: medians, and the ratios of medians and of the best. `pairs`: (ours, theirs)."""
    rows = [
        (name, *(f"{statistics.median(each):.4f}" for each in both), ratio(*both, statistics.median), ratio(*both, min))
        for name, both in pairs.items()
    ]
    show(console, title, ("reader", f"{ours} s", f"{theirs} s", f"ratio (<= {goal})", "ratio of the best"), rows)


def ratio(ours: Sequence[float], theirs: Sequence[float], of: Callable[[Sequence[float]], float]) -> float:
    """One figure of ours by that of theirs."""
    return of(ours) / of(theirs)
