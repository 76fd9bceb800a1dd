"""What the ledger knows of the tables of one catalog, and what follows from each thing that happens to them.

No clock, thread or call: each method is one observation (somebody asks, a thread is free, a look or a listing ended).
It changes the records and returns what is to be done. The driver (table_driver.py) makes the calls and does it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from compactor.debt.ledger import StateDamagedError
from compactor.errors import FirnlineError
from compactor.events import CatalogAnswers, CommitUnannounced, TableLooked
from compactor.iceberg.tables import OtherNameError
from compactor.patience.backoff import LATER
from compactor.patience.holds import Holds, Key, What
from compactor.settings.current import WorkSettings
from compactor.shards import EVERYTHING, Shard
from compactor.table_names import TableName
from streaming.ledger.catalog_calls import NEVER, CatalogCalls, Listing, Listings, is_within
from streaming.ledger.look_order import LookOrder
from streaming.ledger.metadata_folders import MetadataFolders
from streaming.ledger.rhythm import due, wanted_seconds
from streaming.ledger.table_record import (
    NO_RECORD,
    Action,
    Asked,
    Forget,
    Lane,
    Later,
    Looked,
    Lost,
    Now,
    Outcome,
    Stale,
    TableRecord,
)
from streaming.logs.events import LOG

PAUSE_SECONDS = 0.5
"""Least time between two looks at one table: a table with a hundred commits per second costs two looks per second."""
MOST_UNKNOWN = 1_000
"""Unknown names that wait at a time. Sweeps find what is dropped."""
NAMES_SECONDS = 3600.0
"""How long the name of a table that does not exist is remembered, so that it is logged once."""
MOST_NAMES = 100_000
"""Names in one catalog from which on those of no table are forgotten at once."""
TRY_AGAIN_SECONDS = (1.0, 5.0, 30.0)
"""After looks that did not find what an event told of: it is on another branch, rolled back, or not committed yet. So
may its table be: a writer can announce the first commit before it creates the table. For the last of these times,
events of a table that does not exist ask for no look, but for one at the end."""
ROUND_SECONDS = 5.0
"""At most between two rounds. A round asks for the looks that are due; 10,000 tables cost it 50 ms."""
ROUNDS_PER_SWEEP = 20.0


@dataclass(frozen=True)
class Scope:
    """The tables that are this service's."""

    settings: WorkSettings
    shard: Shard = EVERYTHING

    def has(self, table: TableName) -> bool:
        """Whether the table is ours and not ignored."""
        return not self.settings.tables.ignores(table) and self.shard.owns(table)


