"""The list of mutations fits the code: what it replaces is there, and so are the tests that it names."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from compactor.commit import sends, sweep
from tests.ledger.mutations import MUTATIONS as OF_THE_LEDGER
from tests.mutations.applying import applied, broken, found, function_of, takes_original
from tests.mutations.catalogue import MUTATIONS
from tests.mutations.commits import refused_for_good
from tests.mutations.files import key_without_the_spec
from tests.mutations.mutation import Mutation, MutationError, breaks
from tests.mutations.page import PAGE, rule_keys, with_tables
from tests.mutations.trial import Verdict, verdict_of

ROOT = Path(__file__).parents[3]
ALL = (*MUTATIONS, *OF_THE_LEDGER)


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def parameters(function: Any) -> list[tuple[str, Any]]:
    return [(each.name, each.kind) for each in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: f"{mutation.rule}: {mutation.what}")
def test_a_mutation_fits(mutation: Mutation) -> None:
    before = found(mutation)[2]
    with broken(mutation):
        assert found(mutation)[2] is not before
    assert found(mutation)[2] is before
    function = function_of(before)
    given = parameters(mutation.replacement)
    if function is None:
        assert given == parameters(lambda original: original)
    else:
        assert given[takes_original(mutation) :] == parameters(function)
    assert mutation.tests
    for test in mutation.tests:
        file, _, function = test.partition("::")
        assert function.partition("[")[0] in functions(file), test
    assert mutation.what.strip() == mutation.what != ""


def test_every_rule_is_broken_by_one_or_two_mutations() -> None:
    times = Counter(mutation.rule for mutation in MUTATIONS)
    assert times.keys() == set(rule_keys()) >= {str(number) for number in range(1, 19)}
    assert {rule for rule, number in times.items() if number > 2} == set()


@pytest.mark.parametrize("mutations", [MUTATIONS, OF_THE_LEDGER])
def test_no_mutation_is_listed_twice(mutations: tuple[Mutation, ...]) -> None:
    assert len({each.name for each in mutations}) == len({each.what for each in mutations}) == len(mutations)


def test_replacements_import_product_code_only_when_they_are_called() -> None:
    """Else other modules would have the name before it is replaced."""
    code = "import sys, tests.mutations.catalogue, tests.ledger.mutations; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {name.partition(".")[0] for name in done.stdout.split()} & {"compactor", "streaming", "metrics"} == set()


MODULE = """
from collections import namedtuple
Key = namedtuple("Key", "spec_id")
class PartitionLayout:
    def key(self, values):
        return Key(7)
"""


def test_a_mutation_changes_its_module_for_all_processes_and_only_for_a_while(tmp_path: Path) -> None:
    (tmp_path / "compactor").mkdir()
    (tmp_path / "compactor" / "__init__.py").touch()
    (tmp_path / "compactor" / "partitions.py").write_text(MODULE)
    code = f"import sys; sys.path.append({str(ROOT)!r})\nfrom compactor.partitions import PartitionLayout as Layout\n"

    def printed() -> str:
        command = [sys.executable, "-B", "-c", f"{code}print(Layout().key([]).spec_id, Layout.key.__qualname__)"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    with applied(tmp_path, key_without_the_spec):
        assert printed() == "0 PartitionLayout.key"
    assert printed() == "7 PartitionLayout.key"
    assert (tmp_path / "compactor" / "partitions.py").read_text() == MODULE


class Thing:
    """What is replaced in these tests: a constant, and each kind of function."""

    number = 1

    def method(self) -> int:
        return self.number

    @property
    def half(self) -> float:
        return self.number / 2

    @classmethod
    def made(cls) -> Thing:
        return cls()

    @staticmethod
    def twice(number: int) -> int:
        return 2 * number


def test_each_kind_of_name_is_replaced_in_this_process_for_a_while() -> None:
    def broken_by(path: str, replacement: Any) -> Any:
        return broken(breaks("1", f"{__name__}:{path}", "words", "t.py::test")(replacement))

    with broken_by("Thing.number", lambda original: original + 1):
        assert Thing().method() == 2
    with broken_by("Thing.method", lambda original, self: original(self) + 5):
        assert Thing().method() == 6
    with broken_by("Thing.half", lambda original, self: -original(self)):
        assert Thing().half == -0.5
    with (
        broken_by("Thing.made", lambda original, cls: original(cls).number),
        broken_by("Thing.twice", lambda number: number - 3),
    ):
        assert (Thing.made(), Thing.twice(3)) == (1, 0)
    assert (Thing().method(), Thing().half, Thing.twice(3)) == (1, 0.5, 6)
    for missing in ("Thing.none", "None.half", "none"):
        with pytest.raises(MutationError, match=missing), broken_by(missing, lambda: None):
            pass


def test_modules_that_have_imported_a_name_see_it_replaced() -> None:
    before = sends.can_still_land
    with broken(refused_for_good):
        assert sweep.can_still_land is sends.can_still_land is not before
    assert sweep.can_still_land is sends.can_still_land is before


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
    written = PAGE.read_text(encoding="utf-8")
    assert written == with_tables(written), "run: python -m tests.mutations.page"


def test_a_new_rule_gets_its_table_and_the_words_stay() -> None:
    page = "# Rules\n\n## 99 One\n\nWords.\n\n## `other` Two\n\nOther words.\n"
    mutation = breaks("other", "compactor.a:b", "words", "tests/unit/t.py::test[x::y]")(print)
    once = with_tables(page, [mutation])
    assert once.count("\n|---|---|---|\n") == 2
    assert once.endswith("\n| words | `a.b` | `test` (unit/t.py) |\n")
    assert with_tables(once, [mutation]) == once
    assert with_tables(once, []).replace("\n| broken when | kept by | noticed by |\n|---|---|---|\n", "") == page
