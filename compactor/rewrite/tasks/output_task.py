"""One share as one Spark task: spliced where the footers allow it, else encoded. Plain values in, plain values out.

Decode once: of a share that cannot be spliced whole, files that an earlier encode has made keep their row groups; only
the others are decoded, into a file aside that is spliced behind them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from compactor.errors import FirnlineError, GiveUpError, RetryError
from compactor.reasons import Reason
from compactor.refusal import Refusal
from compactor.rewrite.encode.encode import EncodedFile, EncodeShare, encode, encode_refusal
from compactor.rewrite.parquet.footer import Footer, read_footer
from compactor.rewrite.splice.checks import SpliceLimits, files_too_small, refusal
from compactor.rewrite.splice.lineage_chunks import RowLineage
from compactor.rewrite.splice.splice import SplicedFile, SpliceInput, carries_lineage, splice
from compactor.spark.python_worker import light_between_tasks
from compactor.storage.byte_store import ByteStore
from compactor.storage.opening import byte_store_for

# What speaks against copying row groups, not against decoding them. Other refusals are about damaged or foreign files.
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
    }
)
FOREIGN_FOOTER = frozenset({Reason.FOOTER_TOO_LARGE, Reason.UNREADABLE_FOOTER})
# What another reader would read without a word, and write under sound checksums.
DAMAGE = frozenset({Reason.ROW_COUNT_MISMATCH, Reason.CORRUPT_PAGE})
OUTPUT_EXISTS = Reason.OUTPUT_EXISTS
ENCODED_BY = f"parquet-cpp-arrow version {pa.__version__}".encode()  # `created_by` of what `encode` writes


@dataclass(frozen=True)
class SpliceShare:
    """Input files in arrival order, the output's location, and how to reach the store."""

    inputs: tuple[SpliceInput, ...]
    output: str
    limits: SpliceLimits
    storage: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ShareWork:
    """What may be tried on one share, the cheapest first; None: not to be tried. Both hold the same inputs.

    `aside` is where the decoded part of a share may be put for a moment; None: a share is never taken apart.
    """

    splice: SpliceShare | None
    encode: EncodeShare | None
    aside: str | None = None

    @property
    def has_deletes(self) -> bool:
        """Whether rows have to be left out of some input."""
        return self.encode is not None and any(each.has_deletes for each in self.encode.inputs)


@dataclass(frozen=True)
class MixedFile:
    """Row groups of the `kept` inputs (their indexes) copied, the other inputs decoded into new ones."""

    spliced: SplicedFile
    encoded: EncodedFile
    kept: tuple[int, ...]


@dataclass(frozen=True)
class WrittenShare:
    """What was written, why it was not spliced (None: it was, or nobody tried), and input bytes that were decoded."""

    file: SplicedFile | EncodedFile | MixedFile
    not_spliced: Refusal | None
    decoded_bytes: int


def write_share(work: ShareWork) -> WrittenShare | Refusal:
    """Splice or encode one share, or say why neither can be done. Runs on an executor.

    Raises:
        GiveUpError: the files are not what their manifest entries say, or damaged.
        RetryError: the store does not answer.
    """
    refused: Refusal | None = None
    if work.splice is not None and not work.has_deletes:
        spliced = _spliced(work.splice)
        if isinstance(spliced, SplicedFile):
            return WrittenShare(spliced, None, 0)
        refused = spliced
    if work.encode is None or (refused is not None and refused.reason not in ENCODABLE):
        return refused or Refusal(Reason.NO_ENGINE, "Neither splice nor encode was asked for.")
    try:
        mixed = _mixed(work, work.encode, refused)
        if mixed is not None:
            return mixed
        encoded = encode(work.encode)
    except GiveUpError as error:
        if error.reason in DAMAGE or error.reason == OUTPUT_EXISTS:
            raise
        return Refusal(error.reason, str(error))  # what Arrow cannot read, Iceberg's own reader may
    if isinstance(encoded, Refusal):
        return encoded
    return WrittenShare(encoded, refused, sum(each.size for each in work.encode.inputs))


def foreseen(work: ShareWork) -> tuple[Refusal | None, Refusal | None]:
    """Why `write_share` would not splice, and why it would not encode either; nothing is written (used by `plan`).

    Raises:
        GiveUpError: a footer is damaged.
        RetryError: the store does not answer.
    """
    not_spliced = None
    if work.splice is not None and not work.has_deletes:
        judged = _judged(work.splice)
        if not isinstance(judged, Refusal):
            return None, None
        not_spliced = judged
    if work.encode is None or (not_spliced is not None and not_spliced.reason not in ENCODABLE):
        return not_spliced, not_spliced
    return not_spliced, encode_refusal(work.encode)


def _footers(store: ByteStore, inputs: Sequence[SpliceInput]) -> list[Footer]:
    return [read_footer(store, file.location, file.size) for file in inputs]


