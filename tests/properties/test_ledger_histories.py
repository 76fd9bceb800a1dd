"""A sample of `python -m tests.ledger`, so that it stays alive between the long runs, and the parts of that test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ledger.jobs import orders_of
from tests.ledger.play import Order, open_place, play
from tests.ledger.recount import NOTHING, Truths
from tests.ledger.rules import FIGURES
from tests.ledger.trials import ROOT

SAMPLE = 5


def test_the_ledger_is_exact_under_random_histories(tmp_path: Path) -> None:
    before = FIGURES.sequences, FIGURES.steps
    with open_place(tmp_path, spark=False) as machine:
        play(machine, Order(SAMPLE, 20, seed=1, spark=False))
    assert FIGURES.sequences - before[0] >= SAMPLE
    assert FIGURES.steps - before[1] >= 10 * SAMPLE


@pytest.mark.slow
@pytest.mark.spark
def test_the_ledger_is_exact_beside_spark_too() -> None:
    """In a process of its own: a session has one set of catalogs."""
    command = [sys.executable, "-m", "tests.ledger", "--sequences", str(SAMPLE), "--jobs", "1", "--output", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_a_count_that_is_wrong_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test itself, seen red: a small mistake in the arithmetic fails a sequence."""
    monkeypatch.setattr("compactor.debt.table_changes.step_of", lambda size: len(str(size)))
    with (
        open_place(tmp_path, spark=False) as machine,
        pytest.raises(AssertionError, match=r"differs from the recount|contradicted"),
    ):
        play(machine, Order(SAMPLE, 20, seed=1, spark=False, shrink=False))


@pytest.mark.parametrize("jobs", [1, 2, 3, 7])
def test_all_sequences_are_given_to_some_process(jobs: int) -> None:
    orders = orders_of(Order(5, 20, seed=1, spark=False), jobs)
    assert sum(order.sequences for order in orders) == 5
    assert len({order.seed for order in orders}) == len(orders) == min(jobs, 5)


def test_a_snapshot_that_no_table_had_is_no_claim() -> None:
    assert Truths().of(None) == NOTHING
    with pytest.raises(AssertionError, match="no table ever had"):
        Truths().of(7)
