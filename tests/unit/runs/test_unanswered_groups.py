"""File groups for which the store does not answer: given up only once the commit of others shows that it is well."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from compactor.errors import FirnlineError, GiveUpError, RetryError
from compactor.reasons import Reason
from compactor.runs import run as run_module
from compactor.runs.results import DroppedGroup
from compactor.runs.run import Run
from compactor.runs.silence import SILENCE, Silence
from compactor.runs.supervisor import ALWAYS_ON, RunWatch

SILENT = DroppedGroup(cast("Any", "silent"), RetryError("503 for 1.parquet"))
DAMAGED = DroppedGroup(cast("Any", "damaged"), GiveUpError("a page is damaged", reason=Reason.CORRUPT_PAGE))
REWRITTEN = SimpleNamespace(rewritten=None)
RUNNER = SimpleNamespace(output_files=(), output_folders=(), most_attempts=1, repeated=False)
Part = tuple[list[Any], list[DroppedGroup]]


class Scene:
    """A run whose output jobs end as given for each part: finished and failed file groups.

    `landed`: whether a commit lands; an error: it fails.
    """

    def __init__(self, patched: pytest.MonkeyPatch, *parts: Part, landed: bool | FirnlineError = True) -> None:
        self.dropped: list[DroppedGroup] = []
        self.landed = landed
        outcomes = iter(parts)
        jobs = SimpleNamespace(rewrite=lambda _numbers: next(outcomes))
        patched.setattr(run_module, "OutputJobs", lambda **_: jobs)
        patched.setattr(run_module, "reclassify_conflicts", lambda _plan, failed, *_: tuple(failed))
        patched.setattr(run_module, "without_strays", lambda plan, _cache: (plan, ()))
        patched.setattr(run_module, "JavaTable", SimpleNamespace(load=lambda *_: None))
        patched.setattr(run_module, "OutputTaskRunner", lambda *_: RUNNER)
        supervisor = SimpleNamespace(watch=lambda *_: nullcontext(RunWatch()))
        patched.setattr(run_module, "RunSupervisor", lambda *_: supervisor)
        patched.setattr(run_module, "OutputRecords", lambda *_: SimpleNamespace(around=lambda *_: nullcontext()))
        patched.setattr(Run, "_drop", lambda _run, dropped: self.dropped.extend(dropped))
        patched.setattr(Run, "_sent_in_time", lambda *_, **__: self.send())
        patched.setattr(Run, "_rolled_back", lambda *_: False)
        patched.setattr(Run, "_parts", lambda _: [(number,) for number in range(len(parts))])
        patched.setattr(Run, "_clean_up", lambda *_, **__: None)
        tools: Any = SimpleNamespace(
            records=SimpleNamespace(note_committed=lambda *_: None), catalogs=None, cache=None, right=None, slots=None,
            pace=None, ticks=lambda: 0.0, listener=lambda _: None, session=None, lease_seconds=60, check_seconds=60,
        )  # fmt: skip
        table = SimpleNamespace(name="lake.db.t")
        plan: Any = SimpleNamespace(table=table, groups=[None], snapshot_id=1, seconds=0.0)
        self.run = Run(tools, plan, "run", ALWAYS_ON)
        self.run._dropped = self.dropped

    def send(self) -> Any:
        if isinstance(self.landed, FirnlineError):
            raise self.landed
        landed = SimpleNamespace(snapshot_id=2) if self.landed else None
        return SimpleNamespace(landed=landed, kept=(), files=(), delete_files_removed=0)

    def carry_out(self) -> None:
        self.run.carry_out(1)

    @property
    def errors(self) -> list[tuple[type[FirnlineError], Reason]]:
        return [(type(drop.error), drop.error.reason) for drop in self.dropped]


def test_a_store_that_answers_for_no_group_gives_none_up(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, ([], [SILENT, DAMAGED]))
    with pytest.raises(RetryError, match="503"):
        scene.carry_out()
    assert scene.errors == [(GiveUpError, Reason.CORRUPT_PAGE), (RetryError, Reason.UNAVAILABLE)]


def test_a_group_is_not_given_up_before_the_others_are_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, ([REWRITTEN], [SILENT]), landed=RetryError("the store does not answer"))
    with pytest.raises(RetryError):
        scene.carry_out()
    assert scene.dropped == []


def test_a_commit_of_others_shows_that_the_store_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, ([REWRITTEN], [SILENT]))
    scene.carry_out()
    assert scene.errors == [(GiveUpError, Reason.UNAVAILABLE)]
    assert str(scene.dropped[0].error).startswith("503 for 1.parquet")


def test_a_commit_that_found_nothing_to_send_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, ([REWRITTEN], [SILENT]), landed=False)
    with pytest.raises(RetryError, match="503"):
        scene.carry_out()
    assert scene.errors == [(RetryError, Reason.UNAVAILABLE)]


@pytest.mark.parametrize("at", range(3))
def test_a_group_without_an_answer_that_has_a_commit_to_itself_ends_no_run(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Else no later part would ever be rewritten, in no run: `commit.groups` 1, or as many commits as groups."""
    parts: list[Part] = [([REWRITTEN], [])] * 3
    parts[at] = ([], [SILENT, DAMAGED])
    scene = Scene(monkeypatch, *parts)
    scene.carry_out()
    assert scene.run.commits == 2
    assert sorted(reason for _, reason in scene.errors) == [Reason.CORRUPT_PAGE, Reason.UNAVAILABLE]
    assert {kind for kind, _ in scene.errors} == {GiveUpError}


def test_a_store_that_answers_no_part_any_more_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part alone has too few file groups to tell."""
    seen: list[Silence] = []

    class Silent:
        def __init__(self, *, silence: Silence, **_: Any) -> None:
            seen.append(silence)

        def rewrite(self, numbers: Any) -> Part:
            seen[-1].note(numbers)
            if seen[-1].is_of_all:
                raise SILENT.error
            return [], [SILENT]

    scene = Scene(monkeypatch, *[([], [])] * 9)
    monkeypatch.setattr(run_module, "OutputJobs", Silent)
    with pytest.raises(RetryError, match="503"):
        scene.carry_out()
    assert (len(seen), scene.dropped) == (SILENCE, [])
