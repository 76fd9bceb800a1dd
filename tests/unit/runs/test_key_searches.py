"""Searches of a conversion: what a failed one costs, and how many run at once. No Spark: `search` is given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from py4j.protocol import Py4JNetworkError

from compactor.errors import FirnlineError, GiveUpError, RetryError, StoppedError
from compactor.reasons import Reason, Refusal
from compactor.rewrite.deletes.key_search import FoundRows
from compactor.rewrite.deletes.row_maps import packed
from compactor.runs import convert as convert_module
from compactor.runs.convert import Converting
from compactor.runs.key_searches import KeySearches
from compactor.runs.lifelines import Lifelines
from compactor.runs.silence import SILENCE, Silence, Unanswered
from compactor.runs.slots import SlotPool
from compactor.runs.supervisor import RunWatch

PATIENCE = 60  # seconds
SEARCHES: Any = [(SimpleNamespace(entry=SimpleNamespace(path=f"{number}.parquet")),) for number in range(4)]
BAD = SEARCHES[1]
DAMAGED = GiveUpError("a page is damaged", reason=Reason.CORRUPT_PAGE)
DIED = RuntimeError("Python worker exited unexpectedly")
SILENT = RetryError("503")
EXPIRED = RetryError("the store's credential is over", reason=Reason.CREDENTIALS_EXPIRED)
NO_MEMORY = RetryError("malloc failed", reason=Reason.OUT_OF_MEMORY)


def found(files: Any) -> FoundRows:
    return FoundRows({files[0].entry.path: packed(np.array([0]), 1)}, {}, 1, 1, 1, 1)


class Failing:
    """Searches `BAD` without success so many times."""

    def __init__(self, error: Exception, times: int = 9) -> None:
        self.error, self.left = error, times
        self.searched: list[Any] = []

    def __call__(self, files: Any) -> FoundRows | Refusal | FirnlineError:
        self.searched.append(files)
        if files is not BAD or not self.left:
            return found(files)
        self.left -= 1
        if isinstance(self.error, FirnlineError):
            return self.error
        raise self.error


def searching(search: Callable[..., Any], slots: SlotPool | None = None) -> KeySearches:
    return KeySearches(search, "lake.db.t", slots or SlotPool(2), threading.Event(), lambda: None)


@pytest.mark.parametrize("error", [DIED, NO_MEMORY, SILENT, EXPIRED])
def test_a_search_that_another_attempt_may_help_is_tried_once_more(error: Exception) -> None:
    search = Failing(error, times=1)
    assert list(searching(search).outcomes(SEARCHES)) == [found(files) for files in SEARCHES]
    assert len(search.searched) == len(SEARCHES) + 1


@pytest.mark.parametrize(
    ("error", "reason", "attempts"),
    [
        (DAMAGED, "corrupt_page", 1), (DIED, "unexpected", 2), (NO_MEMORY, "out_of_memory", 2),
    ],
)  # fmt: skip
def test_a_search_that_fails_costs_no_other(error: Exception, reason: str, attempts: int) -> None:
    search = Failing(error)
    first, bad, *others = searching(search).outcomes(SEARCHES)
    assert [first, *others] == [found(files) for files in SEARCHES if files is not BAD]
    assert isinstance(bad, GiveUpError)
    assert bad.reason == reason
    assert str(error) in str(bad)
    assert search.searched.count(BAD) == attempts


def test_a_search_without_an_answer_costs_no_other_and_is_not_given_up_by_itself() -> None:
    """The store may be down by now."""
    search = Failing(SILENT)
    first, bad, *others = searching(search).outcomes(SEARCHES)
    assert [first, *others] == [found(files) for files in SEARCHES if files is not BAD]
    assert bad is SILENT
    assert search.searched.count(BAD) == 2


def test_a_store_that_answers_no_search_ends_them() -> None:
    searched: list[Any] = []

    def search(files: Any) -> FirnlineError:
        searched.append(files)
        return SILENT

    slots = SlotPool(1)
    assert list(searching(search, slots).outcomes([*SEARCHES, *SEARCHES])) == [SILENT] * 3 + [None] * 5
    assert [searched.count(files) for files in SEARCHES] == [2, 2, 1, 0]
    assert slots.book.in_use == len(slots.book.waiting) == 0


def test_timeouts_of_searches_that_end_after_others_were_done_beside_them_are_no_silence() -> None:
    begun, done = threading.Barrier(len(SEARCHES), timeout=PATIENCE), threading.Event()
    all_noted = threading.Barrier(len(SEARCHES) - 1, timeout=PATIENCE)
    searched: list[Any] = []

    def search(files: Any) -> FoundRows | FirnlineError:
        searched.append(files)
        if searched.count(files) > 1:
            return found(files)
        begun.wait()
        if files is BAD:
            return found(files)
        assert done.wait(PATIENCE)
        return SILENT

    class Watched(Silence):
        def note(self, *said: Any) -> None:
            super().note(*said)
            all_noted.wait()

        def end(self) -> None:
            super().end()
            done.set()

    jobs = searching(search, SlotPool(len(SEARCHES)))
    jobs.silence = Watched()
    assert list(jobs.outcomes(SEARCHES)) == [found(files) for files in SEARCHES]


def test_searches_without_an_answer_end_no_conversion_while_others_are_answered() -> None:
    many: Any = [(SimpleNamespace(entry=SimpleNamespace(path=f"{number}.parquet")),) for number in range(20)]
    outcomes = list(searching(lambda files: SILENT if files in many[::4] else found(files), SlotPool(1)).outcomes(many))
    assert [files for files, outcome in zip(many, outcomes, strict=True) if outcome is SILENT] == many[::4]


@pytest.mark.parametrize(
    "error", [RetryError("the disk is full", reason=Reason.NO_SPACE), Py4JNetworkError("Answer from Java is empty")]
)
def test_what_concerns_all_searches_ends_them_at_once(error: Exception) -> None:
    search, slots = Failing(error), SlotPool(1)
    with pytest.raises(RetryError) as raised:
        list(searching(search, slots).outcomes([BAD] * 5))
    assert raised.value.reason == (error.reason if isinstance(error, FirnlineError) else "spark_lost")
    assert search.searched == [BAD]
    assert slots.book.in_use == len(slots.book.waiting) == 0


def test_a_credential_that_stays_expired_ends_all_searches() -> None:
    search = Failing(EXPIRED)
    with pytest.raises(RetryError) as raised:
        list(searching(search, SlotPool(1)).outcomes([BAD] * 5))
    assert raised.value is EXPIRED
    assert search.searched == [BAD] * 2


def test_searches_that_are_stopped_end() -> None:
    jobs = searching(lambda _files: jobs.stopped.set() or found(SEARCHES[0]), SlotPool(1))  # type: ignore[func-returns-value]
    with pytest.raises(StoppedError):
        list(jobs.outcomes(SEARCHES))


def test_searches_follow_a_cluster_that_grows() -> None:
    """A cluster may have no executor when the conversion starts."""
    slots, together = SlotPool(1), threading.Barrier(len(SEARCHES), timeout=PATIENCE)

    def search(files: Any) -> FoundRows:
        slots.resize(len(SEARCHES))
        together.wait()
        return found(files)

    assert list(searching(search, slots).outcomes(SEARCHES)) == [found(files) for files in SEARCHES]


def converting(monkeypatch: pytest.MonkeyPatch, search: Callable[..., Any]) -> Converting:
    tools: Any = SimpleNamespace(slots=SlotPool(2), lifelines=Lifelines(), unanswered=Unanswered())
    table: Any = SimpleNamespace(name="lake.db.t")
    monkeypatch.setattr(Converting, "_search", lambda _self, files: search(files))
    return Converting(tools, table, cast("Any", SimpleNamespace(searches=SEARCHES)), "run")


@pytest.mark.parametrize("error", [DAMAGED, DIED, NO_MEMORY, SILENT])
def test_the_files_of_a_search_that_failed_are_refused_and_what_the_others_found_is_kept(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    made = converting(monkeypatch, Failing(error))
    kept = made._searched(RunWatch())
    assert set(kept.by_value) == {files[0].entry.path for files in SEARCHES if files is not BAD}
    assert kept.refused == [BAD]
    assert str(error) in kept.why
    assert [each.paths for each in made.refused] == [{BAD[0].entry.path}]


def test_a_conversion_without_any_search_that_succeeded_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = Refusal(Reason.NO_FIELD_IDS, "no field ids")
    made = converting(monkeypatch, lambda files: DAMAGED if files is BAD else refusal)
    with pytest.raises(GiveUpError, match="a page is damaged"):
        made._searched(RunWatch())
    assert len(made.refused) == len(SEARCHES)


@pytest.mark.parametrize("silent", [1, 2])
def test_searches_without_an_answer_are_refused_if_any_other_was_answered(
    monkeypatch: pytest.MonkeyPatch, silent: int
) -> None:
    """Also by a refusal: the store has read that file."""
    refusal = Refusal(Reason.NO_FIELD_IDS, "no field ids")
    made = converting(monkeypatch, lambda files: SILENT if files in SEARCHES[4 - silent :] else refusal)
    kept = made._searched(RunWatch())
    assert kept.refused == SEARCHES
    assert [str(SILENT) in each.why for each in made.refused] == [number >= 4 - silent for number in range(4)]


@pytest.mark.parametrize("answer", [DAMAGED, None])
def test_a_conversion_none_of_whose_searches_was_answered_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, answer: FirnlineError | None
) -> None:
    made = converting(monkeypatch, lambda files: answer if answer and files is BAD else SILENT)
    made._conversion.searches = SEARCHES[:2]  # type: ignore[misc]
    with pytest.raises(GiveUpError if answer else RetryError):
        made._searched(RunWatch())


MANY: Any = [(SimpleNamespace(entry=SimpleNamespace(path=f"{number}.parquet")),) for number in range(9)]


def test_what_was_found_before_the_store_answered_no_more_is_kept_and_no_search_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = converting(monkeypatch, lambda files: found(files) if files in MANY[:2] else SILENT)
    made._tools.slots.resize(1)
    made._conversion.searches = tuple(MANY)  # type: ignore[misc]
    kept = made._searched(RunWatch())
    assert set(kept.by_value) == {"0.parquet", "1.parquet"}
    assert list(kept.refused) == MANY[2:], "deletes that apply to these stay"
    assert made.refused == (), "the store may be down"


def test_a_conversion_that_fails_at_its_first_searches_lets_the_next_one_begin_with_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The three are given up if they get no answer again."""
    made = converting(monkeypatch, lambda files: SILENT if files in MANY[:SILENCE] else found(files))
    made._tools.slots.resize(1)
    made._conversion.searches = tuple(MANY)  # type: ignore[misc]
    with pytest.raises(RetryError):
        made._searched(RunWatch())
    assert made.refused == ()
    kept = made._searched(RunWatch())
    assert len(kept.by_value) == len(MANY) - SILENCE
    assert len(made.refused) == SILENCE


