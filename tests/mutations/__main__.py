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

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from tests.mutations.applying import found
from tests.mutations.catalogue import MUTATIONS
from tests.mutations.mutation import Mutation, MutationError
from tests.mutations.page import rule_keys
from tests.mutations.trial import Verdict, as_they_are, copied, tried

ROOT = Path(__file__).parents[2]
BROKEN = 2


def _rules(_context: click.Context, _parameter: click.Parameter, text: str | None) -> list[str]:
    given = [name.strip() for name in (text or "").split(",") if name.strip()]
    known = rule_keys()
    unknown = [name for name in given if name not in known]
    if unknown:
        raise click.BadParameter(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return given


@click.command(help=__doc__)
@click.option("--rule", "rules", callback=_rules, help="Rules, comma-separated; default all.")
@click.option("--match", default="", help="Only mutations whose words, name or tests contain this text.")
@click.option("--cheapest", is_flag=True, help="Run the first test of each mutation alone.")
@click.option("--list", "listing", is_flag=True, help="List the mutations and end.")
def main(rules: list[str], match: str, cheapest: bool, listing: bool) -> None:
    every = [replace(each, tests=each.tests[:1]) for each in MUTATIONS] if cheapest else MUTATIONS
    chosen = [
        mutation
        for mutation in every
        if (not rules or mutation.rule in rules) and match in " ".join((mutation.what, mutation.name, *mutation.tests))
    ]
    if listing:
        for mutation in chosen:
            click.echo("\n  ".join((f"rule {mutation.rule}: {mutation.what}", mutation.target, *mutation.tests)))
        return
    try:
        for mutation in chosen:
            found(mutation)
        with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
            caught = _caught(copied(ROOT, Path(folder)), chosen)
    except MutationError as error:
        click.echo(str(error), err=True)
        sys.exit(BROKEN)
    click.echo(f"{caught} of {len(chosen)} caught")
    sys.exit(int(caught < len(chosen)))


def _caught(copy: Path, chosen: Sequence[Mutation]) -> int:
    click.echo(f"{len({test for mutation in chosen for test in mutation.tests})} tests as they are …")
    as_they_are(copy, chosen)
    caught = 0
    for mutation in chosen:
        result = tried(copy, mutation)
        caught += result.verdict is Verdict.CAUGHT
        words = f"rule {mutation.rule}: {mutation.what}: {result.verdict.value}, {result.seconds:.0f} s"
        click.echo(f"{words}: {result.how}")
    return caught


if __name__ == "__main__":
    main()
