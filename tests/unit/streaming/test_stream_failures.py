"""Why a query ended, what becomes of its checkpoint, and which events it never read."""

from __future__ import annotations

import pytest

from streaming.kafka.topic_watch import Topics
from streaming.service.stream_failures import (
    NEWEST,
    OLDEST,
    Cause,
    Checkpoint,
    Failures,
    Gap,
    added_partitions,
    cause_of,
    gaps,
    starting_offsets,
)


@pytest.mark.parametrize(
    ("exceptions", "cause"),
    [
        (
            "org.apache.spark.SparkException: x\norg.apache.kafka.common.errors.TimeoutException: Timed out",
            Cause.BROKER,
        ),
        ("org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not", Cause.TOPIC),
        ("org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized", Cause.DENIED),
        ("org.apache.kafka.common.errors.SaslAuthenticationException: Authentication failed", Cause.DENIED),
        ("java.io.IOException: No space left on device", Cause.DISK),
        ("py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: Traceback", Cause.HANDLER),
        ("java.lang.IllegalStateException: Incomplete log file", Cause.OTHER),
        ("", Cause.OTHER),
    ],
)
def test_the_first_sign_in_the_exceptions_decides(exceptions: str, cause: Cause) -> None:
    assert cause_of(exceptions) is cause
    assert cause.remedy


def after(*causes: Cause) -> list[Checkpoint]:
    failures, found = Failures(), []
    for number, cause in enumerate(causes):
        failures = failures.failed(cause, float(number))
        found.append(failures.checkpoint)
    return found


def test_an_outside_cause_never_costs_the_checkpoint() -> None:
    outside = [cause for cause in Cause if cause.outside]
    assert set(after(*outside * 8)) == {Checkpoint.KEEP}


def test_the_second_unexplained_end_sets_the_checkpoint_aside_and_later_ones_skip_events() -> None:
    kept, aside, skip = Checkpoint.KEEP, Checkpoint.SET_ASIDE, Checkpoint.SET_ASIDE_AND_SKIP
    assert after(*[Cause.OTHER] * 8) == [kept, aside, kept, skip, kept, kept, kept, skip]
    assert after(Cause.OTHER, Cause.BROKER, Cause.OTHER) == [kept, kept, aside]


def test_failures_last_since_the_first() -> None:
    failures = Failures().failed(Cause.BROKER, 5.0).failed(Cause.OTHER, 9.0)
    assert (failures.in_a_row, failures.unexplained, failures.since) == (2, 1, 5.0)


def test_retention_is_seen_by_the_oldest_offsets() -> None:
    start = {"t": {"0": 10, "1": 5}}
    assert gaps(start, {}) == gaps(start, {"t": {"0": 10, "1": 0}}) == gaps({}, {"t": {"0": 3}}) == []
    assert gaps(start, {"t": {"0": 14, "1": 6}}) == [Gap("t", 5)]


def test_a_new_topic_is_read_from_its_beginning_and_the_others_where_the_query_was() -> None:
    ends = {"anew": {"0": 9}, "other": {"0": 4}}
    assert starting_offsets({"anew": 2, "other": 2}, ends, {"anew"}) == {
        "anew": {"0": OLDEST, "1": OLDEST},
        "other": {"0": 4, "1": NEWEST},
    }


def test_a_topic_with_another_id_was_created_again_also_if_it_was_missing_in_between() -> None:
    known, anew = Topics().seen(Topics({"t": "a", "u": "x"}, {"t": 1, "u": 1}))
    assert anew == frozenset()
    known, anew = known.seen(Topics({"u": "x"}, {"u": 1}))
    assert anew == frozenset()
    known, anew = known.seen(Topics({"t": "b", "u": "x"}, {"t": 3, "u": 1}))
    assert (anew, known.partitions) == ({"t"}, {"t": 3, "u": 1})
    assert known.seen(known) == (known, frozenset())


def test_added_partitions() -> None:
    assert added_partitions({"t": {"0": 1}}, {"t": {"0": 1, "1": 0}}) == {"t": 2}
    assert added_partitions({"t": {"0": 1}}, {"t": {"0": 9}}) == added_partitions({}, {"t": {"0": 9}}) == {}
