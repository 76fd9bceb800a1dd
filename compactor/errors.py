"""All errors that firnline raises on purpose. The class of an error names the reaction to it.

A message says what happened, to which table, file or key, and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from compactor.reasons import Reason
from compactor.redaction import hide


class FirnlineError(Exception):
    """Base of all deliberate errors. `reason` and `reaction` are slugs, fit for metric labels.

    Messages repeat what drivers, catalogs and stores say; secrets are taken out of them (redaction.py).
    """

    reason: Reason = Reason.ERROR
    reaction: str = "give_up"

    def __init__(self, message: str, *, reason: Reason | None = None) -> None:
        super().__init__(hide(message))
        if reason is not None:
            self.reason = reason


class RetryError(FirnlineError):
    """Reaction: **retry** the same work later, with back-off (a catalog or store does not answer)."""

    reason = Reason.UNAVAILABLE
    reaction = "retry"


class ReplanError(FirnlineError):
    """Reaction: **re-plan** from the table's current state (another commit touched the rewritten files)."""

    reason = Reason.CONFLICT
    reaction = "replan"


class CommitUnknownError(FirnlineError):
    """Reaction: **settle first**: the commit may have landed. Delete nothing; look for the run id in the snapshots."""

    reason = Reason.COMMIT_STATE_UNKNOWN
    reaction = "settle"


class GiveUpError(FirnlineError):
    """Reaction: **give up** this rewrite. The table is unchanged; do not try again before its files change."""

    reason = Reason.REFUSED
    reaction = "give_up"


class StoppedError(FirnlineError):
    """Reaction: **stop quietly**: the table was switched off or the service is shutting down. Nothing was committed."""

    reason = Reason.STOPPED
    reaction = "stop"


class LaterError(FirnlineError):
    """Reaction: **look again later**: the table is left to others for now. This is not a failure.

    `seconds`: when to look again, unless the table changes before; None: after the longest back-off, whatever happens.
    """

    reason = Reason.OTHER_COMPACTOR
    reaction = "later"

    def __init__(self, message: str, *, reason: Reason | None = None, seconds: float | None = None) -> None:
        super().__init__(message, reason=reason)
        self.seconds = seconds


class InputError(FirnlineError):
    """Reaction: **fix the input** (a setting, a table name, a filter expression). Exit code 2 on the command line."""

    reason = Reason.BAD_INPUT
    reaction = "fix_input"


@contextmanager
def retried(what: str, reason: Reason, remedy: str = "") -> Iterator[None]:
    """Raise any other error in the block (of a store, catalog or decoder) as a RetryError: `what`, then the error.

    `remedy`: the end of the sentence.
    """
    try:
        yield
    except FirnlineError:
        raise
    except Exception as error:
        raise RetryError(f"{what}: {error}{remedy}", reason=reason) from error
