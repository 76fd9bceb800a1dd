"""Threads that look at tables: one look for many events, hanging looks, and events that come before their commit."""

from __future__ import annotations

import threading

import pytest

from compactor.errors import RetryError
from compactor.events import TableUnreadable
from compactor.reasons import Reason
from compactor.table_names import TableName
from streaming.ledger import lookers as lookers_module
from streaming.ledger.look_queue import Asked, Lane, LookQueue
from streaming.ledger.looker import Looked
from streaming.ledger.lookers import LOOK_SECONDS, MOST_HANGING, Breakers, Lookers
from tests.properties.table_history import NAME
from tests.unit.streaming.ledger.looking import Looking
from tests.unit.streaming.ledger.scene import PATIENCE_SECONDS, Scene, named, until

# --- threads ----------------------------------------------------------------------------------------------------------


def test_many_events_of_one_table_are_one_look(scene: Scene) -> None:
    scene.history.append_unreal("a", [1])
    queue = LookQueue()
    for number in range(1000):
        queue.put(NAME, Asked(Lane.EVENT, 1000.0 - number))
    queue.put(named("last"), Asked(Lane.UNKNOWN))
    lookers = Lookers(("lake",), queue, scene.looker, Breakers(("lake",), scene.published.append), 1)
    lookers.start()
    until(lambda: scene.outcomes == ["counted", "missing"])
    lookers.stop(PATIENCE_SECONDS)
    assert scene.catalogs.calls == [NAME, named("last")]
    assert [update.event_to_ledger_seconds for update in scene.updates] == [scene.now - 1.0]


def test_a_flood_of_unknown_names_ends_and_the_table_is_looked_at_before_them(looking: Looking) -> None:
    for number in range(5_000):
        looking.queue.put(named(f"unknown{number}"), Asked(Lane.UNKNOWN))
    looking.put("t")
    until(lambda: "counted" in looking.scene.outcomes)
    assert len(looking.scene.outcomes) < 500
    looking.queue.close()


