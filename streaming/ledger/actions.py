"""What the records of the tables decide that is done, and how listings end. Frozen values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from compactor.errors import FirnlineError, RetryError
from compactor.events import Event
from compactor.iceberg.namespaces import Namespace
from compactor.table_names import TableName
from streaming.ledger.table_record import Asked


@dataclass(frozen=True)
class Forget:
    """Drop the table from the board, since it is ignored now. Its state stays on disk."""

    table: TableName


@dataclass(frozen=True)
class Lost:
    """Drop the table from the board, since it does not exist. `with_state`: its saved counts too."""

    table: TableName
    error: FirnlineError
    keep_requests: bool
    with_state: bool


@dataclass(frozen=True)
class Stale:
    """Mark the table's debt as old, since it could not be read. `oldest_event`: as of `Asked`."""

    table: TableName
    error: FirnlineError
    oldest_event: float | None = None


Action = Forget | Lost | Stale | Event
"""An event is to be published."""


@dataclass(frozen=True)
class Told:
    """What a batch of events asks for: requests to keep, and then looks."""

    requests: Mapping[TableName, Sequence[str]]
    looks: Mapping[TableName, Asked]


@dataclass(frozen=True)
class Listing:
    """How a listing ended: with an `error`, or with all `names` of the catalog but those in `unlisted` namespaces.

    `others`: further tables that are looked at if they are not listed: of the board, and whose state is on disk.
    """

    names: frozenset[TableName] = frozenset()
    unlisted: Mapping[Namespace, RetryError] = field(default_factory=dict)
    others: Collection[TableName] = ()
    error: FirnlineError | None = None
