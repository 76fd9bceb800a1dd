"""docs/rules.md: the rules in words, which stay, and the tables of mutations, which `python -m` this module writes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.mutations.catalogue import MUTATIONS
from tests.mutations.mutation import Mutation

PAGE: Final = Path(__file__).parents[2] / "docs" / "rules.md"
_KEY: Final = re.compile(r"^## `?(\w+)`? ", re.MULTILINE)
_HEAD: Final = "| broken when | kept by | noticed by |\n|---|---|---|\n"
_TABLE: Final = re.compile(rf"{re.escape(_HEAD)}(\|.*\n)*")


def rule_keys() -> list[str]:
    """As mutations name the rules: the first word of each heading."""
    return _KEY.findall(PAGE.read_text(encoding="utf-8"))


def with_tables(page: str, mutations: Iterable[Mutation] = MUTATIONS) -> str:
    """The page with a fresh table at the end of each rule."""
    listed = list(mutations)
    head, *rules = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    return head + "\n".join(_section(rule, listed) for rule in rules)


def _section(text: str, mutations: Iterable[Mutation]) -> str:
    (key,) = _KEY.findall(text)
    rows = "".join(_row(mutation) for mutation in mutations if mutation.rule == key)
    return f"{_TABLE.sub('', text).rstrip()}\n\n{_HEAD}{rows}"


def _row(mutation: Mutation) -> str:
    name = mutation.target.removeprefix("compactor.").replace(":", ".")
    noticed = [test.removeprefix("tests/").partition("::") for test in mutation.tests]
    tests = ", ".join(f"`{test.partition('[')[0]}` ({file})" for file, _, test in noticed)
    return f"| {mutation.what} | `{name}` | {tests} |\n"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