def _spliced(share: SpliceShare) -> SplicedFile | Refusal:
    footers = _judged(share)
    if isinstance(footers, Refusal):
        return footers
    store = byte_store_for(share.output, dict(share.storage))
    try:
        spliced = splice(store, share.inputs, share.output, share.limits, footers=footers)
    except GiveUpError as error:
        if error.reason != Reason.MALFORMED_LINEAGE:
            raise
        return Refusal(error.reason, str(error))  # found while decoding; nothing is left at the output
    if isinstance(spliced, SplicedFile) and not spliced.rows:
        store.delete(share.output)  # a file without rows is not committed, so that nobody would ever delete it
    return spliced


def _judged(share: SpliceShare) -> list[Footer] | Refusal:
    """The inputs' footers, or why they are not to be spliced."""
    refused = files_too_small([each.size for each in share.inputs], share.limits)
    if refused is not None:
        return refused
    try:
        footers = _footers(byte_store_for(share.output, dict(share.storage)), share.inputs)
    except GiveUpError as error:
        if error.reason not in FOREIGN_FOOTER:
            raise
        return Refusal(error.reason, str(error))  # Arrow, or Iceberg's own reader, may read it
    return refusal(footers, share.limits, lineage=carries_lineage(share.inputs)) or footers


def _mixed(work: ShareWork, everything: EncodeShare, refused: Refusal | None) -> WrittenShare | None:
    """Decode only what has to be decoded; None where that is nothing, everything, or does not fit the rest."""
    if work.splice is None or work.aside is None or encode_refusal(everything) is not None:
        return None
    share, store = work.splice, byte_store_for(work.splice.output, dict(work.splice.storage))
    kept = _worth_keeping(store, share, everything)
    rest = tuple(index for index in range(len(share.inputs)) if index not in kept)
    lineage = _lineage_of([share.inputs[index] for index in rest])
    if not kept or not rest or isinstance(lineage, Refusal):
        return None
    part = replace(everything, inputs=tuple(everything.inputs[index] for index in rest), output=work.aside)
    encoded = encode(part)
    if isinstance(encoded, Refusal):
        return None
    try:
        inputs: list[tuple[int, SpliceInput]] = [(index, share.inputs[index]) for index in kept]
        if encoded.rows:
            inputs.append((rest[0], SpliceInput(work.aside, encoded.size, lineage)))
        inputs.sort(key=lambda each: each[0])
        joined = replace(share, inputs=tuple(each for _, each in inputs))
        spliced = _spliced(joined)
    finally:
        if encoded.rows:
            store.delete(work.aside)
    if isinstance(spliced, Refusal):
        return None
    return WrittenShare(MixedFile(spliced, encoded, kept), refused, sum(each.size for each in part.inputs))


def _worth_keeping(store: ByteStore, share: SpliceShare, everything: EncodeShare) -> tuple[int, ...]:
    """Inputs without deletes whose own row groups are large enough, and that `encode` may have written."""
    lineage = carries_lineage(share.inputs)
    large = [
        index
        for index, source in enumerate(everything.inputs)
        if not source.has_deletes and source.size >= share.limits.min_row_group_bytes
    ]
    footers = _footers(store, [share.inputs[index] for index in large])
    return tuple(
        index
        for index, footer in zip(large, footers, strict=True)
        if footer.filled_row_groups
        and footer.created_by.startswith(ENCODED_BY)
        and refusal([footer], share.limits, lineage=lineage) is None
    )


def _lineage_of(inputs: Sequence[SpliceInput]) -> RowLineage | Refusal | None:
    """What the decoded part inherits: nothing, since `encode` writes every row's lineage, if its files have any."""
    lineages = [each.lineage for each in inputs if each.lineage is not None]
    if not lineages:
        return None
    without_ids = [each.first_row_id is None for each in lineages]
    if any(without_ids) and not all(without_ids):
        return Refusal(Reason.ROW_LINEAGE, "Some files have row ids, some have none.")
    return lineages[0] if without_ids[0] else RowLineage(0, 0)


@dataclass(frozen=True)
class ShareAttempt:
    """What came of one share, and the seconds it took. An error is a value: it must not fail the job's other shares."""

    outcome: WrittenShare | Refusal | FirnlineError
    seconds: float


def attempt_share(run: Callable[[ShareWork], WrittenShare | Refusal], work: ShareWork) -> ShareAttempt:
    """Run one share, whatever becomes of it. Runs on an executor."""
    started = time.monotonic()
    try:
        outcome: WrittenShare | Refusal | FirnlineError = run(work)
    except FirnlineError as error:
        outcome = error
        if error.reason == OUTPUT_EXISTS:  # names are new for each run: an attempt that was taken for lost has written
            outcome = RetryError(f"the task was lost and started again: {error}", reason=Reason.TASK_LOST)
    except MemoryError as error:
        outcome = RetryError(f"a rewrite task ran out of memory: {error}", reason=Reason.OUT_OF_MEMORY)
    except Exception as error:  # noqa: BLE001 - raised here it would fail the shares of other groups too
        outcome = GiveUpError(f"a rewrite task failed: {type(error).__name__}: {error}", reason=Reason.UNEXPECTED)
    light_between_tasks()
    return ShareAttempt(outcome, time.monotonic() - started)
