"""What a supervisor does beside a run: it stops one that hangs or must end, and never in its commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from compactor.commit.in_flight import InFlightRecords, Record
from compactor.errors import RetryError, StoppedError
from compactor.lease.owner import Owner
from compactor.reasons import Reason
from compactor.runs.supervisor import ALWAYS_ON, RunSupervisor, Switches
from tests.unit.streaming.ledger.scene import Scene

PATIENCE = 30.0


class Run:
    """A run's record, and its supervisor."""

    def __init__(self, folder: Path) -> None:
        records = InFlightRecords(f"file://{folder}/in-flight", Owner.this_process(), 60, lambda: 100.0)
        self.record: Record = records.open("run", Scene(folder).history.view(), ["file:///lake/t/new.parquet"])
        self.hangs, self.cancelled = threading.Event(), threading.Event()
        self.supervisor = RunSupervisor(records, self.cancelled.set, 60, 60, self.hangs.is_set)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def hang(run: Run) -> Switches:
    run.hangs.set()
    return ALWAYS_ON


@pytest.mark.parametrize(
    ("cause", "stalled"),
    [(hang, True), (lambda _run: Switches(lambda: True, lambda: True), False)],
    ids=["it hangs", "it was paused"],
)
def test_a_run_that_hangs_or_must_end_is_stopped(run: Run, cause: Callable[[Run], Switches], stalled: bool) -> None:
    with run.supervisor.watch(run.record, cause(run)) as watch:
        assert watch.stopped.wait(PATIENCE)
        assert run.cancelled.wait(PATIENCE)
    assert watch.stalled.is_set() == stalled


def test_a_run_that_works_is_not_stopped_and_a_commit_is_not_interrupted(run: Run) -> None:
    asked = threading.Event()

    def works() -> bool:
        asked.set()
        return False

    with run.supervisor.watch(run.record, Switches(lambda: True, works)) as watch:
        assert asked.wait(PATIENCE)
        watch.committing.set()
        run.hangs.set()
        asked.clear()
        assert not watch.stopped.wait(2.5), "it looks every second"
        assert not asked.is_set()
        watch.committing.clear()
        assert watch.stopped.wait(PATIENCE)


def test_the_error_of_a_run_that_hung_says_so_and_another_attempt_is_made(run: Run) -> None:
    def work() -> None:
        with run.supervisor.watch(run.record, ALWAYS_ON, "the rewrite") as watch:
            assert watch.stopped.wait(PATIENCE)
            raise StoppedError("stopped before its commit")

    run.hangs.set()
    with pytest.raises(RetryError, match="the rewrite made no progress for 30 min") as raised:
        work()
    assert raised.value.reason == Reason.STALLED
