"""Manifests that wait because files are due after each commit. Real tables; no bytes are moved."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from compactor.errors import CommitUnknownError, FirnlineError, GiveUpError, LaterError, ReplanError, RetryError
from compactor.events import RunFailed, RunSkipped
from compactor.planning.budget import NO_GRANT, Grant
from compactor.planning.plan_table import TablePlan
from compactor.planning.replace_order import Tail
from compactor.reasons import Reason
from compactor.runs import merge, turns
from compactor.runs.merge import DueManifests, Merge
from compactor.runs.results import RunResult
from compactor.runs.table_planner import TablePlanner
from tests.properties.table_history import NAME
from tests.unit.runs.working import DUE, NOT_DUE, Outcome, Working, fails, refused

INTERVAL, WAIT = 300.0, 3600.0


class Busy(Working):
    """A table with a writer: files are due after each of its commits, manifests from the beginning until a merge.

    `log`: (kind of commit, seconds since the beginning); w: of the writer, f: a rewrite of files, m: of manifests.
    """

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome = refused, convert: int | None = None
    ) -> None:
        super().__init__(folder, outcome, convert_equality_deletes=convert)
        self.commits, self.manifests = 1, DUE
        self.failed: list[float] = []
        self.started = self.scene.now
        self.log: list[tuple[str, float]] = []
        for module in (merge, turns):
            monkeypatch.setattr(module, "tail_of", lambda _: self.tail)

    @property
    def tail(self) -> Tail:
        kind, at = self.log[-1]
        return Tail() if kind == "w" else Tail(1, manifests=kind == "m", at=self.started + at)

    @property
    def kinds(self) -> str:
        return "".join(kind for kind, _ in self.log)

    def commit(self, kind: str) -> None:
        self.log.append((kind, self.scene.now - self.started))

    def rewritten(self, plan: TablePlan) -> RunResult:
        self.commit("f")
        return super().rewritten(plan)

    def merge(self, job: Merge) -> None:
        if self.merge_error is not None:
            self.failed.append(self.scene.now)
        super().merge(job)
        if job.result is not None:
            self.commit("m")
            self.manifests = NOT_DUE

    def after_a_commit(self) -> None:
        """The writer commits; the dispatcher has a run made for that commit and one for the run's own."""
        self.scene.now += INTERVAL
        self.scene.history.append_unreal("b", [10, 10])
        self.commit("w")
        self.scene.look()
        for _ in range(2):
            self.work_on(replace(self.scene.debt(), manifests=self.manifests))


def test_manifests_are_merged_although_files_are_due_after_each_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = Busy(tmp_path, monkeypatch)
    for _ in range(int(3 * WAIT / INTERVAL)):
        busy.after_a_commit()
    assert busy.kinds.count("m") == 1
    assert not {"fm", "mf"} & {"".join(pair) for pair in pairwise(busy.kinds)}
    (at,) = [at for kind, at in busy.log if kind == "m"]
    assert WAIT <= at - INTERVAL <= WAIT + INTERVAL, "they have waited no longer than promised, since they became due"
    after = busy.kinds[busy.kinds.index("m") :]
    assert after.startswith("mwf"), "files go on after the writer's next commit"


def test_a_merge_that_fails_holds_up_no_files_and_is_tried_again_after_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = Busy(tmp_path, monkeypatch)
    busy.merge_error = RetryError("no answer")
    for _ in range(int(3 * WAIT / INTERVAL)):
        busy.after_a_commit()
    assert "ww" not in busy.kinds
    assert len(busy.of(RunFailed)) == len(busy.failed) == 2
    assert busy.failed[1] - busy.failed[0] >= WAIT


def failing_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: FirnlineError) -> Busy:
    """Manifests have waited for long enough, after a commit of the writer; their merge will fail."""
    busy = Busy(tmp_path, monkeypatch)
    busy.after_a_commit()
    busy.scene.now += WAIT
    busy.scene.history.append_unreal("b", [10, 10])
    busy.commit("w")
    busy.scene.look()
    busy.merge_error = error
    busy.later.clear()
    return busy


@pytest.mark.parametrize("error", [RetryError("no answer"), ReplanError("overtaken"), GiveUpError("refused")])
def test_a_merge_that_failed_is_not_tried_twice_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: FirnlineError
) -> None:
    """Also where no file is rewritten after it. Then its failure brings another run."""
    busy = failing_merge(tmp_path, monkeypatch, error)
    monkeypatch.setattr(TablePlanner, "plan", lambda *_: None)
    comes_again = not isinstance(error, GiveUpError)
    with pytest.raises(type(error)) if comes_again else nullcontext():
        busy.work_on(replace(busy.scene.debt(), manifests=DUE), NO_GRANT)
    assert len(busy.of(RunFailed)) == len(busy.failed) == 1
    assert busy.kinds[-1] == "w"


