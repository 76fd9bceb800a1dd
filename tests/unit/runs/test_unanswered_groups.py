"""File groups for which the store does not answer: given up only where it answers for others."""

from __future__ import annotations

from collections.abc import Container
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from compactor.errors import FirnlineError, GiveUpError, RetryError
from compactor.reasons import Reason
from compactor.runs import run as run_module
from compactor.runs.results import DroppedGroup, NotTriedError
from compactor.runs.run import Run
from compactor.runs.silence import SILENCE, Silence, Unanswered
from compactor.runs.supervisor import ALWAYS_ON, RunWatch
from compactor.settings.tree import CommitSettings


def group(path: str) -> Any:
    return SimpleNamespace(file_group=SimpleNamespace(files=[SimpleNamespace(entry=SimpleNamespace(path=path))]))


SILENT = DroppedGroup(group("1.parquet"), RetryError("503 for 1.parquet"))
DAMAGED = DroppedGroup(cast("Any", "damaged"), GiveUpError("a page is damaged", reason=Reason.CORRUPT_PAGE))
REWRITTEN = SimpleNamespace(rewritten=None)
RUNNER = SimpleNamespace(output_files=(), output_folders=(), most_attempts=1, repeated=False)
Part = tuple[list[Any], list[DroppedGroup]]


@dataclass(frozen=True)
class Plan:
    """What a run uses of a `TablePlan`."""

    table: Any
    groups: tuple[Any, ...]
    snapshot_id: int = 1
    seconds: float = 0.0


class Scene:
    """A run whose output jobs end as given for each part: finished and failed file groups, without an answer at last.

    `landed`: whether a commit lands; an error: it fails. `in_flight`: how many other groups get no answer beside the
    first part.
    """

    def __init__(self, patched: pytest.MonkeyPatch, *parts: Part, landed: bool | FirnlineError = True) -> None:
        self.dropped: list[DroppedGroup] = []
        self.landed = landed
        self.in_flight = 0
        outcomes = iter(parts)

        def rewrite(silence: Silence) -> Part:
            finished, failed = next(outcomes)
            if finished:
                silence.end()
            silent = [path for drop in failed if type(drop.error) is RetryError for path in drop.paths]
            for path in [*silent, *range(self.in_flight)]:
                silence.note(path, silence.done)
            self.in_flight = 0
            return finished, failed

        patched.setattr(
            run_module, "OutputJobs", lambda silence, **_: SimpleNamespace(rewrite=lambda _numbers: rewrite(silence))
        )
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
            unanswered=Unanswered(), commit=CommitSettings(),
            given_up=SimpleNamespace(
                tried=lambda *_: nullcontext(), suspects=lambda _table: frozenset(), attempt=lambda *_: nullcontext()
            ),
        )  # fmt: skip
        self.tools = tools
        table: Any = SimpleNamespace(name="lake.db.t")
        plan: Any = Plan(table, tuple(group(f"{number}.parquet") for number in range(len(parts))))
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
    """Else no later part would ever be rewritten, in no run: `commit.groups` 1, or as many commits as groups.

    After the last one nothing shows that the store is well.
    """
    parts: list[Part] = [([REWRITTEN], [])] * 3
    parts[at] = ([], [SILENT, DAMAGED])
    scene = Scene(monkeypatch, *parts)
    scene.carry_out()
    assert scene.run.commits == 2
    assert {(reason, kind) for kind, reason in scene.errors} == {
        (Reason.CORRUPT_PAGE, GiveUpError),
        (Reason.UNAVAILABLE, RetryError if at == 2 else GiveUpError),
    }
    assert scene.tools.unanswered.noted("lake.db.t") == ({"1.parquet"} if at == 2 else set())


class Parts(Scene):
    """A run with a commit for each file group, in plan order. `dead`: numbers of those without an answer."""

    def __init__(self, patched: pytest.MonkeyPatch, groups: int, dead: Container[int], unanswered: Unanswered) -> None:
        super().__init__(patched, *[([], [])] * groups)
        self.tried: list[int] = []
        self.run._tools.unanswered = unanswered  # type: ignore[misc]
        scene = self

        class Jobs:
            def __init__(self, *, plan: Any, silence: Silence, **_: Any) -> None:
                self.plan, self.silence = plan, silence

            def rewrite(self, numbers: Any) -> Part:
                planned = self.plan.groups[numbers[0]]
                drop = DroppedGroup(planned, RetryError("503"))
                (path,) = drop.paths
                number = int(path.split(".")[0])
                scene.tried.append(number)
                if number not in dead:
                    self.silence.end()
                    return [REWRITTEN], []
                self.silence.note(path, self.silence.done)
                return [], [drop]

        patched.setattr(run_module, "OutputJobs", Jobs)


