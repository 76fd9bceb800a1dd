"""The list of mutations fits the code: what it would change is there, and so are the tests that it names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.mutations.catalogue import MUTATIONS
from tests.mutations.mutation import Mutation, MutationError
from tests.mutations.page import rules_page
from tests.mutations.rules import RULES
from tests.mutations.trial import Verdict, verdict_of

ROOT = Path(__file__).parents[3]


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation.rule}: {mutation.what}")
def test_a_mutation_fits(mutation: Mutation) -> None:
    assert mutation.applied_to(ROOT) != (ROOT / mutation.path).read_text(encoding="utf-8")
    compile(mutation.applied_to(ROOT), mutation.path, "exec")
    assert mutation.test_function in functions(mutation.test_file)
    assert mutation.what.strip() == mutation.what != ""


def test_a_mutation_uses_no_name_that_does_not_exist(tmp_path: Path) -> None:
    """A test would fail for the name, not for what the mutation claims to break."""
    for number, mutation in enumerate(MUTATIONS):
        (tmp_path / f"m{number}.py").write_text(mutation.applied_to(ROOT), encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--output-format", "concise"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    broken = {MUTATIONS[int(number)].what for number in re.findall(r"m(\d+)\.py", done.stdout)}
    assert (done.returncode, broken) == (0, set()), done.stdout + done.stderr


def test_every_rule_is_broken_by_some_mutation() -> None:
    rules = {rule.key for rule in RULES}
    assert {mutation.rule for mutation in MUTATIONS} == rules
    assert rules >= {str(number) for number in range(1, 19)}


def test_no_mutation_is_listed_twice() -> None:
    assert len({(each.path, each.before, each.after, each.test) for each in MUTATIONS}) == len(MUTATIONS)
    assert len({(each.rule, each.what) for each in MUTATIONS}) == len(MUTATIONS)


def test_text_that_is_not_there_once_is_an_error_that_names_the_mutation(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    for before in ("x = 1", "y"):
        with pytest.raises(MutationError, match="rule 2, 'words'"):
            Mutation("2", "words", "a.py", before, "", "t.py::test").applied_to(tmp_path)
    broken = Mutation("2", "words", "a.py", "x = 1\nx", "y", "t.py::test[a::b]")
    assert broken.applied_to(tmp_path) == "y = 1\n"
    assert (broken.test_file, broken.test_function) == ("t.py", "test")


@pytest.mark.parametrize(
    ("code", "output", "verdict"),
    [
        (0, "1 passed in 0.1s\n", Verdict.NOT_CAUGHT),
        (1, "FAILED a\n1 failed, 2 deselected in 0.1s\n", Verdict.CAUGHT),
        (1, "E   Failed: Timeout (>600.0s) from pytest-timeout.\n1 failed in 600.1s", Verdict.UNCLEAR),
        (1, "ERROR a - the session does not start\n1 error in 0.1s", Verdict.UNCLEAR),
        (2, "1 error in 0.1s", Verdict.UNCLEAR),
        (4, "ERROR: not found: a", Verdict.UNCLEAR),
        (-9, "", Verdict.UNCLEAR),
    ],
)
def test_only_a_test_that_ran_and_failed_has_noticed(code: int, output: str, verdict: Verdict) -> None:
    assert verdict_of(code, output) is verdict


def test_the_page_of_the_rules_is_up_to_date() -> None:
    written = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert written == rules_page(), "run: python -m tests.mutations.page > docs/rules.md"
