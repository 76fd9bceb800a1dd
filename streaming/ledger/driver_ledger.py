"""The ledger on the driver: its parts, built from the settings, started and stopped together.

events → inbox → look queue → lookers (threads) → looker → board; the table watcher feeds the same queue.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from compactor.debt.board import DebtBoard
from compactor.debt.ledger import STATE_VERSION
from compactor.errors import FirnlineError
from compactor.events import Listener, LocationUnresolved
from compactor.iceberg.tables import Catalogs
from compactor.locations import plain_path, user_folder
from compactor.manifests.cache import ManifestCache
from compactor.settings.current import WorkSettings
from compactor.shards import Shard
from compactor.storage.ledger_database import LedgerDatabase, opened_by
from compactor.table_names import TableName
from metrics.reserve_collector import StateSpace
from streaming.ledger.board_writer import BoardWriter
from streaming.ledger.inbox import Inbox
from streaming.ledger.look_queue import LookQueue
from streaming.ledger.looker import Looker
from streaming.ledger.lookers import Breakers, Lookers
from streaming.ledger.table_locations import TableLocations
from streaming.ledger.table_rhythms import TableRhythms
from streaming.ledger.table_watcher import Surroundings, TableWatcher
from streaming.logs.events import LOG
from streaming.wiring import manifest_disk

COUNTING_CACHE_BYTES = 16 * 1024 * 1024
"""Small, because a count reads each manifest once. The planner finds the decoded manifests on the host's disk."""

LEAST_KEPT_BYTES = 1024 * 1024
"""Of manifests that one count reads. Most tables of a fleet are counted and never planned: a thousand small ones would
cost two processor seconds of writing, and a plan of one reads its manifests again in a few calls."""

FORGET_SECONDS = 600.0
"""Between two times that names which are no tables are forgotten."""


@dataclass(frozen=True)
class Around:
    """The rest of the service, as the ledger needs it.

    Attributes:
        wake: Notifies the dispatcher that the board changed.
        shard: The part of the tables that is this service's.
        may_sweep: Whether the stream has fixed its first offsets.
        behind: Whether the stream is behind.
    """

    wake: Callable[[], None]
    shard: Shard
    may_sweep: Callable[[], bool]
    behind: Callable[[], bool]