def test_a_store_that_answers_no_part_any_more_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part alone has too few file groups to tell."""
    scene = Parts(monkeypatch, 9, range(9), Unanswered())
    with pytest.raises(RetryError, match="503"):
        scene.carry_out()
    assert (scene.tried, scene.dropped) == ([*range(SILENCE)], [])


def test_a_store_that_answers_no_more_after_a_commit_gives_up_only_groups_without_an_answer_in_two_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be down. What comes after them waits for the next run."""
    unanswered = Unanswered()
    scene = Parts(monkeypatch, 9, range(2, 9), unanswered)
    scene.carry_out()
    assert scene.tried == [0, 1, 2, 3, 4]
    assert scene.run.commits == 2
    assert [type(drop.error) for drop in scene.dropped] == [RetryError] * SILENCE + [NotTriedError] * 4
    assert scene.run.result.dropped == tuple(scene.dropped)
    scene = Parts(monkeypatch, 9, range(2, 6), unanswered)
    scene.carry_out()
    assert scene.tried == [0, 1, 5, 6, 7, 8, 2, 3, 4]
    assert [type(drop.error) for drop in scene.dropped] == [GiveUpError] * (1 + SILENCE)


def test_an_outage_that_goes_on_gives_no_group_up(monkeypatch: pytest.MonkeyPatch) -> None:
    unanswered = Unanswered()
    Parts(monkeypatch, 9, range(2, 9), unanswered).carry_out()
    for tried in [[0, 1, 5], [6, 7, 8], [0, 1, 2]]:
        scene = Parts(monkeypatch, 9, range(9), unanswered)
        with pytest.raises(RetryError):
            scene.carry_out()
        assert (scene.tried, scene.dropped) == (tried, [])


def test_a_run_that_fails_at_its_first_groups_lets_the_next_one_begin_with_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing shows whether the store is down: none is given up. Else no later group would ever be rewritten."""
    unanswered = Unanswered()
    with pytest.raises(RetryError):
        Parts(monkeypatch, 6, range(4), unanswered).carry_out()
    scene = Parts(monkeypatch, 6, range(4), unanswered)
    scene.carry_out()
    assert scene.tried == [3, 4, 5, 0, 1, 2]
    assert [type(drop.error) for drop in scene.dropped] == [GiveUpError] * 4


def test_after_an_outage_of_all_groups_those_in_a_lost_place_do_not_end_each_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All are marked as late, and the lost ones come first again."""
    unanswered = Unanswered()
    for tried in [[0, 1, 2], [3, 4, 5]]:
        scene = Parts(monkeypatch, 6, range(6), unanswered)
        with pytest.raises(RetryError):
            scene.carry_out()
        assert scene.tried == tried
    scene = Parts(monkeypatch, 6, range(3), unanswered)
    with pytest.raises(RetryError):
        scene.carry_out()
    scene = Parts(monkeypatch, 6, range(3), unanswered)
    scene.carry_out()
    assert scene.tried == [3, 4, 5, 0, 1, 2]


def test_a_run_that_fails_before_it_comes_to_the_late_groups_leaves_them_late(monkeypatch: pytest.MonkeyPatch) -> None:
    unanswered = Unanswered()
    unanswered.note("lake.db.t", ["0.parquet"])

    class Fails(Parts):
        def send(self) -> Any:
            sent, self.landed = super().send(), RetryError("the catalog does not answer")
            return sent

    scene = Fails(monkeypatch, 3, [0], unanswered)
    with pytest.raises(RetryError):
        scene.carry_out()
    assert (scene.run.commits, scene.tried) == (1, [1, 2])
    scene = Parts(monkeypatch, 3, [], unanswered)
    scene.carry_out()
    assert scene.tried == [1, 2, 0]
    scene = Parts(monkeypatch, 3, [], unanswered)
    scene.carry_out()
    assert scene.tried == [0, 1, 2], "the store has answered for all"


@pytest.mark.parametrize("landed", [True, RetryError("the store does not answer")])
def test_what_was_written_before_the_store_answered_no_more_is_committed(
    monkeypatch: pytest.MonkeyPatch, landed: bool | FirnlineError
) -> None:
    """A commit that lands shows that it answers again: later parts go on. One that fails changes nothing."""
    left = DroppedGroup(group("9.parquet"), NotTriedError())
    scene = Scene(monkeypatch, ([REWRITTEN], [SILENT, left]), ([REWRITTEN], []), landed=landed)
    scene.in_flight = SILENCE
    with nullcontext() if landed is True else pytest.raises(RetryError):
        scene.carry_out()
    assert scene.run.commits == (2 if landed is True else 0)
    assert [type(drop.error) for drop in scene.dropped] == ([RetryError, NotTriedError] if landed is True else [])


def test_an_outage_that_has_passed_before_the_commit_gives_up_nothing_that_was_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hundreds of file groups may have been. They come last in the next run, and are given up if it repeats itself."""
    unanswered = Unanswered()
    for error in (RetryError, GiveUpError):
        scene = Scene(monkeypatch, ([REWRITTEN], [SILENT]), ([REWRITTEN], []))
        scene.run._tools.unanswered = unanswered  # type: ignore[misc]
        scene.in_flight = SILENCE
        scene.carry_out()
        assert scene.run.commits == 2
        assert scene.errors == [(error, Reason.UNAVAILABLE)]
        assert unanswered.noted("lake.db.t") == ({"1.parquet"} if error is RetryError else set())
