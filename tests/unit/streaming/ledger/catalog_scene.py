"""The tables of one catalog without a catalog: the test says what happens, and sees what is decided."""

from __future__ import annotations

from array import array
from typing import Any

from compactor.errors import RetryError
from compactor.iceberg.tables import KnownVersion, TableMissingError
from compactor.patience.holds import Holds
from compactor.reasons import Reason
from compactor.settings.current import CurrentSettings
from compactor.settings.tree import Settings
from compactor.shards import EVERYTHING, Shard
from compactor.table_names import TableName
from streaming.ledger.catalog_calls import Listing
from streaming.ledger.table_record import Action, Asked, Count, Lane, Looked, Now, Outcome
from streaming.ledger.tables import Tables

EVENT = Asked(Lane.EVENT)
SWEEP = Asked(Lane.SWEEP)
UNKNOWN = Asked(Lane.UNKNOWN)
MISSING = Looked(Outcome.MISSING, TableMissingError("no such table"))
DAMAGED = Looked(Outcome.UNREADABLE, RetryError("damage", reason=Reason.TABLE_UNREADABLE))
SILENT = Looked(Outcome.UNREADABLE, RetryError("no answer", reason=Reason.CATALOG_UNAVAILABLE))
FORBIDDEN = Looked(Outcome.UNREADABLE, RetryError("403", reason=Reason.TABLE_UNREADABLE), doubtful=True)
START = 1_000.0
PLACE = "s3://lake/t/metadata/00003-x.metadata.json"


def named(name: str, catalog: str = "lake") -> TableName:
    return TableName(catalog, ("db",), name)


def counted(*seen: int, loaded_at: float = START, place: str = "") -> Looked:
    """A look that counted; `seen`: snapshots that it found."""
    facts: Any = None  # arithmetic of the board, which nothing here asks
    count = Count(KnownVersion(place or PLACE), facts, array("q", seen), (), loaded_at, 0)
    return Looked(Outcome.COUNTED, count=count, place=place)


COUNTED = counted()


class CatalogScene:
    """`now`: of both clocks."""

    def __init__(self, shard: Shard = EVERYTHING, **sections: Any) -> None:
        sections = {"tables": {"include": ["*"]}, **sections}
        catalog = {"type": "sql", "uri": "sqlite://", "warehouse": "file:///nowhere"}
        self.settings = CurrentSettings(Settings(catalogs={"lake": catalog}, **sections))
        self.tables = Tables(self.settings, ("lake", "other"), Holds(lambda: self.now), shard)
        self.lake = self.tables.catalogs["lake"]
        self.now = START
        self.behind = False

    @property
    def moment(self) -> Now:
        return Now(self.now, self.now, self.behind)

    def ask(self, *names: str, asked: Asked = EVENT) -> None:
        for name in names:
            self.lake.ask(named(name), asked, self.moment)

    def take(self) -> tuple[str, Asked] | None:
        taken = self.lake.next_look(self.moment)
        return None if taken is None else (taken[0].name, taken[1])

    def end(self, name: str, asked: Asked, looked: Looked) -> list[Action]:
        actions = self.lake.looked(named(name), asked, looked, self.moment)
        self.lake.done(named(name), self.moment)
        return actions

    def look(self, looked: Looked = COUNTED) -> list[Action]:
        """One look, which must be due now, and how it ends."""
        taken = self.take()
        assert taken is not None
        return self.end(*taken, looked)

    def waiting(self, looked: Looked = COUNTED) -> list[str]:
        """All tables that are due now, in the order of their looks."""
        found = []
        while (taken := self.take()) is not None:
            found.append(taken[0])
            self.end(*taken, looked)
        return found

    def list(self, *names: str, unlisted: tuple[str, ...] = (), others: tuple[str, ...] = ()) -> list[Action]:
        """One listing from begin to end; `unlisted`: namespaces that it cannot list."""
        self.lake.listings.soon()
        assert self.lake.starts_listing(self.moment)
        for name in names:
            self.lake.found(named(name), self.moment)
        errors = {(each,): RetryError(f"{each} is forbidden", reason=Reason.NAMESPACE_UNREADABLE) for each in unlisted}
        listing = Listing(frozenset(map(named, names)), errors, [*map(named, others)])
        return self.lake.listing_ended(listing, self.moment)
