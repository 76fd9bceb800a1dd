"""The right to commit: which deployment commits, and a check right before each commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compactor.errors import StoppedError


@dataclass(frozen=True)
class CommitRight:
    """The default is that of a process without a lease (`compact`), which may always commit.

    Attributes:
        deployment: The id that is written into each commit; empty: none.
        confirm: Called right before each commit and each deletion of files. Raises StoppedError if another process has
            taken over, RetryError if that cannot be found out now.
        lost: Why this process may never commit again; None while it may.
    """

    deployment: str = ""
    confirm: Callable[[], None] = lambda: None
    lost: Callable[[], StoppedError | None] = lambda: None


UNLIMITED = CommitRight()
