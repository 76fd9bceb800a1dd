"""docs/rules.md: `python -m tests.mutations.page > docs/rules.md`."""

from __future__ import annotations

from tests.mutations.catalogue import MUTATIONS
from tests.mutations.mutation import Mutation
from tests.mutations.rules import RULES, Rule

HEAD = """# Rules a rewrite must keep

From the Iceberg and Parquet specs, the engines and their bug trackers. Each table has one or two ways to break a rule,
the name of product code that keeps it, and the test that fails otherwise. `python -m tests.mutations` tries all of them
(`--rule 2,18` some); `tests/unit/docs/test_mutations.py` sees that the names exist. Who moves or renames what is listed
writes the new name in `tests/mutations/` and this page again: `python -m tests.mutations.page > docs/rules.md`.
"""


def rules_page() -> str:
    """The page, in Markdown."""
    return "\n".join([HEAD, *(_section(rule) for rule in RULES)])


def _section(rule: Rule) -> str:
    rows = [_row(mutation) for mutation in MUTATIONS if mutation.rule == rule.key]
    number = f"{rule.key} " if rule.key.isdigit() else ""
    text = [f"## {number}{rule.title}", "", rule.text, *([rule.also] if rule.also else []), ""]
    return "\n".join([*text, "| broken when | kept by | noticed by |", "|---|---|---|", *rows, ""])


def _row(mutation: Mutation) -> str:
    name = mutation.target.removeprefix("compactor.").replace(":", ".")
    tests = ", ".join(f"`{_function(test)}` ({_file(test)})" for test in mutation.tests)
    return f"| {mutation.what} | `{name}` | {tests} |"


def _file(test: str) -> str:
    return test.partition("::")[0].removeprefix("tests/")


def _function(test: str) -> str:
    return test.partition("::")[2].partition("[")[0]


if __name__ == "__main__":
    print(rules_page(), end="")