@dataclass(eq=False)
class DriverLedger:
    """`checkpoint`: the stream's; the state lies beside it, or on local disk if it is no local folder.

    `deployment`: the id that this deployment writes into its commits; empty if it makes none. `token`: of the lease on
    the checkpoint; each holder has a state of its own. 0 without a lease.
    """

    settings: WorkSettings
    catalogs: Catalogs
    board: DebtBoard
    plans: ManifestCache
    checkpoint: str
    around: Around
    listener: Listener
    clock: Callable[[], float] = time.time
    deployment: str = ""
    token: int = 0
    looker: Looker = field(init=False)
    watcher: TableWatcher = field(init=False)
    inbox: Inbox = field(init=False)
    breakers: Breakers = field(init=False)
    writer: BoardWriter = field(init=False)
    _forgot_at: float = field(default=float("-inf"), init=False)
    _damaged: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        names, settings = self.catalogs.names, self.settings
        self.queue = LookQueue()
        self.breakers = Breakers(names, self.listener)
        self.writer = BoardWriter(settings, self.board, self.around.wake, self.listener, self.clock)
        self._counting = ManifestCache(
            COUNTING_CACHE_BYTES, disk=manifest_disk(settings), least_kept_bytes=LEAST_KEPT_BYTES
        )
        file = state_file(self.checkpoint)
        self._database = opened_by(file, self.token) if self.token else LedgerDatabase(file)
        self._locations = TableLocations(self._list_soon, self._unresolved)
        self.looker = Looker(
            settings=settings,
            catalogs=self.catalogs,
            database=self._database,
            counting=self._counting,
            plans=self.plans,
            board=self.board,
            writer=self.writer,
            listener=self.listener,
            clock=self.clock,
            deployment=self.deployment,
            rhythms=TableRhythms(self.listener, self.clock, self.around.behind),
            locations=self._locations,
            is_listed=self._may_be_listed,
            spelled=self._spelled,
            taken_over=self._taken_over,
        )
        self._lookers = Lookers(
            catalogs=names,
            queue=self.queue,
            looker=self.looker,
            breakers=self.breakers,
            per_catalog=settings.service.looks_per_catalog,
            wanted=self._wants,
        )
        around = self.around
        surroundings = Surroundings(
            self.board.known,
            self._owns,
            around.may_sweep,
            around.behind,
            self.looker.rhythms.of,
            self._locations.likely,
            self._saved,
        )
        self.watcher = TableWatcher(
            settings, self.catalogs, self.queue, self.breakers, surroundings, self.listener, clock=self.clock
        )
        self.inbox = Inbox(
            settings, self.board, self.queue, self.looker, names, around.shard, self.watcher.is_found, self.listener
        )

    def start(self) -> None:
        """Start the threads of looks and sweeps."""
        self._drop_requests_of_others()
        self.breakers.publish()
        self._lookers.start()
        self.watcher.start()

    def stop(self, seconds: float) -> None:
        """End the threads after their current table, and close the state. The time left is for the disk cache."""
        deadline = time.monotonic() + seconds
        self.watcher.stop()
        self._lookers.stop(seconds)
        self._counting.flush(max(0.0, deadline - time.monotonic()))
        self._database.close()

    def check(self) -> None:
        """Replace threads whose look hangs; search tables by location; forget old names. Called every second."""
        self._lookers.check()
        self._locations.check()
        now = time.monotonic()
        found = self.watcher.found
        if found is not None and now - self._forgot_at >= FORGET_SECONDS:
            self._forgot_at = now
            self.writer.forget_answers(found)

    @property
    def troubles(self) -> dict[str, str]:
        """Parts of the ledger that do not work, each with the reason."""
        found = {f"catalog {name}": "does not answer" for name in self.breakers.silent}
        found |= {f"look at {table}": "hangs; its counts may be old" for table in self._lookers.hanging}
        found |= {
            f"listing of catalog {name}": f"takes {seconds / 60:.0f} min"
            for name, seconds in self.watcher.hanging.items()
        }
        if self.looker.unsaved:
            found["ledger state"] = self.looker.unsaved
        if self.watcher.trouble:
            found["table watcher"] = self.watcher.trouble
        return found

    @property
    def space(self) -> StateSpace | None:
        """Space on the volume of the state; None if it does not answer."""
        try:
            volume = shutil.disk_usage(state_file(self.checkpoint).parent)
        except OSError:
            return None
        return StateSpace(bool(self.looker.unsaved), volume.free, volume.total)

    @property
    def counted(self) -> tuple[int, int] | None:
        """Tables that were counted since the start, of those that sweeps found; None before the first listing."""
        found = self.watcher.found
        return None if found is None else (self.writer.answered_of(found), len(found))

    def settings_changed(self) -> None:
        """Forget tables that are ignored now, and look at all others."""
        for table in self.board.known():
            if self.settings.tables.ignores(table):
                self.looker.forget(table)
        self.watcher.sweep_soon()

    def _may_be_listed(self, table: TableName) -> bool:
        return self.watcher.may_have(table)  # the watcher is made after the looker

    def _spelled(self, table: TableName) -> TableName | None:
        return self.watcher.spelled(table)

    def _drop_requests_of_others(self) -> None:
        """Of tables that were this service's before `service.shard` was changed."""
        for table, filters in self.board.pending().items():
            if not self._owns(table):
                LOG.warning(
                    "%s is another service's now (service.shard): %d requested rewrites are dropped; send them again",
                    table, len(filters),
                )  # fmt: skip
                self.board.drop_requests(table)

    def _list_soon(self) -> None:
        self.watcher.list_soon()

    def _unresolved(self, source: str, folder: str) -> None:
        LOG.info("events of %s: no table of the catalogs has its metadata in %s", source, folder)
        self.listener(LocationUnresolved(source=source, folder=folder))

    def _owns(self, table: TableName) -> bool:
        return self.around.shard.owns(table)

    def _taken_over(self) -> bool:
        """Whether an earlier holder of the lease has counted the tables on another host: its state was on its disk."""
        database = self._database
        return self.token > 1 and database.began_empty and not database.generation and not _is_shared(self.checkpoint)

    def _saved(self) -> list[TableName]:
        """Tables whose state is on disk, without damaged names."""
        found, damaged = [], set[str]()
        for key in self._saved_keys():
            try:
                found.append(TableName.of_key(key))
            except ValueError:
                damaged.add(key)
        if damaged - self._damaged:
            LOG.warning(
                "the ledger's state %s has damaged names of tables (%s, …): they are left out, and their tables are "
                "counted again; check the disk",
                self._database.file, min(damaged - self._damaged),
            )  # fmt: skip
        self._damaged |= damaged
        return found

    def _saved_keys(self) -> list[str]:
        """None if the state cannot be read, which looks report."""
        try:
            return self._database.names()
        except FirnlineError:
            return []

    def _wants(self, table: TableName) -> bool:
        """Whether the table is ours and not ignored. Settings, too, may change during a look."""
        return self._owns(table) and not self.settings.tables.ignores(table)


def state_file(checkpoint: str) -> Path:
    """The database of the ledger's state: in a local checkpoint, else in the user's state folder."""
    name = f"ledger-v{STATE_VERSION}.sqlite"
    if _is_shared(checkpoint):
        return Path(plain_path(checkpoint)) / name
    folder = hashlib.sha256(checkpoint.encode()).hexdigest()[:16]
    return user_folder("XDG_STATE_HOME", ".local/state") / "firnline" / folder / name


def _is_shared(checkpoint: str) -> bool:
    """Whether the next holder of the lease finds the state: it lies in the folder of the checkpoint."""
    return "://" not in checkpoint or checkpoint.startswith("file:")