def test_searches_without_an_answer_in_two_conversions_are_given_up_also_where_there_are_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once another commit shows that the store is well. Else each run would begin with them."""
    made = converting(monkeypatch, lambda _files: SILENT)
    made._tools.slots.resize(1)
    made._conversion.searches = tuple(MANY[:SILENCE])  # type: ignore[misc]
    for given_up in (0, SILENCE):
        with pytest.raises(RetryError):
            made._searched(RunWatch())
        assert len(made.refused) == given_up


def test_after_an_outage_of_all_searches_those_in_a_lost_place_do_not_end_each_conversion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost, made = MANY[:SILENCE], converting(monkeypatch, lambda _files: SILENT)
    made._tools.slots.resize(1)
    made._conversion.searches = tuple(MANY)  # type: ignore[misc]
    for _ in range(len(MANY) // SILENCE):
        with pytest.raises(RetryError):
            made._searched(RunWatch())
    monkeypatch.setattr(Converting, "_search", lambda _self, files: SILENT if files in lost else found(files))
    with pytest.raises(RetryError):
        made._searched(RunWatch())
    assert len(made._searched(RunWatch()).by_value) == len(MANY) - SILENCE


def test_a_conversion_leaves_the_groups_late_that_a_run_comes_to_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has not tried them."""
    made = converting(monkeypatch, found)
    made._tools.unanswered.note(made._table.name, ["0.parquet"])
    made._searched(RunWatch())
    assert made._tools.unanswered.of(made._table.name, [["0.parquet"], ["1.parquet"]]) == {"0.parquet"}


