"""Every error firnline raises on purpose, each class naming the reaction it asks for.

A message says what happened, to which table, file or key, and what to do next.
"""

from __future__ import annotations

from compactor.reasons import Reason


class FirnlineError(Exception):
    """Base of all deliberate errors. `reason` and `reaction` are fit for metric labels."""

    reason: Reason = Reason.ERROR
    reaction: str = "give_up"

    def __init__(self, message: str, *, reason: Reason | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason


class RetryError(FirnlineError):
    """Reaction: **retry** the same work later, with back-off (a catalog or store that does not answer)."""

    reason = Reason.UNAVAILABLE
    reaction = "retry"


class ReplanError(FirnlineError):
    """Reaction: **re-plan** from the table's present state (another commit touched what was being rewritten)."""

    reason = Reason.CONFLICT
    reaction = "replan"


class CommitUnknownError(FirnlineError):
    """Reaction: **settle first**: the commit may have landed. Delete nothing; look for the run id in snapshots."""

    reason = Reason.COMMIT_STATE_UNKNOWN
    reaction = "settle"


class GiveUpError(FirnlineError):
    """Reaction: **give up** this rewrite; the table is untouched and stays as it is until it changes."""

    reason = Reason.REFUSED
    reaction = "give_up"


class StoppedError(FirnlineError):
    """Reaction: **stop quietly**: the table was switched off or the service is shutting down. Nothing was committed."""

    reason = Reason.STOPPED
    reaction = "stop"


class LaterError(FirnlineError):
    """Reaction: **look again later**: the table is another compactor's for now. Nothing is wrong."""

    reason = Reason.OTHER_COMPACTOR
    reaction = "later"


class InputError(FirnlineError):
    """Reaction: **fix the input** (a setting, a table name, a filter expression). Exit code 2 on the command line."""

    reason = Reason.BAD_INPUT
    reaction = "fix_input"
