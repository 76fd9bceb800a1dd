"""The frame of every job: what is held, committed and told. The jobs here write nothing; the table is real."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.errors import FirnlineError, GiveUpError, RetryError
from compactor.events import RunFailed
from compactor.patience.holds import What
from compactor.reasons import Reason
from compactor.rewrite.tasks.input_metrics import TaskId
from compactor.rewrite.tasks.output_task import SILENCE
from compactor.runs.file_holds import HOUR
from compactor.runs.frame import Job, Part, carry_out
from compactor.runs.pool import Room
from compactor.runs.results import GroupResult, NotTriedError
from compactor.runs.rewrite import Rewrite
from compactor.runs.rewriter import Rewriter
from tests.unit.runs.working import Working, merged, refused, tools_of
from tests.unit.streaming.ledger.scene import Scene

SILENT = RetryError("503", reason=Reason.UNAVAILABLE)


class Counting(Job[int]):
    """A kind of job: three groups, and one commit for each two. `errors`: of the pieces of a group, at each attempt."""

    verb, kind, holds = "counting", "count", What.FILES

    def __init__(self, tools: Rewriter, scene: Scene, errors: Mapping[int, FirnlineError], groups: int = 3) -> None:
        super().__init__(tools, scene.history.view(), "run")
        self.errors, self.groups = errors, groups
        self.left: dict[int, FirnlineError] = {}
        self.committed: list[str] = []
        self.refusal: FirnlineError | None = None

    def parts(self) -> Sequence[Part]:
        pieces = [TaskId(number, 0) for number in range(self.groups)]
        return [Part(str(first), pieces[first : first + 2]) for first in range(0, self.groups, 2)]

    def run(self, bundle: Sequence[TaskId], room: Room) -> Mapping[TaskId, int | Exception]:
        room.free()
        return {piece: self.errors.get(piece.group, 1) for piece in bundle}

    def paths(self, group: int) -> Collection[str]:
        return {f"{group}.parquet"}

    def leave(self, failed: Mapping[int, FirnlineError]) -> None:
        self.left |= failed

    def commit(self, part: Part) -> bool:
        if self.refusal is not None and self.committed:
            raise self.refusal
        self.committed.append(part.name)
        return True


def test_a_group_that_fails_is_left_out_and_held_and_the_others_are_committed(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    tools = tools_of(scene, scene.published.append)
    job = Counting(tools, scene, {1: GiveUpError("a page is damaged")})
    carry_out(job)
    assert (job.committed, job.commits, [*job.left]) == (["0", "2"], 2, [1])
    assert tools.files.left_out(job.table) == {"1.parquet": "a page is damaged"}
    assert scene.published == []


@pytest.mark.parametrize("reason", [Reason.UNAVAILABLE, Reason.TASK_LOST])
def test_a_group_that_fails_again_while_others_are_done_is_given_up(tmp_path: Path, reason: Reason) -> None:
    scene = Scene(tmp_path)
    tools = tools_of(scene, scene.published.append)
    for given_up in (False, True):
        job = Counting(tools, scene, {0: RetryError("no answer", reason=reason)})
        carry_out(job)
        assert isinstance(job.left[0], GiveUpError) is given_up
        assert bool(tools.files.left_out(job.table, given_up=True)) is given_up
        scene.now += HOUR - 1


def test_what_was_not_tried_is_not_held(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    tools = tools_of(scene, scene.published.append)
    job = Counting(tools, scene, dict.fromkeys(range(6), SILENT), groups=6)
    job.parts = lambda: [Part("all", [TaskId(number, 0) for number in range(6)])]  # type: ignore[method-assign]
    carry_out(job)
    assert [type(error) for error in job.left.values()] == [RetryError] * SILENCE + [NotTriedError] * (6 - SILENCE)
    assert len(tools.files.left_out(job.table)) == SILENCE


def test_a_failure_is_told_with_what_was_committed_before(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    job = Counting(tools_of(scene, scene.published.append), scene, {})
    job.refusal = GiveUpError("the catalog refuses the commit")
    with pytest.raises(GiveUpError):
        carry_out(job)
    (failed,) = scene.published
    assert isinstance(failed, RunFailed)
    assert (failed.stage, failed.reaction) == ("count", "give_up")
    assert failed.message == "the catalog refuses the commit (after 1 commits of the run)"


class Unwanted(Rewrite):
    """Its commits are refused."""

    def _commit(self, _part: Part) -> bool:
        raise GiveUpError("the catalog refuses the commit")


@pytest.mark.parametrize("may_fail", [0, 1])
def test_a_commit_that_may_fail_gives_up_no_data_file(tmp_path: Path, may_fail: int) -> None:
    """They are written again after a moment: nothing is wrong with them."""
    working = Working(tmp_path, refused)
    tools = working.worker.rewriter
    tools = replace(tools, commit=tools.commit.model_copy(update={"max_failed_commits": may_fail}))
    job = Unwanted(tools, working.plan_now(), "run")
    groups: list[GroupResult] = [merged(planned) for planned in job.plan.groups]
    job._finished = groups
    part = job.parts()[0]
    if not may_fail:
        with pytest.raises(GiveUpError):
            job.commit(part)
        return
    assert not job.commit(part)
    assert [type(drop.error) for drop in job.result.dropped] == [GiveUpError] * len(groups)
    assert tools.files.left_out(job.table)
    assert not tools.files.left_out(job.table, given_up=True)
