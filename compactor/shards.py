"""Divide the tables of a lake among several services: which tables are this service's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b

from compactor.table_names import TableName

NOBODY: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shard:
    """The part of all tables that this service takes care of.

    `me`: the name of this service. `members`: the names of all services, as last reported by the group. `settling`:
    former memberships that still count, because a service that lost a table may not have let go of it. A table is ours
    only if `members` and each of `settling` give it to us. `NOBODY` in `settling` means: we own no table.
    """

    me: str
    members: tuple[str, ...]
    settling: tuple[tuple[str, ...], ...] = ()

    def owns(self, table: TableName) -> bool:
        """Whether this service takes care of the table. Independent of process, host and order of the members."""
        memberships = (self.members, *self.settling)
        if any(self.me not in members for members in memberships):
            return False
        # Some catalogs do not distinguish capitals, and events spell a name as their writer does: one owner for all.
        key = _key(*(part.casefold() for part in (table.catalog, *table.namespace, table.name)))
        return all(owner(members, key) == self.me for members in memberships)

    def owns_record(self, topic: str, partition: int, offset: int) -> bool:
        """Whether this service handles a record that names no table.

        A record passes each service once and cannot wait, so `settling` does not count: between two memberships a
        record may be handled twice, but is not lost while the services agree on the members.
        """
        return owner(self.members, _key(topic, str(partition), str(offset))) == self.me

    @property
    def lasting(self) -> Shard:
        """The shard without its former memberships: for events that pass each service once and cannot wait.

        Before this service has joined, it is everything: nobody knows yet whose the tables are.
        """
        return replace(self, settling=())

    @property
    def owns_nothing(self) -> bool:
        """Whether no table at all is ours: not a member, or not yet for the settle time."""
        return any(self.me not in members for members in (self.members, *self.settling))

    @property
    def owns_everything(self) -> bool:
        """Whether all tables are ours: this service is alone."""
        return all(members == (self.me,) for members in (self.members, *self.settling))


EVERYTHING = Shard("", ("",))


def owner(members: Iterable[str], key: bytes) -> str | None:
    """The member with the highest weight for `key` (rendezvous hashing), or None without members.

    A member that joins takes its share evenly from all others; the share of one that leaves goes evenly to the others;
    no other key moves.
    """
    return max(members, key=lambda member: (_weight(member, key), member), default=None)


def _weight(member: str, key: bytes) -> bytes:
    # Not a CRC: it is linear, so that the order of two members would depend on few bits of the key.
    return blake2b(key, digest_size=8, key=blake2b(member.encode(), digest_size=16).digest()).digest()


def _key(*parts: str) -> bytes:
    """One text for several parts. The lengths keep ("a.b", "c") and ("a", "b.c") apart."""
    return "".join(f"{len(part)}:{part}" for part in parts).encode()
