"""Break every rule on purpose, one at a time, and see that a test notices.

\b
  python -m tests.mutations                    all of them: first every test as it is, then each with its rule broken
  python -m tests.mutations --rule 2,18        of some rules
  python -m tests.mutations --match vector     whose words, name or tests contain the text
  python -m tests.mutations --cheapest         only the first test of each
  python -m tests.mutations --list             what would be broken, and what should notice

The project is copied to a temporary folder and changed there. Tests that need Spark cost a start of Spark each. Exit
code 1 when a test does not notice, 2 when a mutation does not fit the code or a test fails as it is.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.mutations.applying import found
from tests.mutations.catalogue import MUTATIONS
from tests.mutations.mutation import Mutation, MutationError
from tests.mutations.rules import RULES
from tests.mutations.trial import Result, Verdict, as_they_are, copied, tried

ROOT = Path(__file__).parents[2]
BROKEN = 2
STYLES = {Verdict.CAUGHT: "green", Verdict.NOT_CAUGHT: "bold red", Verdict.UNCLEAR: "bold yellow"}


def _rules(_context: click.Context, _parameter: click.Parameter, text: str | None) -> list[str]:
    given = [name.strip() for name in (text or "").split(",") if name.strip()]
    known = [rule.key for rule in RULES]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise click.BadParameter(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return given


@click.command(help=__doc__)
@click.option("--rule", "rules", callback=_rules, help="Rules, comma-separated; default all.")
@click.option("--match", default="", help="Only mutations whose words, name or tests contain this text.")
@click.option("--cheapest", is_flag=True, help="Run the first test of each mutation alone.")
@click.option("--list", "listing", is_flag=True, help="List the mutations and end.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(rules: list[str], match: str, cheapest: bool, listing: bool, output: str) -> None:
    every = [replace(each, tests=each.tests[:1]) for each in MUTATIONS] if cheapest else MUTATIONS
    chosen = [
        mutation
        for mutation in every
        if (not rules or mutation.rule in rules) and match in " ".join((mutation.what, mutation.name, *mutation.tests))
    ]
    console = Console(stderr=output == "json", width=None if sys.stdout.isatty() else 200)
    if listing:
        _show(console, [Result(mutation, None, 0.0, "") for mutation in chosen], output)
        return
    try:
        for mutation in chosen:
            found(mutation)
        with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
            results = _tried(console, copied(ROOT, Path(folder)), chosen)
    except MutationError as error:
        console.print(f"[bold red]{error}", soft_wrap=True)
        sys.exit(BROKEN)
    _show(console, results, output)
    sys.exit(int(any(result.verdict is not Verdict.CAUGHT for result in results)))


def _tried(console: Console, copy: Path, chosen: Sequence[Mutation]) -> list[Result]:
    console.print(f"{len({test for mutation in chosen for test in mutation.tests})} tests as they are …")
    as_they_are(copy, chosen)
    results = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("mutations", total=len(chosen))
        for mutation in chosen:
            progress.update(bar, description=f"rule {mutation.rule}")
            results.append(tried(copy, mutation))
            if results[-1].verdict is not Verdict.CAUGHT or not console.is_terminal:
                _tell(console, results[-1])
            progress.advance(bar)
    return results


def _tell(console: Console, result: Result) -> None:
    mutation = result.mutation
    console.print(f"rule {mutation.rule}: {mutation.what}: {result.word}, {result.seconds:.0f} s", markup=False)
    if result.verdict is not Verdict.CAUGHT:
        console.print(result.tail, markup=False)


def _show(console: Console, results: Sequence[Result], output: str) -> None:
    if output == "json":
        click.echo(json.dumps([result.document for result in results], indent=2))
        return
    ran = any(result.verdict for result in results)
    table = Table("rule", "broken", "in", "caught by", *(["", "s"] if ran else []))
    for result in results:
        mutation = result.mutation
        tests = " ".join(test.rpartition("/")[2] for test in mutation.tests)
        words = (mutation.rule, mutation.what, mutation.target, tests)
        row = [escape(word) for word in words]
        if result.verdict:
            row += [f"[{STYLES[result.verdict]}]{result.word}[/]", f"{result.seconds:.0f}"]
        table.add_row(*row)
    console.print(table)
    caught = sum(result.verdict is Verdict.CAUGHT for result in results)
    if ran:
        console.print(f"{caught} of {len(results)} caught, {sum(result.seconds for result in results):.0f} s")


if __name__ == "__main__":
    main()
