"""The look queue: one look for many requests, urgent tables first, a pause between two looks, back-off."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.table_names import TableName
from streaming.ledger.look_queue import EVENTS_IN_A_ROW, MOST_UNKNOWN, PAUSE_SECONDS, Asked, Lane, LookQueue
from tests.unit.streaming.ledger.scene import PATIENCE_SECONDS, named, until

EVENT, SWEEP, UNKNOWN = Asked(Lane.EVENT), Asked(Lane.SWEEP), Asked(Lane.UNKNOWN)


class Queue(LookQueue):
    """A queue on a clock that the test moves; `take_now` never waits."""

    def __init__(self) -> None:
        super().__init__(lambda: self.now)
        self.now = 100.0

    def take_now(self, catalog: str = "lake") -> tuple[TableName, Asked] | None:
        return self.take(catalog, timeout=0.0)

    def drain(self, catalog: str = "lake") -> Iterator[str]:
        """Names of the tables that are due now, in their order; each look ends before the next one."""
        while (taken := self.take_now(catalog)) is not None:
            yield taken[0].name
            self.done(taken[0])


@pytest.fixture
def queue() -> Queue:
    return Queue()


# --- one look for many requests ---------------------------------------------------------------------------------------


def test_a_thousand_events_of_one_table_are_one_look_that_answers_the_oldest(queue: Queue) -> None:
    for number in range(1000):
        queue.put(named("t"), Asked(Lane.EVENT, 5000.0 - number % 7))
    assert queue.waiting("lake") == 1
    assert queue.take_now() == (named("t"), Asked(Lane.EVENT, 4994.0))
    assert queue.take_now() is None


def test_a_look_for_events_and_a_sweep_is_one_look_and_urgent(queue: Queue) -> None:
    queue.put(named("other"), SWEEP)
    queue.put(named("t"), SWEEP)
    queue.put(named("t"), Asked(Lane.EVENT, 7.0))
    queue.put(named("t"), SWEEP)
    assert queue.take_now() == (named("t"), Asked(Lane.EVENT, 7.0))
    assert list(queue.drain()) == ["other"]


def test_a_name_that_becomes_known_leaves_the_lane_of_unknown_names(queue: Queue) -> None:
    queue.put(named("new"), Asked(Lane.UNKNOWN, 3.0))
    queue.put(named("other"), SWEEP)
    queue.put(named("new"), SWEEP)
    assert [queue.take_now(), queue.take_now(), queue.take_now()] == [
        (named("other"), SWEEP),
        (named("new"), Asked(Lane.SWEEP, 3.0)),
        None,
    ]


def test_who_asks_again_keeps_its_place(queue: Queue) -> None:
    for name in ("a", "b", "c", "a", "b"):
        queue.put(named(name), EVENT)
    assert list(queue.drain()) == ["a", "b", "c"]


# --- lanes ------------------------------------------------------------------------------------------------------------


def test_events_go_first_and_sweeps_and_unknown_names_take_turns(queue: Queue) -> None:
    for number in range(3):
        queue.put(named(f"sweep{number}"), SWEEP)
        queue.put(named(f"unknown{number}"), UNKNOWN)
    queue.put(named("event"), EVENT)
    assert list(queue.drain()) == ["event", "sweep0", "unknown0", "sweep1", "unknown1", "sweep2", "unknown2"]


def test_a_flood_of_unknown_names_is_bounded_and_delays_neither_events_nor_sweeps(queue: Queue) -> None:
    for number in range(20 * MOST_UNKNOWN):
        queue.put(named(f"unknown{number}"), UNKNOWN)
    assert queue.waiting("lake") == MOST_UNKNOWN
    for number in range(10):
        queue.put(named(f"event{number}"), EVENT)
        queue.put(named(f"sweep{number}"), SWEEP)
    looks = list(queue.drain())
    assert [looks.index(f"event{number}") for number in range(10)] == [*range(7), 8, 9, 10]
    assert [looks.index(f"sweep{number}") for number in range(10)] == [7, *range(12, 30, 2)]
    assert len(looks) == MOST_UNKNOWN + 20


def test_the_look_that_a_request_waits_for_is_not_dropped_among_unknown_names() -> None:
    queue = LookQueue()
    for number in range(2 * MOST_UNKNOWN):
        queue.put(named(f"unknown{number}"), UNKNOWN)
    queue.put(named("created a second ago"), replace(UNKNOWN, requested=True))
    queue.put(named("unknown1"), replace(UNKNOWN, requested=True))
    assert queue.waiting("lake") == MOST_UNKNOWN + 1
    looks = dict(filter(None, (queue.take("lake", 0.0) for _ in range(MOST_UNKNOWN + 1))))
    assert [table.name for table, asked in looks.items() if asked.requested] == ["unknown1", "created a second ago"]


def test_a_sweep_of_many_tables_delays_no_event(queue: Queue) -> None:
    for number in range(10_000):
        queue.put(named(f"sweep{number}"), SWEEP)
    queue.put(named("sweep9999"), EVENT)
    assert next(queue.drain()) == "sweep9999"


def test_tables_without_events_are_looked_at_while_events_never_end(queue: Queue) -> None:
    """A slow catalog answers fewer looks than events ask for."""
    for number in range(20):
        queue.put(named(f"busy{number}"), EVENT)
    for name, asked in (("swept", SWEEP), ("unknown", UNKNOWN)):
        queue.put(named(name), asked)
    order = list(queue.drain())
    assert (order.index("swept"), order.index("unknown")) == (EVENTS_IN_A_ROW, 2 * EVENTS_IN_A_ROW + 1)


def test_catalogs_have_queues_of_their_own(queue: Queue) -> None:
    for number in range(2 * MOST_UNKNOWN):
        queue.put(named(f"t{number}", "silent"), UNKNOWN)
    queue.put(named("t"), UNKNOWN)
    assert (queue.waiting("lake"), queue.waiting("silent"), queue.waiting("third")) == (1, MOST_UNKNOWN, 0)
    assert list(queue.drain("lake")) == ["t"]
    assert queue.take_now("third") is None


# --- times ------------------------------------------------------------------------------------------------------------


def test_between_two_looks_at_one_table_is_a_pause(queue: Queue) -> None:
    queue.put(named("t"), EVENT)
    assert list(queue.drain()) == ["t"]
    for number in range(50):
        queue.put(named("t"), Asked(Lane.EVENT, 50.0 - number))
    queue.put(named("other"), SWEEP)
    assert list(queue.drain()) == ["other"]
    queue.now += PAUSE_SECONDS - 0.01
    assert queue.take_now() is None
    queue.now += 0.01
    assert queue.take_now() == (named("t"), Asked(Lane.EVENT, 1.0))
    assert queue.take_now() is None


def test_a_table_that_is_asked_for_while_it_is_looked_at_is_looked_at_once_more(queue: Queue) -> None:
    queue.put(named("t"), EVENT)
    assert queue.take_now() is not None
    for number in range(5):
        queue.put(named("t"), Asked(Lane.EVENT, 9.0 - number))
    assert queue.take_now() is None, "one thread at a time looks at a table"
    queue.done(named("t"))
    assert queue.take_now() is None
    queue.now += PAUSE_SECONDS
    assert queue.take_now() == (named("t"), Asked(Lane.EVENT, 5.0))
    queue.done(named("t"))
    queue.now += 10 * PAUSE_SECONDS
    assert queue.take_now() is None


def test_a_back_off_holds_whoever_asks(queue: Queue) -> None:
    """An unreadable table with a hundred events per second is still read once per back-off, and so with sweeps."""
    queue.put(named("t"), EVENT)
    assert queue.take_now() is not None
    queue.put(named("t"), EVENT)  # during the look
    queue.done(named("t"))
    queue.put(named("t"), EVENT, after_seconds=15.0)
    for _ in range(149):
        queue.now += 0.1
        queue.put(named("t"), EVENT)
        queue.put(named("t"), SWEEP)
        assert queue.take_now() is None
    queue.now += 0.2
    assert list(queue.drain()) == ["t"]
    queue.now += 1000.0
    assert list(queue.drain()) == [], "the requests of the back-off are one look"


def test_a_look_that_did_not_take_place_waits_again_with_all_its_requests(queue: Queue) -> None:
    queue.put(named("t"), Asked(Lane.EVENT, 7.0))
    taken = queue.take_now()
    assert taken is not None
    queue.put(named("t"), Asked(Lane.EVENT, 5.0))
    queue.give_back(*taken)
    assert queue.take_now() == (named("t"), Asked(Lane.EVENT, 5.0))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "take", "done", "back off", "wait"]), st.integers(0, 3), st.sampled_from(Lane)
        ),
        max_size=80,
    )
)
def test_no_request_is_lost_and_no_table_is_looked_at_twice_at_once(steps: list[tuple[str, int, Lane]]) -> None:
    """Each table's last look begins after its last request."""
    queue = Queue()
    busy: list[TableName] = []
    news: set[TableName] = set()
    for step, number, lane in steps:
        table = named(f"t{number}")
        if step == "put":
            queue.put(table, Asked(lane))
            news.add(table)
        elif step == "take" and (taken := queue.take_now()) is not None:
            assert taken[0] not in busy
            busy.append(taken[0])
            news.discard(taken[0])
        elif step in {"done", "back off"} and busy:
            ended = busy.pop(number % len(busy))
            queue.done(ended)
            if step == "back off":
                queue.put(ended, Asked(lane), after_seconds=float(number))
                news.add(ended)
        elif step == "wait":
            queue.now += number / 4
    for table in busy:
        queue.done(table)
    looked = set()
    for _ in range(20):
        queue.now += PAUSE_SECONDS
        looked |= {named(name) for name in queue.drain()}
    assert looked >= news
    assert queue.waiting("lake") == 0


# --- threads ----------------------------------------------------------------------------------------------------------


def test_a_waiting_thread_gets_a_table_that_is_put_later_and_close_ends_all() -> None:
    queue, taken = LookQueue(), list[object]()

    def take() -> None:
        taken.append(queue.take("lake", PATIENCE_SECONDS))

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    queue.put(named("elsewhere", "other"), EVENT)
    queue.put(named("t"), EVENT)
    until(lambda: taken)
    assert taken == [(named("t"), EVENT)]
    queue.close()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert taken == [(named("t"), EVENT), None, None]
