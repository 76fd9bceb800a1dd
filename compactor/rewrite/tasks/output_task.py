"""One output task: splice its input files into one output file where the footers allow it, else encode them.

A Spark task runs it: plain values in, plain values out. Few deleted rows are copied with the others; the commit deletes
them in the output (they are *carried*). Those that equality deletes delete are looked up in the key columns first.
Decode once: when a task cannot be spliced as a whole, input files that an earlier encode wrote keep their row groups.
Only the other files are decoded, into a temporary file (`aside`) that is then spliced together with them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64
from pyspark import TaskContext

from compactor.errors import FirnlineError, GiveUpError, RetryError
from compactor.locations import attempt_location
from compactor.reasons import Reason, Refusal
from compactor.rewrite.deletes.equality_deletes import EncodeInput, InputFiles
from compactor.rewrite.deletes.key_search import FoundRows, count_deleted, search
from compactor.rewrite.deletes.position_deletes import NO_POSITIONS, Positions, deleted_positions
from compactor.rewrite.deletes.row_maps import NONE, InputRows, check_rows, in_order, packed
from compactor.rewrite.encode.encode import EncodeTask, encode, encode_refusal, encoded_schema
from compactor.rewrite.encode.writer import EncodedFile
from compactor.rewrite.parquet.footer import Footer, read_footer
from compactor.rewrite.parquet.thrift import Struct
from compactor.rewrite.splice.checks import SpliceLimits, files_too_small, refusal
from compactor.rewrite.splice.lineage_chunks import RowLineage
from compactor.rewrite.splice.lineage_schema import without_lineage
from compactor.rewrite.splice.splice import SplicedFile, SpliceInput, splice
from compactor.spark.python_worker import reduce_task_overhead
from compactor.storage.byte_store import ByteStore

# Reasons against copying row groups that do not forbid decoding them. All other reasons mean damaged or foreign files.
ENCODABLE = frozenset(
    {
        Reason.SCHEMA_DIFFERS,
        Reason.NO_FIELD_IDS,
        Reason.CREATED_BY_DIFFERS,
        Reason.COLUMN_ORDERS_DIFFER,
        Reason.METADATA_DIFFERS,
        Reason.ROW_GROUPS_TOO_SMALL,
        Reason.CHUNKS_TOO_SMALL,
        Reason.FOOTER_TOO_LARGE,
        Reason.TOO_MANY_ROW_GROUPS,
        Reason.TOO_MANY_ROWS,
        Reason.TOO_MANY_DELETES,
    }
)
FOREIGN_FOOTER = frozenset({Reason.FOOTER_TOO_LARGE, Reason.UNREADABLE_FOOTER})
# Damage that another reader would not notice: it would write the wrong rows under correct checksums.
DAMAGE = frozenset(
    {Reason.ROW_COUNT_MISMATCH, Reason.CORRUPT_PAGE, Reason.NULL_IN_REQUIRED_FIELD, Reason.VALUE_OUT_OF_RANGE}
)
SILENCE: Final = 3
"""Pieces of work without an answer, with none done since the first of them began: the store answers none any more."""
FROM_ANY_READER: Final = frozenset({Reason.OUTPUT_EXISTS, Reason.ACCESS_DENIED, Reason.INPUT_MISSING})
"""What the store answers to Iceberg's reader and writer too."""
ENCODED_BY = f"parquet-cpp-arrow version {pa.__version__}".encode()  # `created_by` of the files that `encode` writes


@dataclass(frozen=True)
class SpliceTask:
    """Splice files, in arrival order, into the file `output`.

    `most_carried`: fraction of rows that may be deleted and are copied. `lineage`: keep row lineage. `by_value`: look
    up the rows that equality deletes delete; else files to which such deletes apply are not copied.
    """

    files: InputFiles
    output: str
    most_carried: float
    limits: SpliceLimits
    lineage: bool = False
    by_value: bool = False

    @property
    def store(self) -> ByteStore:
        """The store of the output and of the inputs."""
        return self.files.store_for(self.output)

    @property
    def inputs(self) -> list[SpliceInput]:
        return [
            SpliceInput(
                each.location,
                each.size,
                RowLineage(each.first_row_id, each.data_sequence_number) if self.lineage else None,
            )
            for each in self.files.inputs
        ]

    def may_copy(self, source: EncodeInput) -> bool:
        """Whether the deletes of a file allow to copy its row groups, as far as their kind tells."""
        if source.equality_deletes and not self.by_value:
            return False
        return not source.has_deletes or bool(self.most_carried)


