"""Every error firnline raises on purpose, each class naming the reaction it asks for.

A message says what happened, to which table, file or key, and what to do next.
"""

from __future__ import annotations


class FirnlineError(Exception):
    """Base of all deliberate errors. `reason` is a short slug from a bounded set, fit for a metric label."""

    reason: str = "error"
    reaction: str = "give_up"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason


class RetryError(FirnlineError):
    """Reaction: **retry** the same work later, with back-off (a catalog or store that does not answer)."""

    reason = "unavailable"
    reaction = "retry"


class ReplanError(FirnlineError):
    """Reaction: **re-plan** from the table's present state (another commit touched what was being rewritten)."""

    reason = "conflict"
    reaction = "replan"


class CommitUnknownError(FirnlineError):
    """Reaction: **settle first**: the commit may have landed. Delete nothing; look for the run id in snapshots."""

    reason = "commit_state_unknown"
    reaction = "settle"


class GiveUpError(FirnlineError):
    """Reaction: **give up** this rewrite; the table is untouched and stays as it is until it changes."""

    reason = "refused"
    reaction = "give_up"


class StoppedError(FirnlineError):
    """Reaction: **stop quietly**: the table was switched off or the service is shutting down. Nothing was committed."""

    reason = "stopped"
    reaction = "stop"


class LaterError(FirnlineError):
    """Reaction: **look again later**: the table is another compactor's for now. Nothing is wrong."""

    reason = "other_compactor"
    reaction = "later"


class InputError(FirnlineError):
    """Reaction: **fix the input** (a setting, a table name, a filter expression). Exit code 2 on the command line."""

    reason = "bad_input"
    reaction = "fix_input"
