"""Searches of a conversion: what a failed one costs, and how many run at once. No Spark: `search` is given."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from py4j.protocol import Py4JNetworkError

from compactor.errors import FirnlineError, GiveUpError, RetryError, StoppedError
from compactor.patience.holds import What
from compactor.reasons import Reason, Refusal
from compactor.rewrite.deletes.key_search import FoundRows
from compactor.rewrite.deletes.row_maps import packed
from compactor.rewrite.tasks.output_task import SILENCE
from compactor.runs.convert import Converting
from compactor.runs.file_holds import FileHolds
from compactor.runs.key_searches import KeySearches
from compactor.runs.lifelines import Lifelines
from compactor.runs.slots import SlotPool
from compactor.runs.supervisor import RunWatch
from tests.properties.table_history import TableHistory

PATIENCE = 60  # seconds
SEARCHES: Any = [(SimpleNamespace(entry=SimpleNamespace(path=f"{number}.parquet")),) for number in range(4)]
BAD = SEARCHES[1]
DAMAGED = GiveUpError("a page is damaged", reason=Reason.CORRUPT_PAGE)
DIED = RuntimeError("Python worker exited unexpectedly")
SILENT = RetryError("503")
EXPIRED = RetryError("the store's credential is over", reason=Reason.CREDENTIALS_EXPIRED)
NO_MEMORY = RetryError("malloc failed", reason=Reason.OUT_OF_MEMORY)


def found(files: Any) -> FoundRows:
    return FoundRows({files[0].entry.path: packed(np.array([0]), 1)}, {}, 1, 1, 1)


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


@pytest.fixture
def converting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Converting]:
    """A conversion of a real table whose searches end as `search` says."""
    table, tools = TableHistory(tmp_path, 2).view(), cast("Any", SimpleNamespace(
        slots=SlotPool(2), lifelines=Lifelines(), files=FileHolds()
    ))  # fmt: skip

    def make(search: Callable[..., Any]) -> Converting:
        monkeypatch.setattr(Converting, "_search", lambda _self, files: search(files))
        return Converting(tools, table, cast("Any", SimpleNamespace(searches=SEARCHES)), "run")

    return make


@pytest.mark.parametrize("error", [DAMAGED, DIED, NO_MEMORY, SILENT])
def test_the_files_of_a_search_that_failed_are_left_out_and_what_the_others_found_is_kept(
    converting: Callable[..., Converting], error: Exception
) -> None:
    made = converting(Failing(error))
    kept = made._searched(RunWatch())
    assert set(kept.by_value) == {files[0].entry.path for files in SEARCHES if files is not BAD}
    assert kept.refused == [BAD]
    assert str(error) in kept.why
    assert made.refused
    assert made._tools.files.left_out(made._table, What.SEARCH).keys() == {BAD[0].entry.path}


@pytest.mark.parametrize("error", [DAMAGED, SILENT])
def test_a_conversion_without_any_search_that_succeeded_fails(
    converting: Callable[..., Converting], error: FirnlineError
) -> None:
    refusal = Refusal(Reason.NO_FIELD_IDS, "no field ids")
    made = converting(lambda files: error if files is BAD else refusal)
    with pytest.raises(type(error), match=str(error)):
        made._searched(RunWatch())
    assert len(made._tools.files.left_out(made._table, What.SEARCH)) == len(SEARCHES)


def test_what_was_found_before_the_store_answered_no_more_is_kept_and_only_what_was_tried_is_left_out(
    converting: Callable[..., Converting],
) -> None:
    many: Any = [(SimpleNamespace(entry=SimpleNamespace(path=f"{number}.parquet")),) for number in range(9)]
    made = converting(lambda files: found(files) if files in many[:2] else SILENT)
    made._tools.slots.resize(1)
    made._conversion.searches = tuple(many)  # type: ignore[misc]
    kept = made._searched(RunWatch())
    assert set(kept.by_value) == {"0.parquet", "1.parquet"}
    assert list(kept.refused) == many[2:], "deletes that apply to these stay"
    assert len(made._tools.files.left_out(made._table, What.SEARCH)) == SILENCE