@dataclass(frozen=True)
class TaskInput:
    """The rewrites that one output task may try, the cheapest first. Both have the same inputs; None: do not try.

    `aside`: location of the temporary file for the decoded inputs; None: decode all inputs or none.
    """

    splice: SpliceTask | None
    encode: EncodeTask | None
    aside: str | None = None

    def at_attempt(self, attempt: int) -> TaskInput:
        """The same input; attempt `attempt` (from 0) of the task writes files of its own."""
        if not attempt:
            return self
        splice, encode = self.splice, self.encode
        return TaskInput(
            splice and replace(splice, output=attempt_location(splice.output, attempt)),
            encode and replace(encode, output=attempt_location(encode.output, attempt)),
            self.aside and attempt_location(self.aside, attempt),
        )

    @property
    def may_copy_all(self) -> bool:
        """Whether row groups of all inputs may be copied, as far as deletes and file sizes tell."""
        if self.splice is None or _sizes_refused(self.splice) is not None:
            return False
        return all(map(self.splice.may_copy, self.splice.files.inputs))

    @property
    def may_keep(self) -> tuple[int, ...]:
        """Indexes of the inputs whose row groups may be copied while the other inputs are decoded."""
        if self.splice is None or self.encode is None or self.aside is None:
            return ()
        smallest = self.splice.limits.min_row_group_bytes
        return tuple(
            index
            for index, source in enumerate(self.splice.files.inputs)
            if self.splice.may_copy(source) and not source.equality_deletes and source.size >= smallest
        )


@dataclass(frozen=True)
class MixedFile:
    """An output with copied row groups of the inputs at the indexes `kept`, and new row groups of the other inputs."""

    spliced: SplicedFile
    encoded: EncodedFile
    kept: tuple[int, ...]


_NOTHING: Final[Mapping[str, bytes]] = {}

Deleted = Mapping[str, Positions]
"""Positions that are deleted, by data file; files without any are left out."""


@dataclass(frozen=True)
class TaskResult:
    """The output file, why it was not spliced (None: it was, or no splice was tried), the input bytes decoded, and
    where the output holds the rows of each input.
    """

    file: SplicedFile | EncodedFile | MixedFile
    not_spliced: Refusal | None
    decoded_bytes: int
    inputs: tuple[InputRows, ...]


def run_task(work: TaskInput) -> TaskResult | Refusal:
    """Splice or encode the inputs, or return why neither is possible. Runs on an executor.

    Raises:
        GiveUpError: the files are damaged, or contradict their manifest entries.
        RetryError: the store does not answer.
    """
    refused: Refusal | None = None
    deleted: Deleted = {}
    if work.splice is not None:
        try:
            deleted = _deleted(work.splice)
        except GiveUpError as error:
            return _left_to_iceberg(error)
        spliced = _copied(work.splice, deleted)
        if isinstance(spliced, TaskResult):
            return spliced
        refused = spliced
    if work.encode is None or (refused is not None and refused.reason not in ENCODABLE):
        return refused or Refusal(Reason.NO_ENGINE, "Neither splice nor encode was requested.")
    return _decoded(work, work.encode, refused, deleted)


def _decoded(
    work: TaskInput, everything: EncodeTask, refused: Refusal | None, deleted: Deleted
) -> TaskResult | Refusal:
    """Decode the inputs that must be decoded, or all of them."""
    try:
        mixed = _mixed(work, everything, refused, deleted)
        if mixed is not None:
            return mixed
        encoded = encode(everything)
    except GiveUpError as error:
        return _left_to_iceberg(error)
    if isinstance(encoded, Refusal):
        return encoded
    return TaskResult(encoded, refused, everything.files.size, encoded.inputs)


def _left_to_iceberg(error: GiveUpError) -> Refusal:
    """Iceberg's own reader may read what Arrow cannot. Raises the error if it would read wrong rows, or fail too."""
    if error.reason in DAMAGE | FROM_ANY_READER:
        raise error
    return Refusal(error.reason, str(error))


