"""The lease document: which process works on the checkpoint. One small JSON object in its folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from compactor.lease.owner import Owner

VERSION = 1
"""Of the JSON document. A document of another version counts as one that cannot be read."""


@dataclass(frozen=True)
class Lease:
    """Who holds the lease.

    Attributes:
        token: The fencing token. Each holder's is greater than that of the holder before it.
        beat: How often this holder has renewed the lease. Others see by it that the holder is at work.
        holder: A random id of this life of the process; two lives never share it.
        owner: The process, for people, and for processes on the same machine.
        since: When this holder took the lease, in seconds since the epoch by its own clock. Only shown.
        deployment: The id of the deployment: all holders of this lease write it into their commits.
        released: Whether the holder has given the lease back.
    """

    token: int
    beat: int
    holder: str
    owner: Owner
    since: float
    deployment: str
    released: bool = False

    def renewed(self) -> Lease:
        """The next document of the same holder."""
        return replace(self, beat=self.beat + 1)

    def given_back(self) -> Lease:
        """The last document of this holder."""
        return replace(self.renewed(), released=True)

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        return f"{self.owner} is active since {since}"


def encode(lease: Lease) -> bytes:
    """The document as bytes."""
    return json.dumps({"version": VERSION, **asdict(lease)}, indent=1).encode()


def decode(content: bytes) -> Lease | None:
    """The inverse of `encode`; None for a document that is damaged or of another version."""
    try:
        tree = json.loads(content)
        if tree.pop("version") != VERSION:
            return None
        lease = Lease(**{**tree, "owner": Owner(**tree["owner"])})
        datetime.fromtimestamp(lease.since, UTC)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError):
        return None
    numbers = isinstance(lease.token, int) and isinstance(lease.beat, int)
    texts = isinstance(lease.holder, str) and isinstance(lease.deployment, str)
    return lease if numbers and texts and isinstance(lease.released, bool) else None
