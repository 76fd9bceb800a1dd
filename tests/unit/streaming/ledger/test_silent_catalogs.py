"""The circuit breaker of each catalog: a silent catalog delays no other, and is looked at once it answers again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.errors import FirnlineError, RetryError
from compactor.events import CatalogAnswers, Event
from compactor.patience.breaker import DEFAULT_BACKOFF, DEFAULT_FAILURES
from compactor.reasons import Reason
from streaming.ledger import lookers as lookers_module
from streaming.ledger.look_queue import LookQueue
from streaming.ledger.lookers import Breakers, Lookers
from tests.unit.streaming.ledger.looking import EVENT, Looking
from tests.unit.streaming.ledger.scene import PATIENCE_SECONDS, Scene, named, until

SILENCE = RetryError("no answer", reason=Reason.CATALOG_UNAVAILABLE)


# --- breakers ---------------------------------------------------------------------------------------------------------


class Breaking(Breakers):
    """Breakers of two catalogs on a clock that the test moves."""

    def __init__(self) -> None:
        self.published: list[Event] = []
        self.now = 100.0
        super().__init__(("lake", "other"), self.published.append, lambda: self.now)

    def call(self, name: str, error: FirnlineError | None = None, catalog: str = "lake") -> bool:
        """One call that may go; returns whether it went."""
        if self.start(catalog) > 0:
            return False
        self.ended(catalog, name, error)
        return True

    def open(self) -> None:
        for number in range(DEFAULT_FAILURES):
            assert self.call(f"t{number}", SILENCE)


def test_a_breaker_opens_after_failures_of_several_tables_and_closes_again_and_publishes_both() -> None:
    breakers = Breaking()
    breakers.open()
    assert breakers.published == [CatalogAnswers("lake", available=False, message="no answer")]
    assert (breakers.available("lake"), breakers.silent) == (False, ("lake",))
    assert breakers.start("lake") == DEFAULT_BACKOFF.first_seconds
    breakers.now += DEFAULT_BACKOFF.first_seconds
    assert breakers.start("lake") == 0.0
    assert breakers.start("lake") > 0, "one trial at a time"
    breakers.ended("lake", "t9", SILENCE)
    assert breakers.start("lake") == 2 * DEFAULT_BACKOFF.first_seconds
    breakers.now += 2 * DEFAULT_BACKOFF.first_seconds
    assert breakers.call("t9")
    assert breakers.published[1:] == [CatalogAnswers("lake", available=True)]
    assert (breakers.available("lake"), breakers.silent) == (True, ())
    assert all(breakers.call(f"t{number}") for number in range(5))


def test_other_catalogs_are_not_affected() -> None:
    breakers = Breaking()
    breakers.open()
    assert breakers.call("t", catalog="other")
    assert (breakers.available("other"), breakers.available("never configured")) == (True, True)


def test_a_table_that_fails_alone_or_for_a_reason_of_its_own_opens_nothing() -> None:
    breakers = Breaking()
    for number in range(50):
        assert breakers.call("always the same", SILENCE)
        assert breakers.call(f"t{number}", RetryError("damage", reason=Reason.TABLE_UNREADABLE))
    assert breakers.published == []


def of_two_catalogs(folder: Path, silent: dict[str, str]) -> Scene:
    return Scene(folder, more_catalogs={"silent": silent})


# --- silent catalogs --------------------------------------------------------------------------------------------------


def test_a_catalog_that_blocks_delays_no_look_of_another_catalog(tmp_path: Path) -> None:
    folder = tmp_path / "silent"
    folder.mkdir()
    scene = of_two_catalogs(
        tmp_path, {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}"}
    )
    scene.catalogs.silent = {"silent"}
    looking = Looking(scene)
    looking.put(*(f"t{number}" for number in range(50)), catalog="silent")
    until(lambda: len(scene.catalogs.calls) == 2)  # each of its threads waits
    for number in range(1, 6):
        scene.history.append_unreal("a", [1])
        looking.put("t")
        until(lambda number=number: len(scene.outcomes) == number)  # type: ignore[misc]
    assert scene.outcomes == ["counted"] * 5
    assert {table.catalog for table in scene.catalogs.calls[2:]} == {"lake"}
    looking.stop()


@pytest.fixture
def dead_server() -> Iterator[int]:
    """Accepts connections and never answers; returns the port."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield server.getsockname()[1]


def test_a_rest_catalog_that_never_answers_is_left_alone_but_for_trials(
    tmp_path: Path, dead_server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compactor.iceberg.rest_catalog.ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(lookers_module, "WAIT_SECONDS", 0.01)
    scene = of_two_catalogs(tmp_path, {"type": "rest", "uri": f"http://127.0.0.1:{dead_server}"})
    looking = Looking(scene)
    looking.put(*(f"t{number}" for number in range(50)), catalog="silent")
    until(lambda: looking.breakers.silent == ("silent",))
    failed = scene.outcomes.count("unreadable")
    assert failed <= DEFAULT_FAILURES + 2
    until(lambda: any(isinstance(event, CatalogAnswers) for event in scene.published))
    (answers,) = (event for event in scene.published if isinstance(event, CatalogAnswers))
    assert (answers.catalog, answers.available) == ("silent", False)
    scene.history.append_unreal("a", [1])
    looking.put("t")
    until(lambda: "counted" in scene.outcomes)
    assert looking.queue.waiting("silent") >= 50 - DEFAULT_FAILURES - 3, "the others wait, and none is forgotten"
    looking.stop()


def test_a_catalog_that_answers_again_is_looked_at_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookers_module, "WAIT_SECONDS", 0.01)
    clock = Clock()
    queue, breakers = LookQueue(clock), Breakers(("lake",), scene.published.append, clock)
    scene.catalogs.failure = SILENCE
    lookers = Lookers(("lake",), queue, scene.looker, breakers, 2)
    lookers.start()
    for number in range(20):
        queue.put(named(f"t{number}"), EVENT)
    until(lambda: breakers.silent)
    scene.catalogs.failure = None
    until(lambda: clock.advance(0.5) and scene.outcomes.count("missing") == 20)
    lookers.stop(PATIENCE_SECONDS)
    assert [event.available for event in scene.published if isinstance(event, CatalogAnswers)] == [False, True]


class Clock:
    """Ticks that the test moves, for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 100.0

    def __call__(self) -> float:
        with self._lock:
            self._now += 0.001  # waits of no length end
            return self._now

    def advance(self, seconds: float) -> bool:
        with self._lock:
            self._now += seconds
        return True


def test_a_table_of_another_service_is_not_looked_at_and_says_nothing_of_its_catalog(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookers_module, "WAIT_SECONDS", 0.01)
    scene.catalogs.failure = SILENCE
    looking = Looking(scene, threads=1, wanted=lambda table: not table.name.startswith("other"))
    looking.put("t0", "t1", "t2")
    until(lambda: looking.breakers.silent)
    looking.put(*(f"other{number}" for number in range(20)))
    until(lambda: looking.queue.waiting("lake") == 0)
    assert looking.breakers.silent == ("lake",), "only the catalog's answer closes its breaker"
    assert {table.name for table in scene.catalogs.calls} == {"t0", "t1", "t2"}
    looking.stop()
