"""File groups for which the store does not answer: given up only once the commit of others shows that it is well."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from compactor.errors import FirnlineError, GiveUpError, RetryError
from compactor.reasons import Reason
from compactor.runs import run as run_module
from compactor.runs.results import DroppedGroup
from compactor.runs.run import Run
from compactor.runs.supervisor import ALWAYS_ON, RunWatch

SILENT = DroppedGroup(cast("Any", "silent"), RetryError("503 for 1.parquet"))
DAMAGED = DroppedGroup(cast("Any", "damaged"), GiveUpError("a page is damaged", reason=Reason.CORRUPT_PAGE))
REWRITTEN = SimpleNamespace(rewritten=None)


class Scene:
    """A run whose output jobs end as given. It commits nothing: `_sent_in_time` says what became of the commit."""

    def __init__(
        self, patched: pytest.MonkeyPatch, finished: list[Any], failed: list[DroppedGroup], committed: Any = None
    ) -> None:
        self.dropped: list[DroppedGroup] = []
        jobs = SimpleNamespace(rewrite=lambda _numbers: (finished, failed))
        patched.setattr(run_module, "OutputJobs", lambda **_: jobs)
        patched.setattr(run_module, "reclassify_conflicts", lambda _plan, failed, *_: tuple(failed))
        patched.setattr(Run, "_drop", lambda _run, dropped: self.dropped.extend(dropped))
        patched.setattr(Run, "_sent_in_time", lambda *_, **__: committed)
        tools: Any = SimpleNamespace(
            records=None, catalogs=None, cache=None, right=None, slots=None, pace=None, ticks=lambda: 0.0,
            listener=lambda _event: None,
        )  # fmt: skip
        self.run = Run(tools, cast("Any", None), "run", ALWAYS_ON)

    def part(self) -> None:
        finished, unanswered = self.run._rewrite(cast("Any", None), RunWatch(), [0, 1, 2])
        self.run._commit(cast("Any", None), cast("Any", None), RunWatch(), finished, "1/1", unanswered)

    @property
    def errors(self) -> list[tuple[type[FirnlineError], Reason]]:
        return [(type(drop.error), drop.error.reason) for drop in self.dropped]


def test_a_store_that_answers_for_no_group_gives_none_up(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, [], [SILENT, DAMAGED])
    with pytest.raises(RetryError, match="503"):
        scene.part()
    assert scene.dropped == [DAMAGED]


def test_a_group_is_not_given_up_before_the_others_are_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RetryError("the store does not answer")

    scene = Scene(monkeypatch, [REWRITTEN], [SILENT])
    monkeypatch.setattr(Run, "_sent_in_time", fails)
    with pytest.raises(RetryError):
        scene.part()
    assert scene.dropped == []


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_of_others_shows_that_the_store_is_well(monkeypatch: pytest.MonkeyPatch, landed: bool) -> None:
    committed = SimpleNamespace(
        landed=SimpleNamespace(snapshot_id=2) if landed else None, kept=(), files=(), delete_files_removed=0
    )
    scene = Scene(monkeypatch, [REWRITTEN], [SILENT], committed)
    monkeypatch.setattr(Run, "_rolled_back", lambda *_: False)
    scene.run._tools.records = SimpleNamespace(note_committed=lambda *_: None)  # type: ignore[misc, assignment]
    scene.part()
    assert scene.errors == [(GiveUpError if landed else RetryError, Reason.UNAVAILABLE)]
    assert str(scene.dropped[0].error).startswith("503 for 1.parquet")
