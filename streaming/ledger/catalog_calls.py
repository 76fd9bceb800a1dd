"""Calls of one catalog: whether it answers, and when it is listed. Pure.

A catalog that does not answer is held for a while after each failure, and then tried by one call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from compactor.errors import FirnlineError, RetryError
from compactor.events import TableUnreadable
from compactor.iceberg.namespaces import Namespace
from compactor.patience.backoff import Backoff
from compactor.patience.holds import Holds, Key, What
from compactor.reasons import Reason
from compactor.settings.current import WorkSettings
from compactor.table_names import TableName
from streaming.ledger.rhythm import BEHIND_SECONDS, OFTEN_SECONDS
from streaming.ledger.table_record import Now
from streaming.logs.events import LOG

BACKOFF = Backoff(first_seconds=2.0, longest_seconds=60.0)
SILENT_AFTER = 3
"""Failures in a row after which a catalog is called silent: one table that fails says little about its catalog."""
LISTING_SECONDS = 900.0
"""Of one listing, after which it hangs: a namespace is one call, and each call has a time limit."""
MOST_SHOWN = 3
"""Namespaces that cannot be listed: a principal may see a few of a thousand."""
NEVER = float("-inf")


class CatalogCalls:
    """Calls of the catalog `name`. Times are of the ticks."""

    def __init__(self, name: str, holds: Holds) -> None:
        self.holds = holds
        self._key = Key(What.CATALOG, name)
        self._trial_until = float("-inf")

    @property
    def failures(self) -> int:
        """Calls in a row that got no answer."""
        return self.holds.tries(self._key)

    @property
    def answered(self) -> bool:
        """Whether the catalog answered last."""
        return self.failures < SILENT_AFTER

    def may_begin(self, ticks: float) -> bool:
        """Whether a call may begin now."""
        return ticks >= self._trial_until and self.holds.held(self._key) is None

    def begins(self, ticks: float) -> None:
        """A call begins. While the catalog is silent, it is a trial, and others wait for its end."""
        if not self.answered:
            self._trial_until = ticks + BACKOFF.seconds(self.failures)

    def ended(self, error: FirnlineError | None) -> None:
        """A call ended. One that began before the catalog was held, and fails too, changes nothing."""
        self._trial_until = float("-inf")
        if error is None or error.reason is not Reason.CATALOG_UNAVAILABLE:
            self.holds.release(What.CATALOG, self._key.of)
        else:
            self.holds.fail(self._key, str(error), BACKOFF)


@dataclass(frozen=True)
class Listing:
    """How a listing ended: with an `error`, or with all `names` of the catalog but those in `unlisted` namespaces.

    `others`: further tables that are looked at if they are not listed: of the board, and whose state is on disk.
    """

    names: frozenset[TableName] = frozenset()
    unlisted: Mapping[Namespace, RetryError] = field(default_factory=dict)
    others: Collection[TableName] = ()
    error: FirnlineError | None = None


class Listings:
    """Times are of the ticks.

    Attributes:
        ended: Whether a listing has ended.
        began_at: When the last listing began.
        unlisted: Namespaces that the last one could not list.
        trouble: Why the last one failed; empty if it did not.
        since: The one that is under way; None: none is.
    """

    def __init__(self, catalog: str, settings: WorkSettings) -> None:
        self.ended = False
        self.began_at = NEVER
        self.unlisted: Mapping[Namespace, RetryError] = {}
        self.trouble = ""
        self.since: float | None = None
        self._catalog = catalog
        self._settings = settings
        self._at = NEVER
        self._spelling: dict[str, TableName] = {}  # all listed names, also ignored ones, by lower case

    def soon(self) -> None:
        """List the catalog now; if it is being listed, again after that."""
        self._at = NEVER

    def is_due(self, now: Now) -> bool:
        """Whether it is time to list the catalog."""
        is_time = now.ticks >= self._at or (now.behind and now.ticks >= self.began_at + BEHIND_SECONDS)
        return is_time and self.since is None

    def begins(self, now: Now) -> None:
        """A listing begins."""
        self.since = self.began_at = now.ticks
        self._at = float("inf")  # another one may be asked for during this

    def found(self, table: TableName) -> None:
        """The listing that is under way has found a table."""
        self._spelling[str(table).casefold()] = table

    def ends(self, listing: Listing, now: Now) -> Iterable[TableUnreadable]:
        """It ended; what is to be published. Of a namespace that cannot be listed, the earlier tables stay listed."""
        pause, error = self._settings.service.sweep_seconds, listing.error
        self._at = min(self._at, now.ticks + (min(pause, OFTEN_SECONDS) if error else pause))
        self.since, self.trouble = None, str(error or "")
        if error is not None:
            return [self._unreadable((), error)]
        kept = (each for each in self._spelling.values() if is_within(each, listing.unlisted))
        self._spelling = {str(table).casefold(): table for table in (*kept, *listing.names)}
        self.ended = True
        return self._tell_of_unlisted(listing.unlisted)

    def _tell_of_unlisted(self, unlisted: Mapping[Namespace, RetryError]) -> Iterable[TableUnreadable]:
        """The namespaces that can be listed no more, once. Excluded ones are nobody's trouble."""
        before, tables = self.unlisted, self._settings.tables
        self.unlisted = {
            key: each for key, each in unlisted.items() if not tables.excludes_namespace(self._catalog, key)
        }
        news = [each for each in self.unlisted if each not in before]
        if len(news) > MOST_SHOWN:
            LOG.warning("%d more namespaces of catalog %s cannot be listed", len(news) - MOST_SHOWN, self._catalog)
        return [self._unreadable(each, self.unlisted[each]) for each in news[:MOST_SHOWN]]

    def _unreadable(self, namespace: Namespace, error: FirnlineError) -> TableUnreadable:
        table = TableName(self._catalog, namespace, "*")
        return TableUnreadable(table=table, reason=error.reason, message=str(error))

    def may_have(self, table: TableName) -> bool:
        """Whether it may have a table that is not listed: no listing has ended, or its namespace is unlisted."""
        return not self.ended or is_within(table, self.unlisted)

    def spelled(self, table: TableName) -> TableName:
        """The listed name that differs from this one by capitals only; the name itself if none is.

        Also of an ignored table: a catalog that ignores capitals gives it under any spelling.
        """
        return self._spelling.get(str(table).casefold(), table)

    def hangs_seconds(self, now: Now) -> float:
        """How long a listing takes so far that takes longer than any should; else 0."""
        seconds = 0.0 if self.since is None else now.ticks - self.since
        return seconds if seconds > LISTING_SECONDS else 0.0


def is_within(table: TableName, namespaces: Mapping[Namespace, object]) -> bool:
    """Whether one of the namespaces holds the table, itself or through namespaces within it."""
    return any(table.namespace[:depth] in namespaces for depth in range(1, len(table.namespace) + 1))
