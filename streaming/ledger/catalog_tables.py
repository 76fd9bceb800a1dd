"""What the ledger knows of the tables of one catalog, and what follows from each thing that happens to them.

No clock, thread or call: each method is one observation (somebody asks, a thread is free, a look or a listing ended).
It changes the records and returns what is to be done. The driver (table_driver.py) makes the calls and does it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from compactor.debt.ledger import StateDamagedError
from compactor.errors import FirnlineError, RetryError
from compactor.events import CatalogAnswers, CommitUnannounced, TableLooked, TableUnreadable
from compactor.iceberg.namespaces import Namespace
from compactor.patience.backoff import LATER
from compactor.patience.holds import Holds, Key, What
from compactor.settings.current import WorkSettings
from compactor.table_names import TableName
from streaming.ledger.actions import Action, Forget, Listing, Lost, Stale
from streaming.ledger.catalog_calls import SILENT_AFTER, CatalogCalls
from streaming.ledger.look_order import LookOrder
from streaming.ledger.metadata_folders import MetadataFolders
from streaming.ledger.rhythm import BEHIND_SECONDS, due, wanted_seconds
from streaming.ledger.table_record import NO_RECORD, Asked, Lane, Later, Looked, Now, Outcome, TableRecord
from streaming.logs.events import LOG

PAUSE_SECONDS = 0.5
"""Least time between two looks at one table: a table with a hundred commits per second costs two looks per second."""
MOST_UNKNOWN = 1_000
"""Unknown names that wait at a time. Sweeps find what is dropped."""
MISSING_SECONDS = 30.0
"""How long events ask for no look at a table that does not exist, but for one at the end of that time."""
NAMES_SECONDS = 3600.0
"""How long the name of a table that does not exist is remembered, so that it is logged once."""
MOST_NAMES = 100_000
"""Names in one catalog with which those of no table are remembered for `MISSING_SECONDS` alone."""
TRY_AGAIN_SECONDS = (1.0, 5.0, 30.0)
"""After looks that did not find what an event told of: it is on another branch, rolled back, or not committed yet. So
may its table be: a writer can announce the first commit before it creates the table."""
LIST_AGAIN_SECONDS = 15.0
"""After a listing that failed."""
LISTING_SECONDS = 900.0
"""Of one listing, after which it hangs: a namespace is one call, and each call has a time limit."""
ROUND_SECONDS = 5.0
"""At most between two rounds. A round asks for the looks that are due; 10,000 tables cost it 50 ms."""
ROUNDS_PER_SWEEP = 20.0
MOST_SHOWN = 3
"""Namespaces that cannot be listed: a principal may see a few of a thousand."""


@dataclass(eq=False)
class CatalogTables:
    """One record for each name. Times are of the ticks.

    Attributes:
        watches: Whether a table is ours and not ignored.
        holds: What is not to be looked at or called yet.
        folders: Where tables keep their metadata.
        calls: Whether the catalog answers.
        order: The tables that wait for a look.
        listed: Whether a listing has ended.
        unlisted: Namespaces that the last listing could not list.
        trouble: Why the last listing failed; empty if it did not.
        listing_since: The listing that is under way; None: none is.
    """

    name: str
    settings: WorkSettings
    watches: Callable[[TableName], bool]
    holds: Holds
    folders: MetadataFolders = field(default_factory=MetadataFolders)
    calls: CatalogCalls = field(init=False)
    order: LookOrder = field(default_factory=LookOrder)
    listed: bool = False
    unlisted: Mapping[Namespace, RetryError] = field(default_factory=dict)
    trouble: str = ""
    listing_since: float | None = None
    _records: dict[TableName, TableRecord] = field(default_factory=dict)
    _spelling: dict[str, TableName] = field(default_factory=dict)  # all listed names, also ignored ones, by lower case
    _timers: list[tuple[float, int, TableName]] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)
    _listed_at: float = float("-inf")
    _list_at: float = float("-inf")
    _round_at: float | None = None
    _judged_at: float = float("-inf")

    def __post_init__(self) -> None:
        self.calls = CatalogCalls(self.name, self.holds)

    def get(self, table: TableName) -> TableRecord:
        """What is known of the table."""
        return self._records.get(table, NO_RECORD)

    @property
    def names(self) -> Iterable[TableName]:
        """All names of which something is known."""
        return self._records.keys()

    def may_have(self, table: TableName) -> bool:
        """Whether the last listing has the table, or cannot have it: none has ended, or its namespace is unlisted."""
        return self.get(table).listed or not self.listed or _is_within(table, self.unlisted)

    def spelled(self, table: TableName) -> TableName:
        """The listed name that differs from this one by capitals only; the name itself if it is listed, or none is.

        Also of an ignored table: a catalog that ignores capitals gives it under any spelling.
        """
        return table if self.get(table).listed else self._spelling.get(str(table).casefold(), table)

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
            self._wake(table, record.not_before)

    def ask_later(self, table: TableName, later: Later) -> None:
        """Somebody asks for a look at that time. Others who ask do not wait for it."""
        before = self.get(table).later
        if before is not None:
            later = Later(min(before.at, later.at), later.asked.joined(before.asked))
        self.put(table, later=later)
        self._wake(table, later.at)

    def hear(self, table: TableName, asked: Asked, now: Now) -> None:
        """An event asks for a look; one of a name that was missing a moment ago, for one more, later."""
        record = self.get(table)
        if record.known or record.missing_until <= now.ticks:
            self.ask(table, asked, now)
        elif record.later is None:
            self.ask_later(table, Later(record.missing_until, replace(asked, tries=len(TRY_AGAIN_SECONDS))))

    def _wake(self, table: TableName, at: float) -> None:
        heapq.heappush(self._timers, (at, next(self._numbers), table))

    def _ask_due(self, now: Now) -> None:
        while self._timers and self._timers[0][0] <= now.ticks:
            *_, table = heapq.heappop(self._timers)
            record = self.get(table)
            if record.looking:
                continue  # `done` wakes it again
            if record.later is not None and record.later.at <= now.ticks:
                self.put(table, later=None)
                self.ask(table, record.later.asked, now)
            elif record.wanted is not None and record.not_before <= now.ticks:
                self.order.add(table, record.wanted.lane)

    @property
    def next_at(self) -> float | None:
        """When the next look becomes due, as far as is known; None: no look waits for a time."""
        return self._timers[0][0] if self._timers else None

    # --- looks --------------------------------------------------------------------------------------------------------

    def next_look(self, now: Now) -> tuple[TableName, Asked] | None:
        """A thread is free: the next table that it looks at; None: none may be now. Then call `done`."""
        self._make_round(now)
        self._ask_due(now)
        if not self.calls.may_begin(now.ticks):
            return None
        while (table := self.order.take()) is not None:
            asked = self.get(table).wanted
            if asked is None or not self.watches(table):  # it is ignored now
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
        if not self.watches(table):  # it became ignored during the look
            self.forget(table)
            return [*actions, Forget(table)]
        record, error = self.get(table), looked.error
        if looked.doubtful and record.count is None and not self.may_have(table):
            looked = replace(looked, outcome=Outcome.MISSING)
        if error is None:
            actions += self._found(table, record, asked, looked, now)
        elif looked.outcome is Outcome.MISSING:
            actions += self._missing(table, record, error, now)
        else:
            actions += self._unreadable(table, record, asked, error, now)
        for each in asked.announced:  # its folder was this table's until the look
            if isinstance(each, str) and not self.folders.find(each):
                self.folders.search(each, record.rhythm.source, now.ticks)
        self._look_again(table, asked, looked, now)
        return [*actions, TableLooked(table=table, outcome=looked.outcome)]

    def done(self, table: TableName, now: Now) -> None:
        """The thread is free of the table; if it was asked for during the look, it is looked at again after a pause."""
        record = self.get(table)
        not_before = max(record.not_before, now.ticks + PAUSE_SECONDS)
        self.put(table, looking=False, not_before=not_before)
        if record.wanted is not None:
            self._wake(table, not_before)
        if record.later is not None:
            self._wake(table, record.later.at)

    def _found(self, table: TableName, record: TableRecord, asked: Asked, looked: Looked, now: Now) -> Iterable[Action]:
        rhythm, untold = record.rhythm, False
        if looked.commits is not None:
            swept, oldest = asked.lane is Lane.SWEEP, asked.oldest_event
            rhythm, untold = rhythm.counted(
                looked.commits, now.time, swept=swept, oldest_event=oldest, behind=now.behind
            )
        self.holds.release(What.LOOK, table)
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
        if untold:
            yield CommitUnannounced(table=table, source=rhythm.source)

    def _missing(self, table: TableName, record: TableRecord, error: FirnlineError, now: Now) -> Iterable[Action]:
        """The catalog has no such table. A proxy may say so for a moment: then its state is counted again.

        Requests cannot be found again. They wait for another look, and as long as listings have the table.
        """
        was_known = record.read or record.failures > 0
        if not was_known and record.missing_until == 0.0:
            LOG.info("events of an unknown table are not used: %s", error)
        self.folders.forget(table)
        self._reset(table, answered=True, missing_until=now.ticks + MISSING_SECONDS)
        keep_requests = was_known or self.may_have(table)
        yield Lost(table, error, keep_requests, with_state=was_known or not keep_requests)

    def _unreadable(
        self, table: TableName, record: TableRecord, asked: Asked, error: FirnlineError, now: Now
    ) -> Iterable[Action]:
        hold = self.holds.fail(Key(What.LOOK, table), str(error), LATER)
        self.put(
            table,
            answered=True,
            failures=hold.tries,
            count=None if isinstance(error, StateDamagedError) else record.count,
            wanted=asked.joined(record.wanted),
            not_before=now.ticks + hold.until - self.holds.clock(),
        )
        yield Stale(table, error, asked.oldest_event)

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

    def _call_ended(self, error: FirnlineError | None, least_failures: int = 1) -> list[Action]:
        before = self.calls.answered
        self.calls.ended(error, least_failures)
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
        self._list_at, self._round_at, self._judged_at = float("-inf"), None, float("-inf")

    def list_soon(self) -> None:
        """List the catalog now, and look at the tables that are new."""
        self._list_at = float("-inf")

    def starts_listing(self, now: Now) -> bool:
        """Whether it is time to list the catalog. If so, it counts as begun: call `found`, then `listing_ended`."""
        is_due = now.ticks >= self._list_at or (now.behind and now.ticks >= self._listed_at + BEHIND_SECONDS)
        if not is_due or self.listing_since is not None or not self.calls.may_begin(now.ticks):
            return False
        self.calls.begins(now.ticks)
        self.listing_since = self._listed_at = now.ticks
        self._list_at = float("inf")  # another one may be asked for during this
        return True

    def found(self, table: TableName, now: Now) -> None:
        """The listing that is under way has found a table."""
        self._spelling[str(table).casefold()] = table
        if self.watches(table):
            self.put(table, listed=True)
            if self.get(table).swept_at is None:
                self._sweep(table, now)

    def listing_ended(self, listing: Listing, now: Now) -> list[Action]:
        """A listing ended. Of a namespace that cannot be listed, the tables that were found before count as listed."""
        pause, error = self.settings.service.sweep_seconds, listing.error
        self._list_at = min(self._list_at, now.ticks + (min(pause, LIST_AGAIN_SECONDS) if error else pause))
        self.listing_since, self.trouble = None, str(error or "")
        actions = self._call_ended(error, SILENT_AFTER)
        if error is not None:
            return [*actions, _unreadable(TableName(self.name, (), "*"), error)]
        kept = (each for each in self._spelling.values() if _is_within(each, listing.unlisted))
        self._spelling = {str(table).casefold(): table for table in (*kept, *listing.names)}
        self._look_for_unlisted(listing, now)
        self.listed = True
        return [*actions, *self._tell_of_unlisted(listing.unlisted)]

    def _look_for_unlisted(self, listing: Listing, now: Now) -> None:
        """Look at tables that the listing has not: they were dropped, or come later."""
        for table, record in [*self._records.items()]:
            if record.listed and table not in listing.names and not _is_within(table, listing.unlisted):
                self.put(table, listed=False)
        for table in listing.others:
            if table.catalog == self.name and not self.get(table).listed and self.watches(table):
                self._sweep(table, now)

    def _tell_of_unlisted(self, unlisted: Mapping[Namespace, RetryError]) -> Iterable[Action]:
        """Publish the namespaces that can be listed no more, once. Excluded ones are nobody's trouble."""
        before, tables = self.unlisted, self.settings.tables
        self.unlisted = {key: each for key, each in unlisted.items() if not tables.excludes_namespace(self.name, key)}
        news = [each for each in self.unlisted if each not in before]
        for namespace in news[:MOST_SHOWN]:
            yield _unreadable(TableName(self.name, namespace, "*"), self.unlisted[namespace])
        if len(news) > MOST_SHOWN:
            LOG.warning("%d more namespaces of catalog %s cannot be listed", len(news) - MOST_SHOWN, self.name)

    def _make_round(self, now: Now) -> None:
        """Ask for a look at each table that is due; per sweep interval, that all are judged again."""
        service, round_at = self.settings.service, self._round_at
        pause = min(ROUND_SECONDS, service.sweep_seconds / ROUNDS_PER_SWEEP)
        is_early = self._listed_at == float("-inf") or (round_at is not None and now.ticks - round_at < pause)
        if is_early or not self.calls.answered:
            return
        self._round_at = now.ticks
        scheduled = {table: each for table, each in self._records.items() if each.scheduled}
        intervals = {
            table: wanted_seconds(each.rhythm, now.time, service.sweep_seconds, behind=now.behind)
            for table, each in scheduled.items()
        }
        asked_at = {table: each.swept_at for table, each in scheduled.items()}
        passed = 0.0 if round_at is None else now.ticks - round_at
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
        self.holds.release(What.LOOK, table)
        old = self.get(table)
        kept = TableRecord(
            listed=old.listed, swept_at=old.swept_at, wanted=old.wanted, later=old.later, looking=old.looking
        )
        self._records[table] = replace(kept, **changes)

    def forget(self, table: TableName) -> None:
        """The table is ignored now."""
        self.folders.forget(table)
        self._reset(table, listed=False, wanted=None, later=None)

    # --- what pages show ----------------------------------------------------------------------------------------------

    @property
    def counted(self) -> tuple[int, int]:
        """Listed tables that were counted since the start, and all listed ones."""
        listed = [each for each in self._records.values() if each.listed]
        return sum(each.answered for each in listed), len(listed)

    def hangs_seconds(self, now: Now) -> float:
        """How long a listing takes so far that takes longer than any should; else 0."""
        seconds = 0.0 if self.listing_since is None else now.ticks - self.listing_since
        return seconds if seconds > LISTING_SECONDS else 0.0


def _unreadable(table: TableName, error: FirnlineError) -> TableUnreadable:
    return TableUnreadable(table=table, reason=error.reason, message=str(error))


def _is_within(table: TableName, namespaces: Mapping[Namespace, object]) -> bool:
    """Whether one of the namespaces holds the table, itself or through namespaces within it."""
    return any(table.namespace[:depth] in namespaces for depth in range(1, len(table.namespace) + 1))
