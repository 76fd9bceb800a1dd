"""Divide the tables of a lake among several services: which tables are this service's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b

from compactor.table_names import TableName


@dataclass(frozen=True)
class Shard:
    """The part of all tables that this service takes care of: service `number`, from 0, of `count`."""

    number: int
    count: int

    @classmethod
    def of(cls, text: str) -> Shard:
        """From `2/4`; empty: one service takes care of all tables.

        Raises:
            ValueError: it is no such text, or there is no service of this number.
        """
        found = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text or "0/1")
        if found is None or not int(found[1]) < int(found[2]):
            raise ValueError(f"{text!r} must be a number below a count of services, e.g. 0/4 to 3/4 for four services")
        return cls(int(found[1]), int(found[2]))

    def owns(self, table: TableName) -> bool:
        """Whether this service takes care of the table. Independent of process and host."""
        # Some catalogs do not distinguish capitals, and events spell a name as their writer does: one owner for all.
        return self._owns(*(part.casefold() for part in (table.catalog, *table.namespace, table.name)))

    def owns_record(self, topic: str, partition: int, offset: int) -> bool:
        """Whether this service handles a record that names no table."""
        return self._owns(topic, str(partition), str(offset))

    def _owns(self, *parts: str) -> bool:
        """Rendezvous hashing: of another count of services, no more tables change their service than must.

        The lengths keep ("a.b", "c") and ("a", "b.c") apart.
        """
        key = "".join(f"{len(part)}:{part}" for part in parts).encode()
        return self.number == max(range(self.count), key=lambda number: _weight(number, key))


def _weight(number: int, key: bytes) -> bytes:
    # Not a CRC: it is linear, so that the order of two services would depend on few bits of the key.
    return blake2b(key, digest_size=8, key=number.to_bytes(2)).digest()


EVERYTHING = Shard(0, 1)
