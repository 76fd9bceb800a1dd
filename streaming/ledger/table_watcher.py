"""The table watcher: lists the catalogs, and asks for looks at tables without an event, so that all commits count.

How often a table is looked at follows from its commits (sweep_schedule.py). It also asks for looks after our own
commits. An unchanged table costs one catalog call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from compactor.errors import FirnlineError, RetryError
from compactor.events import Listener, TableUnreadable
from compactor.iceberg.namespaces import Namespace
from compactor.iceberg.tables import Catalogs
from compactor.settings.current import WorkSettings
from compactor.table_names import TableName
from streaming.ledger.look_queue import Asked, Lane, LookQueue
from streaming.ledger.lookers import Breakers
from streaming.ledger.sweep_schedule import BEHIND_SECONDS, UNKNOWN, Rhythm, due, wanted_seconds
from streaming.logs.events import LOG

SWEEP_AGAIN_SECONDS = 15.0
"""After a sweep that could not list a catalog."""
LISTING_SECONDS = 900.0
"""Of one listing, after which it hangs: a namespace is one call, and each call has a time limit."""


ROUND_SECONDS = 5.0
"""At most between two rounds. A round requests the looks that are due; 10,000 tables cost it 50 ms."""
ROUNDS_PER_SWEEP = 20.0
WAIT_SECONDS = 0.5
MOST_SHOWN = 3
"""Namespaces that cannot be listed: a principal may see a few of a thousand."""
START_WAIT_SECONDS = 0.1


@dataclass(frozen=True)
class Surroundings:
    """What a sweep asks the rest of the service.

    Attributes:
        known: Tables on the debt board; those that are not listed any more are looked at too.
        owns: Whether the table is this service's.
        may_start: Whether the stream has fixed its first offsets: only then can no commit fall between the two.
        behind: Whether the stream is behind: then commits whose events wait in the topic are found by looks.
        rhythm: What is known of the commits of a table.
        likely: Tables that may own an unknown folder of metadata, the likeliest first.
        saved: Tables whose state is on disk; a sweep looks at unlisted ones: dropped while no service ran.
    """

    known: Callable[[], Iterable[TableName]]
    owns: Callable[[TableName], bool] = lambda _table: True
    may_start: Callable[[], bool] = lambda: True
    behind: Callable[[], bool] = lambda: False
    rhythm: Callable[[TableName], Rhythm] = lambda _table: UNKNOWN
    likely: Callable[[], Sequence[TableName]] = lambda: ()
    saved: Callable[[], Iterable[TableName]] = lambda: ()


@dataclass
class _Round:
    """When looks in one catalog were requested, in seconds of the ticks. `asked_at`: by table; `judged_at`: judgements.

    `round_at`: the last round of looks. `listed_at`, `list_again_at`: the last listing and the next.
    """

    asked_at: dict[TableName, float] = field(default_factory=dict)
    judged_at: float = float("-inf")
    round_at: float | None = None
    listed_at: float = float("-inf")
    list_again_at: float = float("-inf")


@dataclass(eq=False)
class TableWatcher:
    """Sweeps each catalog in its own thread, so that one that does not answer holds up no other."""

    settings: WorkSettings
    catalogs: Catalogs
    queue: LookQueue
    breakers: Breakers
    surroundings: Surroundings
    listener: Listener
    ticks: Callable[[], float] = time.monotonic
    clock: Callable[[], float] = time.time
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _rounds: dict[str, _Round] = field(default_factory=dict, init=False)
    _listing: dict[str, float] = field(default_factory=dict, init=False)
    _so_far: dict[str, set[TableName]] = field(default_factory=dict, init=False)
    _found: dict[str, frozenset[TableName]] = field(default_factory=dict, init=False)
    _spelled: dict[str, dict[str, TableName]] = field(default_factory=dict, init=False)
    _troubles: dict[str, str] = field(default_factory=dict, init=False)
    _unlisted: dict[str, dict[Namespace, RetryError]] = field(default_factory=dict, init=False)
    _errors: dict[str, str] = field(default_factory=dict, init=False)
    _threads: list[threading.Thread] = field(default_factory=list, init=False)

    def start(self) -> None:
        """Start the threads; they sweep as soon as the stream allows it."""
        for catalog in self.catalogs.names:
            thread = threading.Thread(target=self._serve, args=(catalog,), name=f"sweep-{catalog}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop after the current namespace; a catalog that does not answer is not waited for."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=1.0)

    def look_soon(self, table: TableName) -> None:
        """Ask for a look at a table: we committed to it, or did not find it."""
        self.queue.put(table, Asked(Lane.EVENT))

    def sweep_soon(self) -> None:
        """List all catalogs and look at all tables now: other tables are ours, or events were missed."""
        for catalog in self.catalogs.names:
            self._rounds[catalog] = _Round()

    def list_soon(self) -> None:
        """List all catalogs now, and look at the tables that are new."""
        for catalog in self.catalogs.names:
            self._round(catalog).list_again_at = float("-inf")

    @property
    def found(self) -> frozenset[TableName] | None:
        """Tables of the last sweep that are ours; None before the first listing."""
        found = self._found
        return frozenset().union(*found.values()) if found else None

    def is_found(self, table: TableName) -> bool:
        """Whether the last sweep listed the table."""
        return table in self._found.get(table.catalog, ())

    def is_listed(self, table: TableName) -> bool:
        """Whether the last sweep listed the table, also if it is ignored or another service's."""
        return self.is_found(table) or self._listed_as(table) == table

    def may_have(self, table: TableName) -> bool:
        """Whether the last sweep has listed the table, or cannot have: none has ended, or its namespace is unlisted."""
        unlisted = self._unlisted.get(table.catalog, {})
        return self.is_found(table) or not self.has_listed(table.catalog) or _is_within(table, unlisted)

    def spelled(self, table: TableName) -> TableName | None:
        """The listed name that differs from this one by capitals only; None also for a listed name.

        Also of an ignored table: a catalog that ignores capitals gives it under any spelling.
        """
        listed = self._listed_as(table)
        return None if self.is_found(table) or listed == table else listed

    def has_listed(self, catalog: str) -> bool:
        """Whether a listing of the catalog has ended."""
        return catalog in self._found

    @property
    def trouble(self) -> str | None:
        """Why catalogs or namespaces could not be listed by their last sweep, or why no looks can be asked for."""
        unlisted = [str(error) for errors in [*self._unlisted.values()] for error in errors.values()]
        if len(unlisted) > MOST_SHOWN:
            unlisted[MOST_SHOWN:] = [f"and {len(unlisted) - MOST_SHOWN} more namespaces"]
        return "; ".join((*self._troubles.values(), *unlisted, *self._errors.values())) or None

    @property
    def unlisted(self) -> int:
        """The number of namespaces that their last sweep could not list."""
        return sum(map(len, [*self._unlisted.values()]))

    @property
    def listed(self) -> Mapping[str, bool]:
        """For each catalog whether its last listing succeeded; one that hangs has not. Not before the first ends."""
        failing = {*self._troubles} | {*self.hanging}
        ended = (each for each in self.catalogs.names if each in failing or self.has_listed(each))
        return {catalog: catalog not in failing for catalog in ended}

    @property
    def hanging(self) -> Mapping[str, float]:
        """Catalogs whose listing takes longer than any should, with its seconds so far."""
        now = self.ticks()
        ages = {catalog: now - since for catalog, since in [*self._listing.items()]}
        return {catalog: seconds for catalog, seconds in ages.items() if seconds > LISTING_SECONDS}

    def sweep(self, catalog: str) -> int:
        """List one catalog and ask for looks at tables that are new or due; return the number of tables that are ours.

        Rounds of looks go on during the listing: thousands of namespaces take minutes. Of a namespace that cannot be
        listed, the tables that were found before still count as listed.

        Raises:
            FirnlineError: it cannot be listed; the tables that were listed before are asked for.
        """
        listed = self._so_far[catalog] = set[TableName]()
        names: set[TableName] = set()
        unlisted: dict[Namespace, RetryError] = {}
        between = partial(self._round_between, catalog)
        try:
            for table in self.catalogs.list_tables(catalog, unlisted.__setitem__, between):
                if self._stop.is_set():
                    return len(listed)
                names.add(table)
                if self._watches(table):
                    listed.add(table)
                    if table not in self._round(catalog).asked_at:
                        self._ask(table)
        except FirnlineError:
            if listed:
                self._keep(catalog, self._found.get(catalog, frozenset()) | listed, names.union(self._named(catalog)))
            raise
        finally:
            del self._so_far[catalog]
        kept = (each for each in self._named(catalog) if _is_within(each, unlisted))
        self._keep(catalog, frozenset(listed.union(self._found_within(catalog, unlisted))), names.union(kept))
        self._report_unlisted(catalog, unlisted)
        for table in self._not_listed(catalog, {*self.surroundings.known(), *self.surroundings.saved()}):
            self._ask(table)
        self.ask_due(catalog)
        return len(self._found[catalog])

    def _found_within(self, catalog: str, namespaces: Collection[Namespace]) -> Iterator[TableName]:
        """Tables of the last listing in these namespaces, and in those within them that are ours."""
        for table in self._found.get(catalog, frozenset()) if namespaces else ():
            if self._watches(table) and _is_within(table, namespaces):
                yield table

    def _report_unlisted(self, catalog: str, unlisted: Mapping[Namespace, RetryError]) -> None:
        """Publish the namespaces that can be listed no more, once. Excluded ones are nobody's trouble."""
        before, tables = self._unlisted.get(catalog, {}), self.settings.tables
        now = {each: error for each, error in unlisted.items() if not tables.excludes_namespace(catalog, each)}
        self._unlisted = {**self._unlisted, catalog: now}
        news = [each for each in now if each not in before]
        for namespace in news[:MOST_SHOWN]:
            table, error = TableName(catalog, namespace, "*"), now[namespace]
            self.listener(TableUnreadable(table=table, reason=error.reason, message=str(error)))
        if len(news) > MOST_SHOWN:
            LOG.warning("%d more namespaces of catalog %s cannot be listed", len(news) - MOST_SHOWN, catalog)
        for namespace in before.keys() - now.keys():
            LOG.info("namespace %s is listed again, is dropped, or is excluded", ".".join((catalog, *namespace)))

    def ask_due(self, catalog: str) -> int:
        """Ask for a look at each table of the catalog that is due, and that all are judged again; return their number.

        Tables of the last listing, of the present one so far, and of the board.
        """
        this, now, service = self._round(catalog), self.ticks(), self.settings.service
        tables = self._listed_now(catalog).union(self._not_listed(catalog, self.surroundings.known()))
        behind, epoch = self.surroundings.behind(), self.clock()
        intervals = {
            table: wanted_seconds(self.surroundings.rhythm(table), epoch, service.sweep_seconds, behind=behind)
            for table in tables  # as they were filtered by the last listing: globs and hashes would cost a core
        }
        passed = 0.0 if this.round_at is None else now - this.round_at
        this.round_at = now
        likely = self.surroundings.likely()
        asked = due(intervals, this.asked_at, now, service.sweep_calls_per_second, passed, likely)
        for table in asked:
            self._ask(table)
        if now - this.judged_at >= service.sweep_seconds:
            this.judged_at = now
            for table in intervals.keys() - asked:
                self.queue.put(table, Asked(Lane.SWEEP, calls=False))
            this.asked_at = {table: at for table, at in this.asked_at.items() if table in intervals}
        return len(asked)

    def _not_listed(self, catalog: str, tables: Iterable[TableName]) -> set[TableName]:
        """Tables that no listing has: dropped, in a namespace that cannot be listed, or not listed yet."""
        found = self._listed_now(catalog)
        return {table for table in tables if table.catalog == catalog and table not in found and self._watches(table)}

    def _listed_now(self, catalog: str) -> frozenset[TableName]:
        """Tables of the last listing, and of the present one so far."""
        return self._found.get(catalog, frozenset()).union(self._so_far.get(catalog, ()))

    def _ask(self, table: TableName) -> None:
        self._round(table.catalog).asked_at[table] = self.ticks()
        self.queue.put(table, Asked(Lane.SWEEP))

    def _round(self, catalog: str) -> _Round:
        return self._rounds.setdefault(catalog, _Round())

    def _watches(self, table: TableName) -> bool:
        return not self.settings.tables.ignores(table) and self.surroundings.owns(table)

    def _listed_as(self, table: TableName) -> TableName | None:
        """The name in the last listing that is this one, or differs from it by capitals only."""
        return self._spelled.get(table.catalog, {}).get(str(table).casefold())

    def _named(self, catalog: str) -> Collection[TableName]:
        """All tables of the last listing, also ignored ones and tables of other services."""
        return self._spelled.get(catalog, {}).values()

    def _keep(self, catalog: str, found: frozenset[TableName], names: Iterable[TableName]) -> None:
        spelled = {str(table).casefold(): table for table in (*names, *found)}
        self._spelled = {**self._spelled, catalog: spelled}
        self._found = {**self._found, catalog: found}  # assign new maps: other threads read them

    def _serve(self, catalog: str) -> None:
        started = False
        while not self._stop.is_set():
            try:
                started = started or self.surroundings.may_start()
                if started:
                    self._turn(catalog)
                self._errors.pop(catalog, None)
            except Exception as failure:  # noqa: BLE001 - e.g. Spark does not answer: the thread must outlive that
                self._went_wrong(catalog, failure)
            self._stop.wait(WAIT_SECONDS if started else START_WAIT_SECONDS)

    def _turn(self, catalog: str) -> None:
        """List the catalog, or ask for the looks that are due, if it is time."""
        this = self._round(catalog)
        if self._must_list(this):
            this.listed_at = self.ticks()
            this.list_again_at = float("inf")  # `list_soon` may request another one during this
            pause = min(self.settings.service.sweep_seconds, SWEEP_AGAIN_SECONDS)  # after an unexpected error
            try:
                pause = self._swept(catalog)
            finally:
                this.list_again_at = min(this.list_again_at, self.ticks() + pause)
        else:
            self._ask_if_it_is_time(catalog)

    def _ask_if_it_is_time(self, catalog: str) -> None:
        pause = min(ROUND_SECONDS, self.settings.service.sweep_seconds / ROUNDS_PER_SWEEP)
        round_at = self._round(catalog).round_at
        if (round_at is None or self.ticks() - round_at >= pause) and self.breakers.available(catalog):
            self.ask_due(catalog)

    def _round_between(self, catalog: str) -> None:
        """A round during a listing. What fails in it, e.g. Spark, is no failure of the catalog."""
        try:
            self._ask_if_it_is_time(catalog)
            self._errors.pop(catalog, None)
        except Exception as failure:  # noqa: BLE001 - as in `_serve`
            self._went_wrong(catalog, failure)

    def _went_wrong(self, catalog: str, failure: Exception) -> None:
        """Keep an unexpected error as trouble. Log it once."""
        if self._errors.get(catalog) != str(failure):
            LOG.error("catalog %s: an unexpected error in its sweeps; they go on", catalog, exc_info=failure)
        self._errors[catalog] = str(failure)

    def _must_list(self, this: _Round) -> bool:
        now = self.ticks()
        return now >= this.list_again_at or (now >= this.listed_at + BEHIND_SECONDS and self.surroundings.behind())

    def _swept(self, catalog: str) -> float:
        """Sweep once; returns the seconds until the next listing. A failure of a client is kept as trouble."""
        pause = self.settings.service.sweep_seconds
        seconds = self.breakers.start(catalog)
        if seconds > 0:
            return min(pause, seconds)
        error: FirnlineError | None = None
        self._listing[catalog] = self.ticks()
        try:
            self.sweep(catalog)
            self._troubles.pop(catalog, None)
        except FirnlineError as failure:
            error = failure
            self._troubles[catalog] = str(failure)
            self.listener(
                TableUnreadable(table=TableName(catalog, (), "*"), reason=failure.reason, message=str(failure))
            )
        except Exception as failure:  # noqa: BLE001 - the thread must outlive every failure of a client
            LOG.warning("catalog %s could not be swept: %s", catalog, failure)
            self._troubles[catalog] = str(failure)
        finally:
            del self._listing[catalog]
        self.breakers.listed(catalog, error)
        return min(pause, SWEEP_AGAIN_SECONDS) if catalog in self._troubles else pause


def _is_within(table: TableName, namespaces: Collection[Namespace]) -> bool:
    """Whether one of the namespaces holds the table, itself or through namespaces within it."""
    return any(table.namespace[:depth] in namespaces for depth in range(1, len(table.namespace) + 1))