def foreseen(work: TaskInput) -> tuple[Refusal | None, Refusal | None]:
    """Return why `run_task` would not splice, and why it would not encode either. Writes nothing; `plan` uses it.

    Raises:
        GiveUpError: a footer is damaged.
        RetryError: the store does not answer.
    """
    not_spliced = None
    if work.splice is not None and all(map(work.splice.may_copy, work.splice.files.inputs)):
        judged = _judged(work.splice)
        not_spliced = judged if isinstance(judged, Refusal) else _too_many(work.splice, _deleted(work.splice))
        if not_spliced is None:
            return None, None
    if work.encode is None or (not_spliced is not None and not_spliced.reason not in ENCODABLE):
        return not_spliced, not_spliced
    return not_spliced, encode_refusal(work.encode)


def _deleted(task: SpliceTask) -> Deleted:
    """The deleted positions of inputs that may be copied.

    Raises:
        GiveUpError: a delete file is damaged.
        RetryError: the store does not answer.
    """
    sources = [each for each in task.files.inputs if each.has_deletes and task.may_copy(each)]
    if not sources:
        return {}
    found = deleted_positions(task.store, {each.location: each.position_deletes for each in sources})
    rows = {each.location: each.records for each in sources}
    return {path: positions[: np.searchsorted(positions, rows[path])] for path, positions in found.items()}


def _copied(task: SpliceTask, deleted: Deleted) -> TaskResult | Refusal | None:
    """Splice all inputs, with their deleted rows if these are few. None: their deletes forbid it, nothing was tried."""
    if not all(map(task.may_copy, task.files.inputs)):
        return None
    footers = _judged(task)
    if isinstance(footers, Refusal):
        return footers
    by_value = _deleted_by_value(task, deleted)
    if isinstance(by_value, Refusal):
        return by_value
    spliced = _spliced(task, footers)
    if isinstance(spliced, Refusal):
        return spliced
    inputs = in_order(_carrying(source, deleted, by_value) for source in task.files.inputs)
    check_rows(task.output, inputs, spliced.rows)
    return TaskResult(spliced, None, 0, inputs)


def _deleted_by_value(task: SpliceTask, deleted: Deleted) -> Mapping[str, bytes] | Refusal:
    """Packed positions of the rows that only equality deletes delete, by data file, unless too many are deleted.

    The search comes last: it reads key columns.
    """
    refused = _too_many(task, deleted)
    if refused is not None or not task.files.equality_deletes:
        return refused or {}
    try:
        found = search(task.files)
    except GiveUpError as error:
        return _left_to_iceberg(error)
    if isinstance(found, Refusal):
        return found
    return _too_many(task, deleted, found.by_value) or found.by_value


def _too_many(task: SpliceTask, deleted: Deleted, by_value: Mapping[str, bytes] = _NOTHING) -> Refusal | None:
    rows = sum(each.records for each in task.files.inputs)
    gone = sum(map(len, deleted.values())) + sum(len(BitMap64.deserialize(found)) for found in by_value.values())
    if gone <= task.most_carried * rows:
        return None
    return Refusal(
        Reason.TOO_MANY_DELETES,
        f"{gone} of {rows} rows are deleted, more than policy.carried_delete_ratio ({task.most_carried:g}) allows",
    )


def _carrying(source: EncodeInput, deleted: Deleted, by_value: Mapping[str, bytes] = _NOTHING) -> InputRows:
    carried = packed(deleted.get(source.location, NO_POSITIONS), source.records)
    return InputRows(
        source.location,
        source.records,
        carried=carried,
        carried_by_value=by_value.get(source.location, NONE),
    )


def _footers(store: ByteStore, inputs: Sequence[EncodeInput]) -> list[Footer]:
    return [read_footer(store, file.location, file.size) for file in inputs]


def _spliced(task: SpliceTask, footers: Sequence[Footer]) -> SplicedFile | Refusal:
    store = task.store
    try:
        spliced = splice(store, task.inputs, task.output, task.limits, footers=footers)
    except GiveUpError as error:
        if error.reason != Reason.MALFORMED_LINEAGE:
            raise
        return Refusal(error.reason, str(error))  # found while decoding; the output was removed
    if not spliced.rows:
        store.delete(task.output)  # a file without rows is never committed: remove it now
    return spliced