def test_a_table_that_cannot_be_read_is_asked_for_again_after_its_back_off(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    put = LookQueue.put

    def noted(queue: LookQueue, table: TableName, asked: Asked, *, after_seconds: float = 0.0) -> None:
        waits.append(after_seconds)
        put(queue, table, asked, after_seconds=after_seconds / 1000)

    monkeypatch.setattr(LookQueue, "put", noted)
    scene.looker.is_listed = lambda _table: True
    scene.catalogs.failure = RetryError("damage", reason=Reason.TABLE_UNREADABLE)
    looking = Looking(scene)
    looking.put("t")
    until(lambda: len(scene.outcomes) >= 3)
    scene.catalogs.failure = None
    until(lambda: scene.outcomes[-1] == "counted")
    looking.stop()
    assert waits[:4] == [0.0, 15.0, 30.0, 60.0]
    assert len(waits) == scene.outcomes.count("unreadable") + 1
    assert scene.debt().stale is None


def test_a_long_count_goes_on_by_itself(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        looking.scene.history.append_unreal("a", [1])
    monkeypatch.setattr("compactor.debt.ledger.FILES_PER_LOOK", 1)
    looking.put("t")
    until(lambda: looking.scene.outcomes == ["counting", "counting", "counted"])


def test_an_unexpected_failure_ends_no_thread(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_table: TableName, _asked: Asked) -> None:
        calls.append(_table)
        raise RuntimeError("a bug in the look itself")

    calls: list[TableName] = []
    look = scene.looker.look
    monkeypatch.setattr(scene.looker, "look", broken)
    looking = Looking(scene, threads=1)
    looking.put("t", "u", "v")
    until(lambda: len(calls) == 3)
    monkeypatch.setattr(scene.looker, "look", look)
    looking.put("t")
    until(lambda: scene.outcomes == ["counted"])
    looking.stop()


def test_a_judgement_that_fails_unexpectedly_is_a_look_and_is_reported(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.look()
    monkeypatch.setattr(scene.looker.writer, "judge_again", broken)
    looking = Looking(scene, threads=1)
    looking.queue.put(NAME, Asked(Lane.SWEEP, calls=False))
    until(lambda: scene.outcomes == ["counted", "unreadable"])
    assert [event.reason for event in scene.published if isinstance(event, TableUnreadable)] == [Reason.UNEXPECTED]
    assert "RuntimeError: a bug" in str(scene.debt().stale)
    monkeypatch.undo()
    looking.put("other")
    until(lambda: scene.outcomes[2:] == ["missing"])
    until(lambda: not looking.queue._busy)
    looking.stop()


@pytest.mark.parametrize("where", ["wanted", "judge", "look", "ended", "not_found"])
def test_an_unexpected_error_anywhere_around_a_look_ends_no_thread_and_keeps_no_table(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    looking = Looking(scene, threads=1)
    of = {"wanted": looking.lookers, "ended": looking.breakers}.get(where, scene.looker)
    with monkeypatch.context() as patch:
        patch.setattr(of, where, broken)
        for calls in (False, True):
            looking.queue.put(NAME, Asked(Lane.SWEEP, calls=calls))
            until(lambda: looking.queue.waiting("lake") == 0 and not looking.queue._busy)
    looking.put("other")
    until(lambda: scene.outcomes[-1:] == ["missing"])
    looking.stop()


def broken(*_: object, **__: object) -> None:
    raise RuntimeError("a bug")


def test_a_look_that_hangs_is_replaced_and_its_table_is_stale_until_it_ends(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, look, now = threading.Event(), scene.looker.look, [0.0]

    def hangs(table: TableName, asked: Asked) -> Looked:
        if table.name == "hangs":
            assert held.wait(PATIENCE_SECONDS)
        return look(table, asked)

    monkeypatch.setattr(scene.looker, "look", hangs)
    looking = Looking(scene, threads=1)
    looking.lookers.ticks = lambda: now[0]
    looking.put("hangs")
    until(lambda: looking.lookers._busy)
    now[0] = LOOK_SECONDS
    looking.lookers.check()
    assert looking.lookers.hanging == ()
    now[0] += 1
    looking.lookers.check()
    looking.lookers.check()
    assert looking.lookers.hanging == (named("hangs"),)
    assert [event.reason for event in scene.published if isinstance(event, TableUnreadable)] == [Reason.LOOK_HANGS]
    looking.put("t")
    until(lambda: scene.outcomes == ["counted"])
    held.set()
    until(lambda: looking.lookers.hanging == ())
    until(lambda: scene.outcomes == ["counted", "missing"])
    looking.put("t")
    until(lambda: scene.outcomes[2:] == ["unchanged"])
    looking.stop()


@pytest.mark.parametrize("threads", [4, 10])
def test_after_a_store_was_slow_for_long_as_many_threads_look_as_before(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """More looks hang than threads are replaced: those that were not replaced go on after their look."""
    released, look, now, lock, under_way = threading.Event(), scene.looker.look, [0.0], threading.Lock(), set[str]()

    def slow(table: TableName, asked: Asked) -> Looked:
        with lock:
            under_way.add(table.name)
        assert released.wait(PATIENCE_SECONDS)
        return look(table, asked)

    monkeypatch.setattr(scene.looker, "look", slow)
    looking = Looking(scene, threads=threads)
    looking.lookers.ticks = lambda: now[0]
    looking.put(*(f"t{number}" for number in range(threads + MOST_HANGING)))
    hanging = 0
    while hanging < threads + MOST_HANGING:
        hanging = min(hanging + threads, threads + MOST_HANGING)
        until(lambda expected=hanging: len(under_way) == expected)  # type: ignore[misc]
        now[0] += LOOK_SECONDS + 1
        looking.lookers.check()
    assert len(looking.lookers.hanging) == threads + MOST_HANGING
    looking.lookers.check()
    assert len(looking.lookers._threads) == threads + MOST_HANGING
    released.set()
    until(lambda: len(scene.outcomes) == threads + MOST_HANGING)
    until(lambda: sum(thread.is_alive() for thread in looking.lookers._threads) == threads)
    assert looking.lookers.hanging == ()
    looking.put("later")
    until(lambda: len(scene.outcomes) == threads + MOST_HANGING + 1)
    assert sum(thread.is_alive() for thread in looking.lookers._threads) == threads
    looking.stop()


def test_a_thread_that_was_not_replaced_is_replaced_once_others_recover(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookers_module, "MOST_HANGING", 1)
    released = {name: threading.Event() for name in ("first", "second")}
    look, now, under_way = scene.looker.look, [0.0], set[str]()

    def slow(table: TableName, asked: Asked) -> Looked:
        under_way.add(table.name)
        assert table.name not in released or released[table.name].wait(PATIENCE_SECONDS)
        return look(table, asked)

    monkeypatch.setattr(scene.looker, "look", slow)
    looking = Looking(scene, threads=1)
    looking.lookers.ticks = lambda: now[0]
    for name in released:
        looking.put(name)
        until(lambda name=name: name in under_way)  # type: ignore[misc]
        now[0] += LOOK_SECONDS + 1
        looking.lookers.check()
    looking.put("t")
    released["first"].set()  # its thread ends: it was replaced by the one that hangs now
    until(lambda: looking.lookers.hanging == (named("second"),))
    looking.lookers.check()
    until(lambda: "counted" in scene.outcomes)
    assert [event.reason for event in scene.published if isinstance(event, TableUnreadable)] == [Reason.LOOK_HANGS] * 2
    released["second"].set()
    looking.stop()


def test_stop_ends_all_threads_after_their_current_table(looking: Looking) -> None:
    looking.put("t")
    until(lambda: looking.scene.outcomes)
    looking.stop()
    assert not any(thread.is_alive() for thread in looking.lookers._threads)


def test_a_table_that_is_given_away_during_its_look_is_forgotten_after_it(scene: Scene) -> None:
    ours = [True]
    looking = Looking(scene, wanted=lambda _table: ours[0])
    scene.catalogs.silent = {"lake"}
    looking.put("t")
    until(lambda: scene.catalogs.calls)
    ours[0] = False
    scene.looker.forget(NAME)
    scene.catalogs.released.set()
    until(lambda: scene.outcomes == ["counted"] and scene.board.get(NAME) is None)
    assert not scene.looker.is_known(NAME)
    looking.stop()


# --- events that come before their commit -----------------------------------------------------------------------------


def test_a_commit_that_is_announced_too_early_is_found_without_another_event(
    looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata files are written, and reports of transactions sent, before the catalog has the commit."""
    monkeypatch.setattr(lookers_module, "TRY_AGAIN_SECONDS", (0.01, 0.01, 30.0))
    scene = looking.scene
    folder = scene.history.table.metadata_location.rpartition("/")[0]
    early = f"{folder}/00002-x.metadata.json"
    looking.queue.put(NAME, Asked(Lane.EVENT, 5.0, announced=frozenset({early})))
    until(lambda: len(scene.outcomes) == 3)
    assert scene.outcomes == ["counted", "unchanged", "unchanged"]
    scene.history.append_unreal("a", [1])
    scene.history.append_unreal("a", [1])
    looking.put("t")
    until(lambda: scene.outcomes.count("counted") == 2)
    assert scene.looker.not_found(NAME, frozenset({early})) == frozenset()


def test_what_is_there_asks_for_no_second_look(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookers_module, "TRY_AGAIN_SECONDS", (0.01, 0.01, 0.01))
    scene = looking.scene
    scene.history.append_unreal("a", [1])
    table = scene.history.table
    told = frozenset({table.metadata.current_snapshot_id, table.metadata_location})
    looking.queue.put(NAME, Asked(Lane.EVENT, 5.0, announced=told))
    looking.put("other")
    until(lambda: len(scene.outcomes) == 2)
    looking.put("last")
    until(lambda: len(scene.outcomes) == 3)
    assert sorted(scene.outcomes) == ["counted", "missing", "missing"]


def test_what_never_comes_ends(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another branch, or rolled back."""
    monkeypatch.setattr(lookers_module, "TRY_AGAIN_SECONDS", (0.01, 0.01, 0.01))
    looking.queue.put(NAME, Asked(Lane.EVENT, 5.0, announced=frozenset({1234567})))
    until(lambda: len(looking.scene.outcomes) == 4)
    looking.put("other")
    until(lambda: len(looking.scene.outcomes) == 5)
    assert looking.scene.outcomes[:4] == ["counted", "unchanged", "unchanged", "unchanged"]


def test_a_table_that_is_created_after_its_event_is_found(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that creates a table with its first rows announces them before its catalog has the table."""
    monkeypatch.setattr(lookers_module, "TRY_AGAIN_SECONDS", (0.01, 0.01, 0.01))
    scene, looks = looking.scene, looking.scene.catalogs.calls
    real = scene.catalogs._called

    def called(name: TableName) -> None:
        real(name)
        if looks.count(named("new")) == 3:
            scene.catalog.create_table("db.new", scene.history.table.schema())

    monkeypatch.setattr(scene.catalogs, "_called", called)
    looking.queue.put(named("new"), Asked(Lane.UNKNOWN, 5.0))
    until(lambda: len(scene.outcomes) == 3)
    assert scene.outcomes == ["missing", "missing", "counted"]


def test_a_name_that_no_event_gave_is_looked_up_once(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookers_module, "TRY_AGAIN_SECONDS", (0.01, 0.01, 0.01))
    looking.put("swept")
    until(lambda: len(looking.scene.outcomes) == 1)
    looking.queue.put(named("event"), Asked(Lane.UNKNOWN, 5.0))
    until(lambda: len(looking.scene.outcomes) == 5)
    assert looking.scene.catalogs.calls == [named("swept"), *4 * [named("event")]]
