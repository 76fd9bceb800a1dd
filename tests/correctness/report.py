"""What `python -m tests.correctness` prints: the matrix, the failures and how to reproduce them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from tests.correctness.checks import CellResult, Outcome
from tests.correctness.matrix import Cell

MARKS = {Outcome.OK: "green", Outcome.NOTHING: "dim", Outcome.REFUSED: "dim", Outcome.FAILED: "bold red"}


@dataclass(frozen=True)
class Case:
    """A generated case: its seed, the script as text, and the result per engine."""

    seed: int
    script: str
    results: tuple[CellResult, ...]


def cell_text(result: CellResult) -> str:
    """A cell in a few words: the engines that did it, or why it was refused."""
    if result.outcome is Outcome.REFUSED:
        return f"— {result.reason.partition(':')[0] if len(result.reason) > 48 else result.reason}"
    if result.outcome is Outcome.FAILED:
        return f"FAILED ({len(result.problems)})"
    if result.outcome is Outcome.NOTHING:
        return "nothing to do"
    engines = "+".join(sorted({text.partition(":")[0] for text in result.engines}))
    return f"{engines} {result.files_in}→{result.files_out}"


def print_matrix(console: Console, cells: Sequence[Cell], engines: Sequence[str]) -> None:
    """One line per kind and writer, one column per engine."""
    if not cells:
        return
    table = Table(title="table kind, writer, engine", row_styles=("", "on grey7"))
    for heading in ("kind", "writer", "rows", *engines):
        table.add_column(heading, justify="right" if heading == "rows" else "left", no_wrap=heading == "kind")
    rows: dict[tuple[str, str], dict[str, CellResult]] = {}
    for cell in cells:
        rows.setdefault((cell.kind, cell.writer), {})[cell.result.engine] = cell.result
    for (kind, writer), results in rows.items():
        texts = [
            f"[{MARKS[results[engine].outcome]}]{cell_text(results[engine])}[/]" if engine in results else ""
            for engine in engines
        ]
        table.add_row(kind, writer, str(max(result.rows for result in results.values())), *texts)
    console.print(table)
    console.print(summary("cells", [cell.result for cell in cells]))
    _print_refusals(console, [cell.result for cell in cells])


def _print_refusals(console: Console, results: Sequence[CellResult]) -> None:
    reasons = Counter((result.engine, result.reason) for result in results if result.outcome is Outcome.REFUSED)
    for (engine, reason), count in sorted(reasons.items()):
        console.print(f"  — {engine}, {count} cells: {reason}", markup=False, highlight=False)


def print_cases(console: Console, cases: Sequence[Case]) -> None:
    """What the generated cases were made of, and what came of them."""
    if not cases:
        return
    results = [result for case in cases for result in case.results]
    console.print(summary("generated cases", results))
    engines = Counter(engine for result in results for engine in result.engines)
    table = Table(title=f"{len(cases)} distinct generated cases, seeds {cases[0].seed} to {cases[-1].seed}")
    table.add_column("engine: reason")
    table.add_column("cases", justify="right")
    for engine, count in engines.most_common():
        table.add_row(engine, str(count))
    console.print(table)
    console.print("seeds: " + " ".join(str(case.seed) for case in cases), highlight=False)


def summary(what: str, results: Sequence[CellResult]) -> str:
    """One line: how many of each outcome."""
    counts = Counter(result.outcome for result in results)
    said = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome])
    return f"{len(results)} {what}: {said}"


def print_failures(console: Console, cells: Sequence[Cell], cases: Sequence[Case]) -> None:
    """Every failure with its problems and the command that plays it again."""
    for cell in cells:
        _print_failure(
            console, cell.result, f"--cases 0 --kinds {cell.kind} --writers {cell.writer} --engine {cell.result.engine}"
        )
    for case in cases:
        for result in case.results:
            _print_failure(console, result, f"--seed {case.seed} --engine {result.engine}", case.script)


def _print_failure(console: Console, result: CellResult, command: str, script: str = "") -> None:
    if result.outcome is not Outcome.FAILED:
        return
    console.print(f"FAILED  python -m tests.correctness {command}", style="bold red", highlight=False)
    for problem in result.problems:
        console.print(f"    {problem}", markup=False, highlight=False)
    if script:
        console.print(f"    {script}", markup=False, highlight=False, style="dim")
