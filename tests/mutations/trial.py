"""Running a mutation's tests in a copy of the project, with and without its rule broken."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.mutations.applying import applied
from tests.mutations.mutation import Mutation, MutationError

LEFT_BEHIND = (".*", "__pycache__", "*.egg-info", "build", "dist", "node_modules")
PASSED, FAILED = 0, 1  # pytest's exit codes; all others mean that the test did not run
FAILURES = re.compile(r"\b\d+ failed\b")  # in pytest's last line; a fixture's failure is an "error" there
TIMED_OUT = "Timeout (>"
TAIL = 4000  # characters of pytest's output that are kept


class Verdict(Enum):
    """What a test says of a broken rule."""

    CAUGHT = "caught"
    NOT_CAUGHT = "NOT CAUGHT"
    UNCLEAR = "UNCLEAR"  # the test did not run to an end, e.g. nothing could be imported or it took too long


@dataclass(frozen=True)
class Result:
    """One mutation tried; `how`: the error of the last test that ran, or the end of pytest's output."""

    verdict: Verdict
    seconds: float
    how: str


def copied(root: Path, folder: Path) -> Path:
    """A copy of the project below `folder`."""
    copy = folder / "project"
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
    return copy


def as_they_are(copy: Path, mutations: Sequence[Mutation]) -> None:
    """Run all tests once with nothing broken.

    Raises:
        MutationError: one of them fails or does not exist.
    """
    tests = list(dict.fromkeys(test for mutation in mutations for test in mutation.tests))
    code, output = _pytest(copy, tests)
    if tests and code != PASSED:
        raise MutationError(f"tests fail although nothing is broken:\n{output[-TAIL:]}")


def tried(copy: Path, mutation: Mutation) -> Result:
    """Break the rule in the copy, and run the tests until one does not notice."""
    started, verdict, output = time.monotonic(), Verdict.CAUGHT, ""
    with applied(copy, mutation):
        for test in mutation.tests:
            code, output = _pytest(copy, [test])
            verdict = verdict_of(code, output)
            if verdict is not Verdict.CAUGHT:
                break
    error = next((line for line in output.splitlines() if line.startswith("E  ")), "").removeprefix("E").strip()
    how = error if verdict is Verdict.CAUGHT else output[-TAIL:]
    return Result(verdict, time.monotonic() - started, how)


def verdict_of(code: int, output: str) -> Verdict:
    """Pure: what pytest's exit code and output say. Only a test that ran and failed has noticed."""
    if code == PASSED:
        return Verdict.NOT_CAUGHT
    last_line = (output.strip().splitlines() or [""])[-1]
    if code == FAILED and FAILURES.search(last_line) and TIMED_OUT not in output:
        return Verdict.CAUGHT
    return Verdict.UNCLEAR


def _pytest(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--hypothesis-profile=mutations"]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=copy,
        env=environment(copy),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return found.returncode, found.stdout


def environment(copy: Path) -> Mapping[str, str]:
    """Python, also in Spark's workers, takes modules from the copy.

    No bytecode of one mutation may be there for the next. Property tests try all their examples, because an eighth of
    them may not meet the mutation.
    """
    return {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "TEST_EXAMPLES": "all"}
