"""When a lease is valid, and when a standby may take it over. Pure.

No two clocks are compared. The holder counts from the moment *before* it began its last successful renewal; a standby
counts from the moment *after* it first read the document as it is now, which is later. Both use their own steady clock.
The holder stops after `VALID_SECONDS`, a standby begins after `TAKEOVER_SECONDS`. So the two never overlap, unless one
clock runs half as fast again as the other. Taking over and renewing are conditional writes of the same document: a
holder whose clock stood still (a machine that was suspended) fails at its next renewal, and renews before each commit.
"""

from __future__ import annotations

from dataclasses import dataclass

from compactor.lease.document import Lease

# A killed service is replaced within TAKEOVER_SECONDS + POLL_SECONDS and a start (10 to 20 s): below 90 s. A holder can
# miss two renewals before it must pause its commits.
VALID_SECONDS = 30.0
RENEW_SECONDS = VALID_SECONDS / 3
TAKEOVER_SECONDS = VALID_SECONDS * 1.5
POLL_SECONDS = 2.0


def is_valid(began: float, now: float) -> bool:
    """Whether the holder may act: `began` is the moment before its last successful renewal, by the same clock."""
    return 0.0 <= now - began < VALID_SECONDS


@dataclass(frozen=True)
class Watch:
    """What a standby knows of the document: its content as last read, and since when it has been the same."""

    content: bytes | None = None
    since: float = float("inf")

    def sees(self, content: bytes | None, now: float) -> Watch:
        """The document was read. `now`: after the answer, by this process' steady clock."""
        return self if content == self.content and self.since <= now else Watch(content, now)

    def may_take(self, lease: Lease | None, now: float, *, owner_dead: bool) -> bool:
        """Whether to try to take the lease. `lease`: the document; None if it cannot be read.

        `owner_dead`: the holder's process is known to be dead. False if nobody knows.
        """
        if self.content is None or owner_dead or (lease is not None and lease.released):
            return True
        return now - self.since >= TAKEOVER_SECONDS