def _judged(task: SpliceTask) -> list[Footer] | Refusal:
    """Return the inputs' footers, or why the inputs must not be spliced.

    Raises:
        GiveUpError: a file is damaged, or does not hold as many rows as its manifest entry says.
        RetryError: the store does not answer.
    """
    refused = _sizes_refused(task)
    if refused is not None:
        return refused
    try:
        footers = _footers(task.store, task.files.inputs)
    except GiveUpError as error:
        if error.reason not in FOREIGN_FOOTER:
            raise
        return Refusal(error.reason, str(error))  # Arrow, or Iceberg's own reader, may read it
    for source, footer in zip(task.files.inputs, footers, strict=True):
        source.check_rows(footer.num_rows)
    found = refusal(footers, task.limits, lineage=task.lineage)
    if found is not None and found.reason in DAMAGE:
        raise GiveUpError(f"{task.output} is not written: {found.sentence}", reason=found.reason)
    return found or footers


def _sizes_refused(task: SpliceTask) -> Refusal | None:
    return files_too_small([each.size for each in task.files.inputs], task.limits)


def _mixed(work: TaskInput, everything: EncodeTask, refused: Refusal | None, deleted: Deleted) -> TaskResult | None:
    """Decode only the inputs that must be decoded.

    None: that is all of them or none, or the decoded part cannot be spliced together with the others.
    """
    if work.splice is None or work.aside is None or encode_refusal(everything) is not None:
        return None
    task, store, inputs = work.splice, work.splice.store, work.splice.files.inputs
    candidates = [index for index in work.may_keep if _few_deleted(task, inputs[index], deleted)]
    if not candidates:
        return None
    kept = _worth_keeping(store, task, candidates, encoded_schema(everything))
    rest = tuple(index for index in range(len(inputs)) if index not in kept)
    without_ids = {inputs[index].first_row_id is None for index in rest}
    if not kept or not rest or (task.lineage and len(without_ids) > 1):
        return None
    part = replace(everything.files, inputs=tuple(inputs[index] for index in rest))
    encoded = encode(replace(everything, files=part, output=work.aside))
    if isinstance(encoded, Refusal):
        return None
    order = sorted((*kept, rest[0]))  # the decoded rows stand where the first of their inputs stood
    try:
        parts = {index: inputs[index] for index in kept}
        if encoded.rows:  # it holds the lineage of every row: none is inherited
            first_row_id = None if True in without_ids else 0
            parts[rest[0]] = EncodeInput(work.aside, encoded.size, encoded.rows, first_row_id=first_row_id)
        files = replace(task.files, inputs=tuple(parts[index] for index in order if index in parts))
        joined = replace(task, files=files)
        footers = _judged(joined)
        spliced = footers if isinstance(footers, Refusal) else _spliced(joined, footers)
    finally:
        if encoded.rows:
            store.delete(work.aside)
    if isinstance(spliced, Refusal):
        return None
    rows = [(_carrying(inputs[index], deleted),) if index in kept else encoded.inputs for index in order]
    placed = in_order(chain.from_iterable(rows))
    check_rows(task.output, placed, spliced.rows)
    return TaskResult(MixedFile(spliced, encoded, kept), refused, part.size, placed)


def _few_deleted(task: SpliceTask, source: EncodeInput, deleted: Deleted) -> bool:
    return len(deleted.get(source.location, NO_POSITIONS)) <= task.most_carried * source.records


def _worth_keeping(
    store: ByteStore, task: SpliceTask, candidates: Sequence[int], schema: Sequence[Struct]
) -> tuple[int, ...]:
    """The `candidates` whose own row groups are large enough, and that `encode` may have written, in this schema.

    None of them if they cannot be spliced together: what is decoded beside them would be decoded in vain.
    """
    lineage, inputs = task.lineage, task.files.inputs
    footers = dict(zip(candidates, _footers(store, [inputs[index] for index in candidates]), strict=True))
    kept = {
        index: footer
        for index, footer in footers.items()
        if footer.filled_row_groups
        and footer.created_by.startswith(ENCODED_BY)
        and refusal([footer], task.limits, lineage=lineage) is None
        and (without_lineage(footer) if lineage else footer).schema == schema
    }
    return tuple(kept) if refusal(list(kept.values()), task.limits, lineage=lineage) is None else ()


