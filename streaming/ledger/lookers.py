"""Threads that look at the tables of the look queue: a few per catalog, and a circuit breaker per catalog.

A catalog that does not answer holds up its own threads only. After failures of several tables in a row, one table at a
time tries whether it answers again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from compactor.errors import FirnlineError, RetryError
from compactor.events import CatalogAnswers, Listener
from compactor.patience.breaker import DEFAULT_FAILURES, Breaker
from compactor.reasons import Reason
from compactor.table_names import TableName
from streaming.ledger.look_queue import Asked, LookQueue
from streaming.ledger.looker import Looked, Looker, Outcome
from streaming.logs.events import LOG

WAIT_SECONDS = 1.0
LOOK_SECONDS = 600.0
"""After which a look hangs: clients of catalogs and stores give up after a minute, and one look reads a limited number
of manifests."""
TRY_AGAIN_SECONDS = (1.0, 5.0, 30.0)
"""After looks that did not find what an event told of: it is on another branch, rolled back, or not committed yet. So
may its table be: a writer can announce the first commit before it creates the table."""
MOST_HANGING = 8
"""Threads of a catalog that hang and were replaced. With more, the catalog gets no further threads."""


class Breakers:
    """The circuit breaker of each catalog. Thread-safe."""

    def __init__(
        self, catalogs: Sequence[str], listener: Listener, ticks: Callable[[], float] = time.monotonic
    ) -> None:
        self._listener = listener
        self._ticks = ticks
        self._lock = threading.Lock()
        self._breakers = {name: Breaker() for name in catalogs}

    def start(self, catalog: str) -> float:
        """0 if a call may go now, which then counts as started; else the seconds to wait."""
        now = self._ticks()
        with self._lock:
            breaker = self._breakers[catalog]
            if not breaker.allows(now):
                return breaker.seconds_to_wait(now)
            self._breakers[catalog] = breaker.started(now)
            return 0.0

    def ended(self, catalog: str, name: str, error: FirnlineError | None) -> None:
        """A look at table `name` ended. Publishes a change of the catalog's state."""
        self._ended(catalog, (name,), error)

    def listed(self, catalog: str, error: FirnlineError | None) -> None:
        """A listing of the catalog ended. Its failure says more than that of one table: it opens the breaker."""
        self._ended(catalog, tuple(f"listing {number}" for number in range(DEFAULT_FAILURES)), error)

    def publish(self) -> None:
        """Publish the state of each catalog, so that its metric exists before anything happens."""
        for catalog in self._breakers:
            self._listener(CatalogAnswers(catalog=catalog, available=self.available(catalog)))

    def _ended(self, catalog: str, names: Sequence[str], error: FirnlineError | None) -> None:
        with self._lock:
            before = after = self._breakers[catalog]
            if error is not None and error.reason is Reason.CATALOG_UNAVAILABLE:
                for name in names:
                    after = after.failed(name, self._ticks())
            else:
                after = after.succeeded()
            self._breakers[catalog] = after
        if bool(before.opened) == bool(after.opened):
            return
        if after.opened:
            LOG.warning("catalog %s does not answer; one table at a time tries it: %s", catalog, error)
        else:
            LOG.info("catalog %s answers again", catalog)
        self._listener(CatalogAnswers(catalog=catalog, available=not after.opened, message=str(error or "")))

    def available(self, catalog: str) -> bool:
        """Whether the catalog answered last."""
        with self._lock:
            found = self._breakers.get(catalog)
        return found is None or not found.opened

    @property
    def silent(self) -> tuple[str, ...]:
        """Catalogs that do not answer."""
        with self._lock:
            return tuple(name for name, breaker in self._breakers.items() if breaker.opened)


