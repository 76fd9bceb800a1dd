"""Why a query ended, what becomes of its checkpoint, and which events it never read."""

from __future__ import annotations

import pytest

from streaming.kafka.topic_watch import Topics
from streaming.service.stream_failures import (
    NEWEST,
    OLDEST,
    BatchOffsets,
    Cause,
    Checkpoint,
    Failures,
    Gap,
    added_partitions,
    cause_of,
    gaps,
    shown,
    starting_offsets,
)

PROXY = """\
org.apache.spark.sql.streaming.StreamingQueryException: [STREAM_FAILED] Query [id = 1, runId = 2] terminated with \
exception: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/x/py4j/java_gateway.py", line 2506, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
  File "/x/streaming/ledger/event_reader.py", line 143, in batch
    handle([heard_of(row) for row in rows_of(frame)])
{}
 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: ledger [id = 1, runId = 2]
py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
"""


def not_handled(exception: str) -> str:
    """What Spark says of a batch whose handler raised this."""
    return PROXY.format(exception)


def not_read(causes: str) -> str:
    """What Spark says of a batch that it could not read."""
    return PROXY.format(f"streaming.ledger.batch_rows.BatchUnreadableError: {causes}")


JOB = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 5.0 failed 1 times, most "
    "recent failure: Lost task 0.0 in stage 5.0 (TID 5) (host executor driver): "
)
NANOSECONDS = not_read(JOB + "java.lang.ArithmeticException: long overflow")
CORRUPT = not_read(
    JOB + "org.apache.kafka.common.KafkaException: Received exception when fetching the next record from commits-0. If "
    "needed, please seek past the record to continue consumption. "
    "org.apache.kafka.common.errors.CorruptRecordException: Record is corrupt"
)
NO_CATALOG = not_handled("compactor.errors.RetryError: catalog lake does not answer: table \nx")


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
        (NO_CATALOG, Cause.HANDLER),
        (not_handled("RetryError: lake.db.`streaming.ledger.batch_rows.BatchUnreadableError: x`"), Cause.HANDLER),
        (not_handled("Py4JJavaError: org.apache.kafka.common.errors.TimeoutException: no topic x"), Cause.HANDLER),
        (NANOSECONDS, Cause.UNREADABLE),
        (CORRUPT, Cause.UNREADABLE),
        (not_read(JOB + "org.apache.kafka.common.KafkaException: Encountered corrupt message when"), Cause.UNREADABLE),
        (not_read(JOB + "org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired"), Cause.BROKER),
        (not_read(JOB + "java.util.concurrent.TimeoutException: Cannot fetch record for offset 7 in"), Cause.BROKER),
        (not_read(JOB + "org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized"), Cause.DENIED),
        (not_read(JOB + "java.io.IOException: No space left on device"), Cause.DISK),
        ("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext", Cause.SPARK),
        ("org.apache.spark.SparkException: Job 7 cancelled because SparkContext was shut down", Cause.SPARK),
        (not_read("SparkException: Job 7 cancelled because SparkContext was shut down"), Cause.SPARK),
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


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (NANOSECONDS, "BatchUnreadableError: org.apache.spark.SparkException: Job aborted"),
        (NO_CATALOG, "compactor.errors.RetryError: catalog lake does not answer: table"),
        (not_handled("ValueError: a\n\nThe above ...:\n\nTraceback (most\n  File x\nOSError: b"), "OSError: b"),
        ("[STREAM_FAILED] Query terminated: Timed out\n=== Streaming", "[STREAM_FAILED] Query terminated: Timed out"),
        ("", "no reason was given"),
    ],
)
def test_the_line_that_is_shown_names_what_failed(error: str, line: str) -> None:
    assert line in shown(error)
    assert "\n" not in shown(error)


def test_an_outside_cause_never_costs_the_checkpoint() -> None:
    outside = [cause for cause in Cause if cause.outside]
    assert set(after(*outside * 8)) == {Checkpoint.KEEP}


def test_the_end_of_spark_never_costs_the_checkpoint() -> None:
    ended = cause_of("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext")
    assert after(*[ended] * 4) == [Checkpoint.KEEP] * 4


def test_the_second_unexplained_end_sets_the_checkpoint_aside_and_later_ones_skip_events() -> None:
    kept, aside, skip = Checkpoint.KEEP, Checkpoint.SET_ASIDE, Checkpoint.SET_ASIDE_AND_SKIP
    assert after(*[Cause.OTHER] * 8) == [kept, aside, kept, skip, kept, kept, kept, skip]
    assert after(Cause.OTHER, Cause.BROKER, Cause.OTHER) == [kept, kept, aside]


