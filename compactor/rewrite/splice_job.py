"""One splice share as one Spark task: plain values in, plain values out, so that a worker imports little."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from compactor.errors import FirnlineError
from compactor.rewrite.byte_ranges import byte_store_for
from compactor.rewrite.parquet_footer import read_footer
from compactor.rewrite.refusal import Refusal
from compactor.rewrite.splice import SplicedFile, SpliceInput, SpliceLimits, refusal, splice


@dataclass(frozen=True)
class SpliceShare:
    """Input files in arrival order, the output's location, and how to reach the store."""

    inputs: tuple[SpliceInput, ...]
    output: str
    limits: SpliceLimits
    storage: tuple[tuple[str, str], ...]


def run_splice_share(share: SpliceShare) -> SplicedFile | Refusal:
    """Read the footers, refuse with a reason or write the output. Runs on an executor."""
    store = byte_store_for(share.output, dict(share.storage))
    footers = [read_footer(store, file.location, file.size) for file in share.inputs]
    refused = refusal(footers, share.limits)
    if refused is not None:
        return refused
    return splice(store, share.inputs, share.output, share.limits, footers=footers)


@dataclass(frozen=True)
class SpliceAttempt:
    """What came of one share, and the seconds it took. An error is a value: it must not fail the job's other shares."""

    outcome: SplicedFile | Refusal | FirnlineError
    seconds: float


def attempt_splice(run: Callable[[SpliceShare], SplicedFile | Refusal], share: SpliceShare) -> SpliceAttempt:
    """Run one share, whatever becomes of it. Runs on an executor."""
    started = time.monotonic()
    try:
        outcome: SplicedFile | Refusal | FirnlineError = run(share)
    except FirnlineError as error:
        outcome = error
    return SpliceAttempt(outcome, time.monotonic() - started)


def refusal_of(share: SpliceShare) -> Refusal | None:
    """What `run_splice_share` would refuse for, without writing (used by `plan`)."""
    store = byte_store_for(share.output, dict(share.storage))
    return refusal([read_footer(store, file.location, file.size) for file in share.inputs], share.limits)
