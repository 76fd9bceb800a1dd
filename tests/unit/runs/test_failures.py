"""What follows the failure of a piece of work, and what is said of it. Pure."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from compactor.errors import FirnlineError, GiveUpError, ReplanError, RetryError
from compactor.reasons import Reason
from compactor.rewrite.tasks.output_task import SILENCE
from compactor.runs.failures import RESTORE, Next, Unavailable, failure_of, next_step

NO_ANSWER = RetryError("503", reason=Reason.UNAVAILABLE)
EXPIRED = RetryError("the store's credential is over", reason=Reason.CREDENTIALS_EXPIRED)
LOST = RetryError("an executor was lost", reason=Reason.TASK_LOST)
NO_MEMORY = RetryError("malloc of size 1024 failed", reason=Reason.OUT_OF_MEMORY)
FULL = RetryError("the disk is full", reason=Reason.NO_SPACE)
DAMAGED = GiveUpError("a page is damaged")
OVERTAKEN = ReplanError("the planned snapshot expired", reason=Reason.SNAPSHOT_EXPIRED)
DIED = RuntimeError("Python worker exited unexpectedly")


@pytest.mark.parametrize(
    ("error", "first", "second"),
    [
        (NO_ANSWER, Next.LAST, Next.REFUSED),
        (LOST, Next.ALONE, Next.REFUSED),
        (NO_MEMORY, Next.ALONE, Next.REFUSED),
        (EXPIRED, Next.ALONE, Next.STOP),
        (DAMAGED, Next.REFUSED, Next.REFUSED),
        (OVERTAKEN, Next.REFUSED, Next.REFUSED),
        (DIED, Next.REFUSED, Next.REFUSED),
        (FULL, Next.STOP, Next.STOP),
        (Py4JNetworkError("Answer from Java side is empty"), Next.STOP, Next.STOP),
        (Py4JError("no gateway"), Next.STOP, Next.STOP),
    ],
    ids=str,
)
def test_what_follows_the_error_of_a_piece(error: Exception, first: Next, second: Next) -> None:
    assert next_step(error, of_job=False, tried=False, answers=True) is first
    assert next_step(error, of_job=False, tried=True, answers=True) is second


def test_a_piece_without_an_answer_is_not_tried_again_once_the_store_answers_none() -> None:
    assert next_step(NO_ANSWER, of_job=False, tried=False, answers=False) is Next.REFUSED
    assert next_step(LOST, of_job=False, tried=False, answers=False) is Next.ALONE


@pytest.mark.parametrize(
    ("error", "first", "second"),
    [
        (DIED, Next.ALONE, Next.REFUSED),
        (NO_ANSWER, Next.ALONE, Next.REFUSED),
        (FULL, Next.STOP, Next.STOP),
        (Py4JNetworkError("Answer from Java side is empty"), Next.STOP, Next.STOP),
    ],
    ids=str,
)
def test_each_piece_of_a_spark_job_that_failed_is_tried_alone(error: Exception, first: Next, second: Next) -> None:
    """One of them may be too large for an executor, or another process of the host was."""
    assert next_step(error, of_job=True, tried=False, answers=True) is first
    assert next_step(error, of_job=True, tried=True, answers=True) is second


def test_a_store_is_silent_after_several_pieces_without_an_answer_not_after_several_attempts_at_them() -> None:
    store = Unavailable()
    for piece in [1, 2] * SILENCE:
        store.note(piece)
    assert not store.is_certain
    store.note(3)
    assert store.is_certain
    store.end()
    assert not store.is_certain


@pytest.mark.parametrize("error", [NO_ANSWER, LOST, DAMAGED, OVERTAKEN])
def test_an_error_that_says_enough_stays_as_it_is(error: FirnlineError) -> None:
    assert failure_of("rewriting a file group", error) is error


def test_where_memory_was_short_twice_it_is_said_what_helps() -> None:
    failure = failure_of("rewriting a file group", NO_MEMORY, (), ", or lower the target file size")
    assert isinstance(failure, GiveUpError)
    assert failure.reason == Reason.OUT_OF_MEMORY
    assert "failed: malloc of size 1024 failed; this happened twice: raise the memory" in str(failure)
    assert str(failure).endswith(", or lower the target file size")


ABORTED = (
    "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 in stage "
    "1.0 (TID 354) (host executor driver): "
)


@pytest.mark.parametrize(
    ("said", "rest"),
    [
        ("org.apache.iceberg.exceptions.NotFoundException: no such file: file:/lake/t/k=null/1.parquet", RESTORE),
        (
            "org.apache.parquet.format.InvalidParquetMetadataException: size -43",
            f" in one of file:///lake/t/k=null/1.parquet{RESTORE}",
        ),
        (
            "org.apache.iceberg.exceptions.RuntimeIOException: java.io.EOFException",
            f" in one of file:///lake/t/k=null/1.parquet{RESTORE}",
        ),
        ("java.io.UncheckedIOException: Failed to create Parquet file", ""),
    ],
)
def test_an_error_of_spark_is_told_without_its_job_and_with_files_and_remedy(said: str, rest: str) -> None:
    error = RuntimeError(f"{ABORTED}{said}\n\tat java.lang.Thread.run")
    failure = failure_of("rewriting a file group", error, ["file:///lake/t/k=null/1.parquet"])
    assert isinstance(failure, GiveUpError)
    assert str(failure) == f"rewriting a file group failed: {said}{rest}"