@dataclass(eq=False)
class Lookers:
    """`per_catalog` threads for each catalog take tables from the queue and look at them."""

    catalogs: Sequence[str]
    queue: LookQueue
    looker: Looker
    breakers: Breakers
    per_catalog: int
    wanted: Callable[[TableName], bool] = lambda _table: True
    ticks: Callable[[], float] = time.monotonic
    _busy: dict[str, tuple[TableName, float]] = field(default_factory=dict, init=False)
    _hanging: dict[str, TableName] = field(default_factory=dict, init=False)
    _replaced: set[str] = field(default_factory=set, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _threads: list[threading.Thread] = field(default_factory=list, init=False)

    def start(self) -> None:
        for catalog in self.catalogs:
            for _ in range(self.per_catalog):
                self._start_thread(catalog)

    def stop(self, seconds: float) -> None:
        """End the threads after their current table; wait at most `seconds` for all of them."""
        self._stop.set()
        self.queue.close()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            if thread.name not in self._hanging:
                thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def hanging(self) -> tuple[TableName, ...]:
        """Tables whose looks hang; other threads have taken over their work, as far as `MOST_HANGING` allows."""
        return tuple(sorted(self._hanging.values()))

    def check(self) -> None:
        """Replace threads whose look hangs. The table is stale until its look ends after all."""
        now = self.ticks()
        for name, (table, since) in [*self._busy.items()]:
            if now - since <= LOOK_SECONDS or name in self._replaced:
                continue
            with self._lock:
                if self._busy.get(name) != (table, since):  # its look has just ended
                    continue
                is_new = name not in self._hanging
                self._hanging[name] = table
                replaces = sum(self._hanging[each].catalog == table.catalog for each in self._replaced) < MOST_HANGING
                if replaces:
                    self._replaced.add(name)
            if is_new:
                error = RetryError(
                    f"the look at {table} takes more than {LOOK_SECONDS / 60:.0f} min: its catalog or store does not "
                    "answer; restart firnline if it never does",
                    reason=Reason.LOOK_HANGS,
                )
                LOG.error("%s", error)
                self.looker.hangs(table, error)
            if replaces:
                self._start_thread(table.catalog)

    def _start_thread(self, catalog: str) -> None:
        name = f"look-{catalog}-{len(self._threads)}"
        thread = threading.Thread(target=self._serve, args=(catalog, name), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self, catalog: str, name: str) -> None:
        while not self._stop.is_set():
            taken = self.queue.take(catalog, WAIT_SECONDS)
            if taken is None:
                continue
            table, asked = taken
            needs_look = False
            with _outlived(table):
                needs_look = self._needs_look(table, asked)
            if not needs_look:
                self.queue.done(table)
                continue
            seconds = self.breakers.start(catalog)
            if seconds > 0:
                self.queue.give_back(table, asked)
                self._stop.wait(min(seconds, WAIT_SECONDS))
            else:
                self._busy[name] = (table, self.ticks())
                self._look(table, asked)
                if self._has_ended(name):
                    return

    def _needs_look(self, table: TableName, asked: Asked) -> bool:
        """Whether a catalog call is needed: not for a table of another service, nor to judge known counts again."""
        return self.wanted(table) and (asked.calls or not self.looker.judge(table))

    def _has_ended(self, name: str) -> bool:
        """A look of this thread ended; returns whether the thread ends too, because another one has replaced it."""
        with self._lock:
            del self._busy[name]
            self._hanging.pop(name, None)
            replaced = name in self._replaced
            self._replaced.discard(name)
            return replaced

    def _look(self, table: TableName, asked: Asked) -> None:
        looked = None
        with _outlived(table):
            looked = self.looker.look(table, asked)
        with _outlived(table):
            if not self.wanted(table):  # it became ignored during the look
                self.looker.forget(table)
        with _outlived(table):
            self.breakers.ended(table.catalog, str(table), looked.error if looked is not None else None)
        self.queue.done(table)
        if looked is not None and looked.again_after is not None:
            self.queue.put(table, asked, after_seconds=looked.again_after)
        elif looked is not None:
            with _outlived(table):
                self._look_again(table, asked, looked)

    def _look_again(self, table: TableName, asked: Asked, looked: Looked) -> None:
        """Look again later if what was announced is not there: an event can come shortly before its commit."""
        if looked.outcome is Outcome.MISSING:
            missing, waits = asked.announced, asked.oldest_event is not None
        else:
            missing, waits = self.looker.not_found(table, asked.announced), False
        if (missing or waits) and asked.tries < len(TRY_AGAIN_SECONDS):
            again = replace(asked, announced=missing, tries=asked.tries + 1)
            self.queue.put_later(table, again, TRY_AGAIN_SECONDS[asked.tries])


@contextmanager
def _outlived(table: TableName) -> Iterator[None]:
    """Log an unexpected error and go on: a thread serves many tables, and must outlive each of them."""
    try:
        yield
    except Exception:  # noqa: BLE001 - see above
        LOG.exception("%s: the look failed with an unexpected error", table)
