"""An exception of a batch that cannot be read is known by the end of Python's traceback, which Spark repeats."""

from __future__ import annotations

import traceback
from typing import Any, NoReturn

import pytest

from streaming.ledger.batch_rows import MOST_OF_BATCH, BatchUnreadableError, causes_of, rows_of
from streaming.service.stream_failures import Cause, cause_of
from tests.unit.streaming.test_stream_failures import not_handled

JOB = """\
Job aborted due to stage failure: Task 0 in stage 5.0 failed 1 times: java.lang.ArithmeticException: long overflow
\tat java.base/java.lang.Math.multiplyExact(Math.java:1032)
\tat org.apache.kafka.common.errors.Nothing.at(Nothing.java:1)
\t... 12 more
Driver stacktrace:
"""


class Unreadable:
    """A frame that is not read. `says`: what the exception says."""

    def __init__(self, says: str) -> None:
        self.says = says

    def collect(self) -> NoReturn:
        raise RuntimeError(self.says)


def said_by_spark(frame: Any) -> str:
    with pytest.raises(BatchUnreadableError) as raised:
        rows_of(frame)
    return not_handled("".join(traceback.format_exception(raised.value)).rstrip())


def test_a_batch_that_cannot_be_read_is_told_from_one_that_cannot_be_handled() -> None:
    assert cause_of(said_by_spark(Unreadable(JOB))) is Cause.UNREADABLE
    assert cause_of(said_by_spark(Unreadable("org.apache.kafka.common.errors.TimeoutException: x"))) is Cause.BROKER


def test_its_text_is_short_whatever_the_exception_says() -> None:
    text = said_by_spark(Unreadable("x" * 10 * MOST_OF_BATCH))
    assert cause_of(text) is Cause.UNREADABLE
    assert text.count("x") < MOST_OF_BATCH + 100


def test_frames_of_java_are_no_cause() -> None:
    assert causes_of(RuntimeError(JOB)).splitlines() == [
        f"RuntimeError: {JOB.splitlines()[0]}",
        "Driver stacktrace:",
    ]