@dataclass(frozen=True)
class TaskAttempt:
    """Outcome of one output task and its duration in seconds. Errors are values: one must not fail the Spark job.

    `number`: which attempt it was, from 0; it names the file.
    """

    outcome: TaskResult | Refusal | FirnlineError
    seconds: float
    number: int = 0


RunTask = Callable[[TaskInput], TaskResult | Refusal]


def attempt_tasks(
    run: RunTask, first_attempt: int, most_attempts: int, works: Sequence[TaskInput]
) -> list[TaskAttempt]:
    """Run output tasks one after the other, in one Spark task. Runs on an executor.

    Returns the attempts of the first tasks, at least one. The others are not begun once the store has given no answer
    to `SILENCE` in a row: each may take minutes, and the slot is held.

    Spark starts the task again where it lost an executor; `first_attempt` is the number of the first such attempt.
    Attempts that fail because an executor was taken away (preemption, a drained node) do not count for Spark: there may
    be more than `most_attempts`. These write nothing: attempts of the next job have their names, or no record lists
    them. A task that is started again begins all: the attempt that was lost may still write what another job would.
    """
    context = TaskContext.get()
    attempt = context.attemptNumber() if context is not None else 0
    number = first_attempt + attempt
    if attempt >= most_attempts:
        lost = f"Spark lost executors and started a rewrite task {attempt + 1} times; it writes at most {most_attempts}"
        return [TaskAttempt(RetryError(lost, reason=Reason.TASK_LOST), 0.0, number) for _ in works]
    attempts: list[TaskAttempt] = []
    for work in works:
        attempts.append(replace(attempt_task(run, work.at_attempt(number)), number=number))
        if not attempt and len(attempts) >= SILENCE and all(map(_is_unanswered, attempts[-SILENCE:])):
            break
    return attempts


def attempt_task(run: RunTask, work: TaskInput) -> TaskAttempt:
    """Run one output task and return its outcome, errors included. Runs on an executor."""
    started = time.monotonic()
    outcome = _outcome_of(partial(run, work))
    reduce_task_overhead()
    return TaskAttempt(outcome, time.monotonic() - started)


def _is_unanswered(attempt: TaskAttempt) -> bool:
    return isinstance(attempt.outcome, RetryError) and attempt.outcome.reason is Reason.UNAVAILABLE


def attempt_search(files: InputFiles) -> FoundRows | Refusal | FirnlineError:
    """Search deleted rows and return the outcome, errors included. Runs on an executor."""
    outcome = _outcome_of(partial(search, files))
    reduce_task_overhead()
    return outcome


def attempt_count(files: InputFiles) -> int | Refusal | FirnlineError:
    """Count deleted rows and return the outcome, errors included; a refusal where another reader may read the files.
    Runs on an executor.
    """
    outcome = _outcome_of(partial(count_deleted, files))
    reduce_task_overhead()
    if isinstance(outcome, GiveUpError) and outcome.reason not in DAMAGE:
        return Refusal(outcome.reason, str(outcome))
    return outcome


Outcome = TypeVar("Outcome")


def _outcome_of(work: Callable[[], Outcome]) -> Outcome | FirnlineError:
    try:
        return work()
    except FirnlineError as error:
        if error.reason == Reason.OUTPUT_EXISTS:  # names are new in each run and attempt: this attempt ran twice
            return RetryError(f"Spark lost the task and started it again: {error}", reason=Reason.TASK_LOST)
        return error
    except MemoryError as error:
        return RetryError(f"a rewrite task ran out of memory: {error}", reason=Reason.OUT_OF_MEMORY)
    except (ConnectionError, TimeoutError) as error:
        return RetryError(f"the store does not answer a rewrite task: {type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001 - an exception would fail the output tasks of other file groups too
        return GiveUpError(f"a rewrite task failed: {type(error).__name__}: {error}", reason=Reason.UNEXPECTED)