def after_batches(*ends: tuple[Cause, str]) -> list[Checkpoint]:
    """What becomes of the checkpoint after each of these ends, with the offsets at which the batch would have ended."""
    failures, found = Failures(), []
    for number, (cause, end) in enumerate(ends):
        failures = failures.failed(cause, float(number), end)
        found.append(failures.checkpoint)
    return found


def test_a_batch_that_cannot_be_read_four_times_is_skipped_and_no_other() -> None:
    kept, skip, unread = Checkpoint.KEEP, Checkpoint.SKIP_BATCH, Cause.UNREADABLE
    assert after_batches(*[(unread, "a")] * 6) == [kept, kept, kept, skip, skip, skip]
    assert after_batches(*[(unread, "a")] * 3, *[(unread, "b")] * 4) == [kept] * 6 + [skip]
    others = [(Cause.BROKER, ""), (Cause.HANDLER, "a"), (unread, "a")]
    assert after_batches(*others * 4) == [kept] * 11 + [skip]
    assert after_batches(*[(Cause.HANDLER, "a")] * 64) == [kept] * 64


def test_a_batch_knows_the_offsets_that_it_lacks() -> None:
    batch = BatchOffsets.of('[{"t":{"0":5,"1":7},"u":{"0":1}}]', '[{"t":{"0":9,"1":7,"2":2},"u":{"0":1}}]')
    assert batch.end == {"t": {"0": 9, "1": 7, "2": 2}, "u": {"0": 1}}
    assert batch.lacks == [Gap("t", 6)]
    assert str(batch) == "t-0 from 5 to 9, t-2 from 0 to 2"
    assert BatchOffsets.of("[-]", "[-]") == BatchOffsets.of("", "") == BatchOffsets()
    assert BatchOffsets.of("[-]", '[{"t":{"0":9}}]').lacks == [Gap("t", 9)]


def test_failures_last_since_the_first() -> None:
    failures = Failures().failed(Cause.BROKER, 5.0).failed(Cause.OTHER, 9.0)
    assert (failures.in_a_row, failures.unexplained, failures.since) == (2, 1, 5.0)


def test_retention_is_seen_by_the_oldest_offsets() -> None:
    start = {"t": {"0": 10, "1": 5}}
    assert gaps(start, {}) == gaps(start, {"t": {"0": 10, "1": 0}}) == gaps({}, {"t": {"0": 3}}) == []
    assert gaps(start, {"t": {"0": 14, "1": 6}}) == [Gap("t", 5)]


def test_a_new_topic_is_read_from_its_beginning_and_the_others_where_the_query_was() -> None:
    """So is a partition that was added after the last batch."""
    ends = {"anew": {"0": 9}, "other": {"0": 4}, "deleted": {"0": 7}}
    assert starting_offsets({"anew": 2, "other": 2}, ends, {"anew"}) == {
        "anew": {"0": OLDEST, "1": OLDEST},
        "other": {"0": 4, "1": OLDEST},
    }


def test_without_a_batch_the_others_are_read_from_their_end() -> None:
    """Events that were read before are not read again: a request would be done twice."""
    assert starting_offsets({"anew": 1, "other": 1}, {}, {"anew"}) == {"anew": {"0": OLDEST}, "other": {"0": NEWEST}}


def test_a_topic_with_another_id_was_created_again_also_if_it_was_missing_in_between() -> None:
    known, anew = Topics().seen(Topics({"t": "a", "u": "x"}, {"t": 1, "u": 1}))
    assert anew == frozenset()
    known, anew = known.seen(Topics({"u": "x"}, {"u": 1}))
    assert anew == frozenset()
    known, anew = known.seen(Topics({"t": "b", "u": "x"}, {"t": 3, "u": 1}))
    assert (anew, known.partitions) == ({"t"}, {"t": 3, "u": 1})
    assert known.seen(Topics({"u": "x"}, {"u": 1}))[0].partitions == {"u": 1}, "of topics that exist"
    assert known.seen(known) == (known, frozenset())


def test_added_partitions() -> None:
    assert added_partitions({"t": {"0": 1}}, {"t": {"0": 1, "1": 0}}) == {"t": 2}
    assert added_partitions({"t": {"0": 1}}, {"t": {"0": 9}}) == added_partitions({}, {"t": {"0": 9}}) == {}
