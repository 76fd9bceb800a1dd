"""Histories of the service beside catalogs, writers, faults and deaths (tests/simulator)."""

import os
import subprocess
import sys

import pytest

from tests.properties.examples import ALL
from tests.simulator.mutations import NOTICED

PARTS = 2
"""So that the histories run in several processes of pytest."""
ENOUGH = 20_000
"""Seeds among whose histories, those of one profile, each broken rule is noticed."""


def simulated(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The simulator, in a process in which no other thread tells the time."""
    command = [sys.executable, "-m", "tests.simulator", *arguments]
    return subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("part", range(PARTS))
def test_a_table_is_readable_whenever_a_commit_lands_and_nothing_is_left_behind(part: int) -> None:
    count = (20_000 if ALL else 720) // PARTS
    done = simulated(f"--histories={count}", f"--seed={1 + part * count}")
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]


@pytest.mark.slow
def test_a_history_is_the_same_each_time() -> None:
    one, other = (simulated("--histories=20", "--tell").stdout.partition("histories in")[0] for _ in range(2))
    assert one == other


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTICED)
def test_a_broken_rule_is_noticed(name: str) -> None:
    done = simulated(f"--histories={ENOUGH}", f"--mutation={name}")
    assert done.returncode == 0, done.stdout + done.stderr[-2_000:]