def test_nothing_follows_a_merge_that_may_have_been_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commit may be the last one of the hour, and two snapshots of ours would follow each other."""
    busy = failing_merge(tmp_path, monkeypatch, CommitUnknownError("no answer"))
    with pytest.raises(CommitUnknownError):
        busy.work_on(replace(busy.scene.debt(), manifests=DUE), Grant(commits=1))
    assert len(busy.of(RunFailed)) == len(busy.failed) == 1
    assert busy.kinds[-1] == "w"


def test_files_go_on_where_another_replace_came_before_the_commit_of_a_merge_and_manifests_go_first_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = LaterError("waits for another writer", reason=Reason.REPLACES_IN_A_ROW, seconds=60.0)
    busy = failing_merge(tmp_path, monkeypatch, waits)
    busy.work_on(replace(busy.scene.debt(), manifests=DUE), NO_GRANT)
    assert busy.kinds[-2:] == "wf"
    assert (len(busy.failed), busy.of(RunFailed), busy.later) == (1, [], [])
    busy.merge_error = None
    busy.after_a_commit()
    assert busy.kinds[-2:] == "wm"


@pytest.mark.parametrize("reason", [Reason.FLINK_LOCK, Reason.UNPUBLISHED])
def test_files_wait_too_for_what_concerns_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: Reason) -> None:
    busy = failing_merge(tmp_path, monkeypatch, LaterError("it is another's turn", reason=reason, seconds=60.0))
    busy.work_on(replace(busy.scene.debt(), manifests=DUE), NO_GRANT)
    assert busy.kinds[-1] == "w"
    assert [later.reason for later in busy.later] == [reason]


@pytest.fixture
def conversion_without_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Busy:
    return Busy(tmp_path, monkeypatch, fails(RetryError("503"), searches=9), convert=1)


def test_a_conversion_without_an_answer_fails_no_run_that_commits_files_although_manifests_must_wait(
    conversion_without_an_answer: Busy,
) -> None:
    busy = conversion_without_an_answer
    for _ in range(2):
        busy.after_a_commit()
    assert set(busy.kinds) == {"w", "f"}
    assert Reason.REPLACES_IN_A_ROW in {later.reason for later in busy.later}, "manifests have waited"


def test_a_merge_of_manifests_shows_too_that_the_store_is_well(
    conversion_without_an_answer: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = conversion_without_an_answer
    monkeypatch.setattr(TablePlanner, "plan", lambda *_: None)
    busy.after_a_commit()
    assert busy.kinds == "wm"
    assert len(busy.searched) == 1


def test_a_conversion_without_an_answer_is_tried_again_before_it_is_the_turn_of_manifests(
    conversion_without_an_answer: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = conversion_without_an_answer
    monkeypatch.setattr(TablePlanner, "plan", lambda *_: None)
    busy.scene.look()
    busy.commit("f")
    with pytest.raises(RetryError, match="503"):
        busy.work_on(replace(busy.scene.debt(), manifests=DUE), NO_GRANT)
    assert [event.reason for event in busy.of(RunSkipped)] == [Reason.REPLACES_IN_A_ROW]


def test_a_request_goes_before_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Busy(tmp_path, monkeypatch)
    busy.after_a_commit()
    busy.scene.now += WAIT
    busy.scene.board.request(NAME, [""])
    busy.after_a_commit()
    assert busy.kinds[busy.kinds.rindex("w") :].startswith("wf")


def test_how_long_manifests_are_due(tmp_path: Path) -> None:
    debt = Working(tmp_path, refused).scene
    debt.look()
    due, waits = replace(debt.debt(), manifests=DUE), DueManifests()
    assert [waits.seconds(due, now) for now in (100.0, 160.0)] == [0.0, 60.0]
    assert waits.seconds(due, 50.0) == 0.0, "the clock was set back"
    assert waits.seconds(due, 70.0) == 20.0
    assert waits.seconds(replace(due, manifests=NOT_DUE), 80.0) is None
    assert waits.seconds(due, 90.0) == 0.0
    waits.begin_again(due.table)
    assert waits.seconds(due, 99.0) == 0.0
