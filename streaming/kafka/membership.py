"""Membership of this service in its shard group over time, and the tables that follow from it. Pure.

Two rules keep one table from being two services' at the same time.

1. A member owns nothing from `SESSION_SECONDS` after it sent the last heartbeat that the broker accepted. The broker
   removes it not earlier: it counts from the arrival of that heartbeat.
2. A member acts on a table that it gained only `SETTLE_SECONDS` after it heard of the new membership. The old owner
   heard of it at the same time, or owns nothing by rule 1: the members of a generation are fixed after the last
   heartbeat that the broker accepted in the generation before.

`SETTLE_SECONDS` is longer than `SESSION_SECONDS`, so rule 2 also holds for a member that is paused or cut off while
the group changes; and longer than `service.switch_check_seconds`, after which runs in progress notice the loss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from compactor.shards import NOBODY, Shard

# A killed service's tables move within SESSION_SECONDS + HEARTBEAT_SECONDS (the others hear of it) + SETTLE_SECONDS:
# below a minute. Longer sessions would survive longer outages of the broker, shorter ones fewer pauses of the process.
SESSION_SECONDS = 20.0
SETTLE_SECONDS = 25.0
HEARTBEAT_SECONDS = 2.0
NO_GENERATION = -1


@dataclass(frozen=True)
class Former:
    """A membership that ended at `until` (seconds of a monotonic clock). `NOBODY`: this service was no member."""

    members: tuple[str, ...]
    until: float


@dataclass(frozen=True)
class Membership:
    """What this service knows of its group. All times are seconds of one monotonic clock.

    `me`: this service's name in the group. `members`: names of all members in the last generation heard of.
    `generation`: its number, `NO_GENERATION` while this service is no member. `heard`: when the last heartbeat that
    the broker accepted was sent. `former`: memberships that ended less than `SETTLE_SECONDS` ago, oldest first.
    """

    me: str
    members: tuple[str, ...] = NOBODY
    generation: int = NO_GENERATION
    heard: float = float("-inf")
    former: tuple[Former, ...] = ()

    def joined(self, now: float) -> bool:
        """Whether this service is a member, as far as it can know."""
        return self.generation != NO_GENERATION and now < self.heard + SESSION_SECONDS

    def hears(self, sent: float) -> Membership:
        """The broker accepted a heartbeat that was sent at `sent`."""
        return replace(self, heard=max(self.heard, sent))

    def ticks(self, now: float) -> Membership:
        """Give up all tables if the broker was silent for too long; forget memberships that no longer count."""
        if self.generation != NO_GENERATION and not self.joined(now):
            return self.loses()
        former = tuple(past for past in self.former if now < past.until + SETTLE_SECONDS)
        return self if former == self.former else replace(self, former=former)

    def loses(self) -> Membership:
        """This service is no longer a member. Its tables may be others' until it has joined and settled again."""
        return replace(self, generation=NO_GENERATION)

    def joins(self, me: str, members: tuple[str, ...], generation: int, sent: float, now: float) -> Membership:
        """A new generation of the group. `sent`: when this service asked to join it.

        A service that missed a generation does not know which service got its tables in between: it settles again.
        """
        before = self.ticks(now).hears(sent)
        if (me, generation) != (before.me, before.generation + 1):
            before = before.loses()
        was = before.members if before.generation != NO_GENERATION else NOBODY
        former = before.former if was == members else (*before.former, Former(was, now))
        return replace(before, me=me, members=members, generation=generation, former=former)

    def shard(self, now: float) -> Shard:
        """The tables of this service at `now`. Correct also when nothing was called for a while."""
        if not self.joined(now):
            return Shard(self.me, self.members or (self.me,), (NOBODY,))
        counting = dict.fromkeys(past.members for past in self.former if now < past.until + SETTLE_SECONDS)
        counting.pop(self.members, None)
        return Shard(self.me, self.members, (NOBODY,) if NOBODY in counting else tuple(counting))
