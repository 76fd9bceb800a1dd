"""The ledger on the driver: its parts, built from the settings, started and stopped together.

events, listings → tables (decide) → threads → looker → board.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from pathlib import Path
from typing import NamedTuple

from compactor.debt.board import DebtBoard
from compactor.debt.ledger import STATE_VERSION
from compactor.events import Listener
from compactor.iceberg.tables import Catalogs
from compactor.locations import plain_path, user_folder
from compactor.manifests.cache import ManifestCache
from compactor.settings.current import WorkSettings
from compactor.shards import EVERYTHING, Shard
from compactor.storage.ledger_database import LedgerDatabase, opened_by
from metrics.service_view import StateSpace
from streaming.ledger.board_writer import BoardWriter
from streaming.ledger.ledger_threads import LedgerThreads
from streaming.ledger.looker import Looker
from streaming.ledger.table_driver import TableDriver
from streaming.ledger.tables import Tables
from streaming.logs.events import LOG
from streaming.wiring import manifest_disk

COUNTING_CACHE_BYTES = 16 * 1024 * 1024
"""Small, because a count reads each manifest once. The planner finds the decoded manifests on the host's disk."""

LEAST_KEPT_BYTES = 1024 * 1024
"""Of manifests that one count reads. Most tables of a fleet are counted and never planned: a thousand small ones would
cost two processor seconds of writing, and a plan of one reads its manifests again in a few calls."""


class Holder(NamedTuple):
    """What the lease on the checkpoint says of this service.

    `deployment`: the id that it writes into its commits; empty if it makes none. `token`: each holder has a state of
    its own; 0 without a lease.
    """

    deployment: str = ""
    token: int = 0


NOBODY = Holder()


class DriverLedger:
    """`settings`: in force now. The clock is that of the board's holds.

    `checkpoint`: the stream's; the state lies beside it, or on local disk if it is no local folder. `holder`: what the
    lease on it says of this service.
    """

    def __init__(
        self,
        settings: WorkSettings,
        catalogs: Catalogs,
        board: DebtBoard,
        plans: ManifestCache,
        checkpoint: str,
        listener: Listener,
        shard: Shard = EVERYTHING,
        holder: Holder = NOBODY,
    ) -> None:
        self._checkpoint = checkpoint
        self._shard = shard
        self._counting = ManifestCache(
            COUNTING_CACHE_BYTES, disk=manifest_disk(settings), least_kept_bytes=LEAST_KEPT_BYTES
        )
        file = state_file(checkpoint)
        database = opened_by(file, holder.token) if holder.token else LedgerDatabase(file)
        self.writer = BoardWriter(settings, board, listener=listener, clock=board.holds.clock)
        self.looker = Looker(settings, catalogs, database, self._counting, plans, self.writer, holder.deployment)
        self.looker.elsewhere = holder.token > 1 and not _is_shared(checkpoint)
        self.driver = TableDriver(Tables(settings, catalogs.names, board.holds, shard), self.looker)
        self._threads = LedgerThreads(self.driver, settings.service.looks_per_catalog)

    def start(self) -> None:
        """Start the threads of looks and listings."""
        self._drop_requests_of_others()
        self.driver.publish()
        self._threads.start()

    def stop(self, seconds: float) -> None:
        """End the threads after their current table, and close the state. The time left is for the disk cache."""
        deadline = time.monotonic() + seconds
        self._threads.stop(seconds)
        self._counting.flush(max(0.0, deadline - time.monotonic()))
        self.looker.database.close()

    def check(self, *, behind: bool, may_list: bool) -> None:
        """Replace threads whose look hangs; search tables by location. Called every second.

        `behind`: whether the stream is behind. `may_list`: whether it has fixed its first offsets.
        """
        self.driver.behind, self._threads.may_list = behind, may_list
        self._threads.check()
        self.driver.search_folders()

    def available(self, catalog: str) -> bool:
        """Whether the catalog answered last."""
        return self.driver.tables.catalogs[catalog].calls.answered

    @property
    def waiting(self) -> dict[str, int]:
        """Tables that wait for a look, by catalog; those of a later time not counted."""
        return {name: len(catalog.order) for name, catalog in self.driver.tables.catalogs.items()}

    @property
    def listed(self) -> dict[str, bool]:
        """For each catalog whether its last listing succeeded."""
        with self.driver.deciding(wakes=False) as now:
            return self.driver.tables.listed(now)

    @property
    def counted(self) -> tuple[int, int] | None:
        """Tables that were counted since the start, of those that are listed; None before the first listing."""
        with self.driver.deciding(wakes=False):
            return self.driver.tables.counted

    @property
    def troubles(self) -> dict[str, str]:
        """Parts of the ledger that do not work, each with the reason."""
        with self.driver.deciding(wakes=False) as now:
            found = self.driver.tables.troubles(now)
        found |= {f"look at {table}": "hangs; its counts may be old" for table in self._threads.hanging}
        return found | ({"ledger state": self.looker.unsaved} if self.looker.unsaved else {})

    @property
    def space(self) -> StateSpace | None:
        """Space on the volume of the state; None if it does not answer."""
        try:
            volume = shutil.disk_usage(self.looker.database.file.parent)
        except OSError:
            return None
        return StateSpace(bool(self.looker.unsaved), volume.free)

    def _drop_requests_of_others(self) -> None:
        """Of tables that were this service's before `service.shard` was changed."""
        board = self.writer.board
        for table, filters in board.pending().items():
            if not self._shard.owns(table):
                LOG.warning(
                    "%s is another service's now (service.shard): %d requested rewrites are dropped; send them again",
                    table, len(filters),
                )  # fmt: skip
                board.drop_requests(table)


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
