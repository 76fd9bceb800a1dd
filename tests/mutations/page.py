"""docs/rules.md: `python -m tests.mutations.page > docs/rules.md`."""

from __future__ import annotations

from tests.mutations.catalogue import MUTATIONS
from tests.mutations.mutation import Mutation
from tests.mutations.rules import RULES, Rule

HEAD = """# Rules a rewrite must keep

From the Iceberg and Parquet specs, the engines and their bug trackers. Each table says what would break a rule, where
the code keeps it, and which test fails then; `python -m tests.mutations` tries all of them (`--rule 2,18` some), and
`tests/unit/docs/test_mutations.py` sees that the list fits the code. Who changes a line that is listed changes its
mutation in `tests/mutations/` too, and writes this page again: `python -m tests.mutations.page > docs/rules.md`.
"""


def rules_page() -> str:
    """The page, in Markdown."""
    return "\n".join([HEAD, *(_section(rule) for rule in RULES)])


def _section(rule: Rule) -> str:
    rows = [_row(mutation) for mutation in MUTATIONS if mutation.rule == rule.key]
    number = f"{rule.key} " if rule.key.isdigit() else ""
    text = [f"## {number}{rule.title}", "", rule.text, *([rule.also] if rule.also else []), ""]
    return "\n".join([*text, "| broken when | kept in | noticed by |", "|---|---|---|", *rows, ""])


def _row(mutation: Mutation) -> str:
    module = mutation.path.removeprefix("compactor/")
    test = f"`{mutation.test_function}` ({mutation.test_file.removeprefix('tests/')})"
    return f"| {mutation.what} | `{module}` | {test} |"


if __name__ == "__main__":
    print(rules_page(), end="")
