"""Estimate the cost of a run (bytes, requests to the store, catalog calls), and the limits of a run's cost. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from operator import add

from compactor.debt.manifest_debt import ManifestCounts

PART_BYTES = 8 * 1024 * 1024
"""Bytes of one request of a multipart upload."""
REQUESTS_PER_FILE = 2
"""The fewest requests per file: footer and data for reading, start and end for writing."""
PLAN_CALLS = 6
"""Estimated catalog calls of a plan and what leads to it: look, load for the plan, load in Java, switches."""
COMMIT_CALLS = 6
"""Estimated catalog calls of one attempt to commit: refresh, switch, check, commit, look again."""
CATALOG_CALLS = PLAN_CALLS + COMMIT_CALLS
"""Estimated catalog calls of a run with one commit."""


def requests_of(files_in: int, files_out: int, size: int) -> int:
    """Estimated requests to the store of a rewrite of `size` bytes."""
    return REQUESTS_PER_FILE * (files_in + files_out) + -(-size // PART_BYTES)


def cost_of_merge(manifests: ManifestCounts) -> Spent:
    """The estimated cost of a merge of a table's manifests."""
    requests = requests_of(manifests.manifests, 1, manifests.bytes)
    return Spent(manifests.bytes, requests, COMMIT_CALLS, commits=1)


@dataclass(frozen=True)
class Spent:
    """An estimated cost: bytes read, requests to the store, catalog calls; and the commits that came of it."""

    bytes: int = 0
    requests: int = 0
    catalog_calls: int = 0
    commits: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(*map(add, astuple(self), astuple(other)))

    def less(self, other: Spent) -> Spent:
        """The remainder of this after `other`; never below 0."""
        return Spent(*(max(0, ours - theirs) for ours, theirs in zip(astuple(self), astuple(other), strict=True)))


Charge = Callable[[Spent], None]
"""Called with each cost when it arises, also of runs that fail."""


def uncharged(_spent: Spent) -> None:
    """A charge that is not counted."""


@dataclass(frozen=True)
class Grant:
    """The limits of a run's cost; None: no limit. A run may always write one output file, convert the equality deletes
    that share data files, or merge manifests, even above the limits of bytes and requests.
    """

    bytes: int | None = None
    requests: int | None = None
    commits: int | None = None

    def covers(self, cost: Spent) -> bool:
        """Whether the bytes and requests of this cost are within the grant."""
        limited = ((self.bytes, cost.bytes), (self.requests, cost.requests))
        return all(granted is None or wanted <= granted for granted, wanted in limited)

    def less(self, spent: Spent) -> Grant:
        """The rest of the grant; never below 0."""
        pairs = ((self.bytes, spent.bytes), (self.requests, spent.requests), (self.commits, spent.commits))
        return Grant(*(None if granted is None else max(0, granted - used) for granted, used in pairs))


NO_GRANT = Grant()
"""A run without limits."""
