"""What the failure of a piece of work, or of its Spark job, means: what comes next, the reason, the remedy. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from py4j.protocol import Py4JJavaError

from compactor.errors import FirnlineError, GiveUpError, ReplanError, RetryError
from compactor.locations import plain_path
from compactor.reasons import Reason
from compactor.rewrite.tasks.output_task import SILENCE
from compactor.rewrite.tasks.runner import TRIED_AGAIN
from compactor.spark.java_table import denial, exception_class, first_line, spark_has_ended
from compactor.spark.shipped_modules import REMEDY, unusable
from compactor.storage.byte_store import PERMIT, checksum_remedy

UNSUPPORTED: Final = "java.lang.UnsupportedOperationException"
KILLED: Final = (
    "Python worker exited unexpectedly",
    "pyspark.daemon",
    "OutOfMemoryError",
    "exit code 137",
    "OOMKilled",
    "memory limits",
)
"""In the errors of Spark jobs whose Python worker or executor was killed. Only the kernel or the manager of the cluster
knows why; that memory was short is by far the most frequent cause."""
OF_ONE_TASK: Final = frozenset({Reason.OUT_OF_MEMORY, Reason.TASK_LOST, Reason.UNAVAILABLE})
"""Reasons of a RetryError that may concern one output task alone."""
MORE_MEMORY: Final = "raise the memory of the container or spark.executor.memoryOverhead"
WAS_KILLED: Final = (
    "; its worker was killed twice, most likely because the host or container has too little memory for these files: "
    f"{MORE_MEMORY}"
)
RAN_OUT: Final = f"; this happened twice: {MORE_MEMORY}"
RESTORE: Final = "; restore the file, or remove it from the table; compact other partitions with --where"
MOST_SUSPECTS: Final = 10
_UNREADABLE = re.compile(
    r"NotFoundException|apache\.(?:parquet|orc|avro)\.|is not a Parquet file|java\.io\.EOFException"
)
"""In the errors of readers whose file is missing or damaged."""


class Next(Enum):
    """What becomes of a piece of work that has failed.

    REFUSED: it costs its group. ALONE: it is tried once more, alone. LAST: so too, after all others, which show whether
    the store answers. STOP: the whole job ends.
    """

    REFUSED = auto()
    ALONE = auto()
    LAST = auto()
    STOP = auto()


def next_step(error: Exception, *, of_job: bool, tried: bool, answers: bool) -> Next:
    """What becomes of a piece of work after this error.

    Args:
        error: Of the piece.
        of_job: The whole Spark job failed, e.g. because its worker was killed: which piece is at fault is not known.
        tried: The piece was tried before.
        answers: The store answers other pieces, as far as is known.
    """
    others_go_on = costs_its_group(error)
    if of_job and not others_go_on:
        return Next.STOP
    may_pass = of_job or (isinstance(error, FirnlineError) and error.reason in TRIED_AGAIN)
    if may_pass and not tried and (of_job or not is_no_answer(error)):
        return Next.ALONE
    if may_pass and not tried and answers:
        return Next.LAST
    return Next.REFUSED if others_go_on else Next.STOP


def costs_its_group(error: Exception) -> bool:
    """Whether the other file groups can go on: catalog, request and machine are well, and the store may be."""
    if isinstance(error, FirnlineError):  # only Spark needs the planned snapshot, which may expire
        return isinstance(error, GiveUpError | ReplanError) or error.reason in OF_ONE_TASK
    return not spark_has_ended(error)


def is_no_answer(error: Exception) -> bool:
    """Whether the store did not answer. If it answers other tasks, something is wrong with the file or its place."""
    return isinstance(error, RetryError) and error.reason is Reason.UNAVAILABLE


class Unavailable:
    """Whether the store answers a job: the pieces of work without an answer since the last one that was done."""

    def __init__(self) -> None:
        self._unanswered: set[object] = set()

    def note(self, piece: object) -> None:
        """A piece of work got no answer; a second attempt at it tells no more of the store than the first."""
        self._unanswered.add(piece)

    def end(self) -> None:
        """Some work was done: the store answers."""
        self._unanswered.clear()

    @property
    def is_certain(self) -> bool:
        """Whether no further work is to be begun."""
        return len(self._unanswered) >= SILENCE


def failure_of(what: str, error: Exception, paths: Sequence[str] = (), memory: str = "") -> FirnlineError:
    """The error of a piece of work that failed for good.

    `what`: the piece, e.g. "rewriting a file group". `paths`: its data files, for errors that name none. `memory`: what
    else helps where memory was short.
    """
    reason, remedy = reason_of(error)
    if isinstance(error, FirnlineError) and reason not in {Reason.INPUT_MISSING, Reason.OUT_OF_MEMORY}:
        return error
    cause = (denial(error) or first_line(error)).rstrip(".")
    if reason is Reason.OUT_OF_MEMORY:
        remedy += memory
    if not remedy and (reason is Reason.INPUT_MISSING or _UNREADABLE.search(cause)):
        # Our own store names the file that it misses, which may be a delete file.
        remedy = f"{_suspects(cause, () if reason is Reason.INPUT_MISSING else paths)}{RESTORE}"
    failure = GiveUpError(f"{what} failed: {cause}{remedy}", reason=reason)
    failure.__cause__ = error
    return failure


def reason_of(error: Exception) -> tuple[Reason, str]:
    """The reason for which a task or its Spark job failed, and the remedy as the end of a sentence."""
    if isinstance(error, FirnlineError):
        return error.reason, RAN_OUT if error.reason is Reason.OUT_OF_MEMORY else ""
    if isinstance(error, Py4JJavaError):
        if exception_class(error) == UNSUPPORTED:
            return Reason.TYPE_NOT_SUPPORTED, ""  # Spark has neither time nor nanoseconds
        interpreter = unusable(error)
        if interpreter is not None:
            return Reason.BAD_SETTING, f" ({interpreter}). {REMEDY}"
        if any(sign in str(error) for sign in KILLED):
            return Reason.OUT_OF_MEMORY, WAS_KILLED
    if denial(error) is not None:
        return Reason.ACCESS_DENIED, f"; {PERMIT}"
    return Reason.UNEXPECTED, checksum_remedy(str(error))


def _suspects(cause: str, paths: Sequence[str]) -> str:
    """The files that may be meant by an error that names none."""
    if not paths or any(plain_path(path) in cause for path in paths):
        return ""
    more = f" and {len(paths) - MOST_SUSPECTS} more" if len(paths) > MOST_SUSPECTS else ""
    return f" in one of {', '.join(paths[:MOST_SUSPECTS])}{more}"