class CatalogTables:
    """One record for each name. Times are of the ticks.

    Attributes:
        scope: Which tables are ours.
        folders: Where tables keep their metadata.
        calls: Whether the catalog answers.
        listings: The catalog's listings.
        order: The tables that wait for a look.
    """

    def __init__(self, name: str, scope: Scope, holds: Holds, folders: MetadataFolders) -> None:
        self.name = name
        self.scope = scope
        self.folders = folders
        self.calls = CatalogCalls(name, holds)
        self.listings = Listings(name, scope.settings)
        self.order = LookOrder()
        self._records: dict[TableName, TableRecord] = {}
        self._round_at = self._judged_at = NEVER

    def get(self, table: TableName) -> TableRecord:
        """What is known of the table."""
        return self._records.get(table, NO_RECORD)

    @property
    def names(self) -> Iterable[TableName]:
        """All names of which something is known."""
        return self._records.keys()

    def may_have(self, table: TableName) -> bool:
        """Whether the last listing has the table, or cannot have it: none has ended, or its namespace is unlisted."""
        return self.get(table).listed or self.listings.may_have(table)

    def spelled(self, table: TableName) -> TableName:
        """The listed name that differs from this one by capitals only; the name itself if it is listed, or none is."""
        return table if self.get(table).listed else self.listings.spelled(table)

    # --- who asks -----------------------------------------------------------------------------------------------------

    def ask(self, table: TableName, asked: Asked, now: Now) -> None:
        """Somebody asks for a look at the table. All who ask while it waits are answered by one look."""
        record = self.get(table)
        wanted = asked.joined(record.wanted)
        is_full = wanted.lane is Lane.UNKNOWN and self.order.waiting(Lane.UNKNOWN) >= MOST_UNKNOWN
        if is_full and record.wanted is None and not (record.looking or wanted.requested):
            return
        self.put(table, wanted=wanted)
        if record.looking:
            return  # `done` wakes it
        if record.not_before <= now.ticks:
            self.order.add(table, wanted.lane)
        elif record.wanted is None:
            self.order.wake(table, record.not_before)

    def ask_later(self, table: TableName, later: Later) -> None:
        """Somebody asks for a look at that time. Others who ask do not wait for it."""
        before = self.get(table).later
        if before is not None:
            later = Later(min(before.at, later.at), later.asked.joined(before.asked))
        self.put(table, later=later)
        self.order.wake(table, later.at)

    def hear(self, table: TableName, asked: Asked, now: Now) -> None:
        """An event asks for a look; one of a name that was missing a moment ago, for one more, later."""
        record = self.get(table)
        if record.known or record.missing_until <= now.ticks:
            self.ask(table, asked, now)
        elif record.later is None:
            self.ask_later(table, Later(record.missing_until, replace(asked, tries=len(TRY_AGAIN_SECONDS))))

    def _ask_due(self, now: Now) -> None:
        for table in self.order.due(now.ticks):
            record = self.get(table)
            if record.looking:
                continue  # `done` wakes it again
            if record.later is not None and record.later.at <= now.ticks:
                self.put(table, later=None)
                self.ask(table, record.later.asked, now)
            elif record.wanted is not None and record.not_before <= now.ticks:
                self.order.add(table, record.wanted.lane)

    # --- looks --------------------------------------------------------------------------------------------------------

    def next_look(self, now: Now) -> tuple[TableName, Asked] | None:
        """A thread is free: the next table that it looks at; None: none may be now. Then call `done`."""
        self._make_round(now)
        self._ask_due(now)
        if not self.calls.may_begin(now.ticks):
            return None
        while (table := self.order.take()) is not None:
            asked = self.get(table).wanted
            if asked is None or not self.scope.has(table):  # it is ignored now
                self.forget(table)
                continue
            self.put(table, wanted=None, looking=True)
            if asked.calls:
                self.calls.begins(now.ticks)
            return table, asked
        return None

    def looked(self, table: TableName, asked: Asked, looked: Looked, now: Now) -> list[Action]:
        """A look ended."""
        was_called = self.spelled(table) == table
        actions = self._call_ended(looked.error) if was_called else []
        if not self.scope.has(table):  # it became ignored during the look
            self.forget(table)
            return [*actions, Forget(table)]
        record, error = self.get(table), looked.error
        if looked.doubtful and record.count is None and not self.may_have(table):
            looked = replace(looked, outcome=Outcome.MISSING)
        if error is None:
            actions += self._found(table, record, asked, looked, now)
        elif looked.outcome is Outcome.MISSING:
            actions.append(self._missing(table, record, error, now))
        else:
            actions.append(self._unreadable(table, record, asked, error, now))
        for each in asked.announced:  # its folder was this table's until the look
            if isinstance(each, str) and not self.folders.find(each):
                self.folders.search(each, now.ticks)
        self._look_again(table, asked, looked, now)
        return [*actions, TableLooked(table=table, outcome=looked.outcome)]

    def done(self, table: TableName, now: Now) -> None:
        """The thread is free of the table; if it was asked for during the look, it is looked at again after a pause."""
        record = self.get(table)
        not_before = max(record.not_before, now.ticks + PAUSE_SECONDS)
        self.put(table, looking=False, not_before=not_before)
        if record.wanted is not None:
            self.order.wake(table, not_before)
        if record.later is not None:
            self.order.wake(table, record.later.at)

    def _found(self, table: TableName, record: TableRecord, asked: Asked, looked: Looked, now: Now) -> list[Action]:
        rhythm, untold = record.rhythm, False
        if looked.commits is not None:
            swept = asked.lane is Lane.SWEEP
            rhythm, untold = rhythm.counted(
                looked.commits, now.time, swept=swept, oldest_event=asked.oldest_event, behind=now.behind
            )
        self.calls.holds.release(What.LOOK, table)
        if looked.place:
            self.folders.put(table, looked.place)
        self.put(
            table,
            read=True,
            answered=record.answered or looked.outcome is not Outcome.COUNTING,
            count=looked.count,
            rhythm=rhythm,
            failures=0,
            missing_until=0.0,
            wanted=asked.joined(record.wanted) if looked.more else record.wanted,
        )
        return [CommitUnannounced(table=table, source=rhythm.source)] if untold else []

    def _missing(self, table: TableName, record: TableRecord, error: FirnlineError, now: Now) -> Lost:
        """The catalog has no such table. A proxy may say so for a moment: then its state is counted again.

        Requests cannot be found again. They wait for another look, and as long as listings have the table. Those of
        another spelling of a table go to the table.
        """
        was_known = record.read or record.failures > 0
        called = error.called if isinstance(error, OtherNameError) and self.scope.has(error.called) else None
        if called is not None:
            self.ask(called, Asked(Lane.EVENT), now)
        elif not was_known and record.missing_until == 0.0:
            LOG.info("events of an unknown table are not used: %s", error)
        self.folders.forget(table)
        self._reset(table, answered=True, missing_until=now.ticks + TRY_AGAIN_SECONDS[-1])
        keep_requests = called is None and (was_known or self.may_have(table))
        return Lost(table, error, keep_requests, with_state=was_known or not keep_requests, called=called)

    def _unreadable(self, table: TableName, record: TableRecord, asked: Asked, error: FirnlineError, now: Now) -> Stale:
        holds = self.calls.holds
        hold = holds.fail(Key(What.LOOK, table), str(error), LATER)
        self.put(
            table,
            answered=True,
            failures=hold.tries,
            count=None if isinstance(error, StateDamagedError) else record.count,
            wanted=asked.joined(record.wanted),
            not_before=now.ticks + hold.until - holds.clock(),
        )
        return Stale(table, error, asked.oldest_event)

    def _look_again(self, table: TableName, asked: Asked, looked: Looked, now: Now) -> None:
        """Look again later if what was announced is not there: an event can come shortly before its commit."""
        missing, waits = frozenset[int | str](), False
        if looked.outcome is Outcome.MISSING:
            missing, waits = asked.announced, asked.oldest_event is not None
        elif looked.count is not None:
            missing = looked.count.without(asked.announced)
        if (missing or waits) and asked.tries < len(TRY_AGAIN_SECONDS):
            again = replace(asked, announced=missing, tries=asked.tries + 1)
            self.ask_later(table, Later(now.ticks + TRY_AGAIN_SECONDS[asked.tries], again))

    def _call_ended(self, error: FirnlineError | None) -> list[Action]:
        before = self.calls.answered
        self.calls.ended(error)
        answered = self.calls.answered
        if before is answered:
            return []
        if answered:
            LOG.info("catalog %s answers again", self.name)
        else:
            LOG.warning("catalog %s does not answer; one table at a time tries it: %s", self.name, error)
        return [CatalogAnswers(catalog=self.name, available=answered, message="" if answered else str(error))]

    # --- listings and rounds ------------------------------------------------------------------------------------------

    def sweep_soon(self) -> None:
        """List the catalog and look at all tables now: other tables are ours, or events were missed."""
        self._records = {table: replace(each, swept_at=None) for table, each in self._records.items()}
        self.listings.soon()
        self._round_at = self._judged_at = NEVER

    def starts_listing(self, now: Now) -> bool:
        """Whether it is time to list the catalog. If so, it counts as begun: call `found`, then `listing_ended`."""
        if not self.listings.is_due(now) or not self.calls.may_begin(now.ticks):
            return False
        self.listings.begins(now)
        return True

    def found(self, table: TableName, now: Now) -> None:
        """The listing that is under way has found a table."""
        self.listings.found(table)
        if self.scope.has(table):
            self.put(table, listed=True)
            if self.get(table).swept_at is None:
                self._sweep(table, now)

    def listing_ended(self, listing: Listing, now: Now) -> list[Action]:
        """A listing ended. Look at tables that it has not: they were dropped, come later, or could not be listed.

        A failure says little of the catalog: it may load the tables that it does not list.
        """
        actions = [*(() if listing.error else self._call_ended(None)), *self.listings.ends(listing, now)]
        for table, record in [*self._records.items()] if listing.error is None else ():
            if record.listed and table not in listing.names and not is_within(table, listing.unlisted):
                self.put(table, listed=False)
        for table in listing.others:
            record = self.get(table)
            is_due = record.swept_at is None or listing.error is None
            if table.catalog == self.name and not record.listed and is_due and self.scope.has(table):
                self._sweep(table, now)
        return actions

    def _make_round(self, now: Now) -> None:
        """Ask for a look at each table that is due; per sweep interval, that all are judged again."""
        service, passed = self.scope.settings.service, now.ticks - self._round_at
        pause = min(ROUND_SECONDS, service.sweep_seconds / ROUNDS_PER_SWEEP)
        if self.listings.began_at == NEVER or passed < pause or not self.calls.answered:
            return
        passed = 0.0 if self._round_at == NEVER else passed
        self._round_at = now.ticks
        scheduled = {table: each for table, each in self._records.items() if each.scheduled}
        intervals = {
            table: wanted_seconds(each.rhythm, now.time, service.sweep_seconds, behind=now.behind)
            for table, each in scheduled.items()
        }
        asked_at = {table: each.swept_at for table, each in scheduled.items()}
        asked = due(intervals, asked_at, now.ticks, service.sweep_calls_per_second, passed)
        for table in asked:
            self._sweep(table, now)
        if now.ticks - self._judged_at >= service.sweep_seconds:
            self._judged_at = now.ticks
            for table in scheduled.keys() - asked:
                self.ask(table, Asked(Lane.SWEEP, calls=False), now)
        idle_since = now.ticks - (NAMES_SECONDS if len(self._records) < MOST_NAMES else 0.0)
        self._records = {table: each for table, each in self._records.items() if not each.idle(idle_since)}

    def _sweep(self, table: TableName, now: Now) -> None:
        self.put(table, swept_at=now.ticks)
        self.ask(table, Asked(Lane.SWEEP), now)

    # --- records ------------------------------------------------------------------------------------------------------

    def put(self, table: TableName, **changes: Any) -> None:
        """Change the table's record."""
        self._records[table] = replace(self.get(table), **changes)

    def _reset(self, table: TableName, **changes: Any) -> None:
        """Keep of the record who has listed it and who asks for it alone."""
        self.calls.holds.release(What.LOOK, table)
        old = self.get(table)
        kept = TableRecord(
            listed=old.listed, swept_at=old.swept_at, wanted=old.wanted, later=old.later, looking=old.looking
        )
        self._records[table] = replace(kept, **changes)

    def forget(self, table: TableName) -> None:
        """The table is ignored now."""
        self.folders.forget(table)
        self._reset(table, listed=False, wanted=None, later=None)

    @property
    def counted(self) -> tuple[int, int]:
        """Listed tables that were counted since the start, and all listed ones."""
        listed = [each for each in self._records.values() if each.listed]
        return sum(each.answered for each in listed), len(listed)