class Outage:
    """Conversions of nine searches with one slot. `landed`: whether there is something to commit."""

    def __init__(self, patched: pytest.MonkeyPatch, *, landed: bool) -> None:
        self.patched, self.landed, self.unanswered = patched, landed, Unanswered()
        supervisor = SimpleNamespace(watch=lambda *_: nullcontext(RunWatch()))
        records = SimpleNamespace(around=lambda *_: nullcontext(), close=lambda *_, **__: None)
        patched.setattr(convert_module, "JavaTable", SimpleNamespace(load=lambda *_: None))
        patched.setattr(convert_module, "run_folder", lambda *_: "")
        patched.setattr(convert_module, "RunSupervisor", lambda *_: supervisor)
        patched.setattr(convert_module, "OutputRecords", lambda *_: records)
        patched.setattr(convert_module, "converted", lambda *_: ())

    def convert(self, down: Container[int]) -> Converting:
        """`down`: numbers of the searches without an answer."""
        made = converting(self.patched, lambda files: SILENT if MANY.index(files) in down else found(files))
        made._conversion = cast(
            "Any", SimpleNamespace(searches=MANY, files=(), deletes=[1], refused=0, why="", bytes=0)
        )
        made._table = cast("Any", SimpleNamespace(name="lake.db.t", snapshot=SimpleNamespace(snapshot_id=1)))
        landed = SimpleNamespace(snapshot_id=2) if self.landed else None
        made._tools = cast("Any", SimpleNamespace(
            slots=SlotPool(1), lifelines=Lifelines(), unanswered=self.unanswered, session=None, catalogs=None,
            records=SimpleNamespace(note_committed=lambda *_: None), right=None, lease_seconds=60, check_seconds=60,
            cache=None, ticks=lambda: 0.0, in_time=lambda *_, **__: (landed, ()), rolled_back=lambda *_: False,
            rolls_back=lambda _: False, listener=None,
        ))  # fmt: skip
        made.convert()
        return made


def test_a_store_that_answers_no_search_any_more_gives_none_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be down. Searches without an answer in two conversions are given up."""
    outage = Outage(monkeypatch, landed=False)
    with pytest.raises(RetryError):
        outage.convert(range(1, 9))
    made = outage.convert(range(1, 4))
    assert [set(each.paths) for each in made.refused] == [{f"{number}.parquet"} for number in range(1, 4)]


def test_a_commit_after_searches_without_an_answer_gives_none_of_them_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outage has passed. Those that get no answer again are in a place that is lost."""
    outage = Outage(monkeypatch, landed=True)
    assert outage.convert(range(1, 9)).refused == ()
    made = outage.convert(range(1, 4))
    assert [set(each.paths) for each in made.refused] == [{f"{number}.parquet"} for number in range(1, 4)]
