"""The ledger as the service builds it, in one thread, with a clock of the test: looks happen when the test says so."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compactor.debt.board import DebtBoard
from compactor.errors import RetryError
from compactor.events import Event
from compactor.iceberg.tables import Catalogs
from compactor.manifests.cache import ManifestCache
from compactor.patience.holds import Holds
from compactor.reasons import Reason
from compactor.settings.current import CurrentSettings
from compactor.settings.tree import Settings
from compactor.storage.ledger_database import TableState
from streaming.intake.heard import Heard
from streaming.ledger.driver_ledger import DriverLedger, Holder

CATALOG = "lake"
MOST_LOOKS = 500
STOP_SECONDS = 5.0
STORE_FAILS, STORE_FAILS_LATER = "the store fails", "the store fails later"
CATALOG_FAILS, DISK_IS_FULL, DIES = "the catalog fails", "the disk is full", "the look dies"
TROUBLES = ("", "", STORE_FAILS, STORE_FAILS_LATER, CATALOG_FAILS, DISK_IS_FULL, DIES)


@dataclass
class Clock:
    """Seconds since the epoch, later than every commit; and ticks for pauses and back-offs."""

    wall: float = field(default_factory=lambda: time.time() + 3600)
    ticks: float = 0.0


class _FailingCache(ManifestCache):
    """Reads `good` times, then the store is out of reach."""

    def __init__(self, good: int) -> None:
        super().__init__(1 << 20)
        self._good = good

    def read(self, *arguments: Any, **options: Any) -> Any:
        self._good -= 1
        if self._good < 0:
            raise RetryError("the store does not answer", reason=Reason.MANIFEST_UNREADABLE)
        return super().read(*arguments, **options)


class LedgerUnderTest:
    """A `DriverLedger` whose threads are not started, its state in a folder, and restarts of it."""

    def __init__(self, settings: Settings, catalogs: Catalogs, folder: Path, *, leased: bool) -> None:
        """`leased`: each process holds a lease of its own, and has a file of its own."""
        self.settings = CurrentSettings(settings)
        self.catalogs = catalogs
        self.folder = folder
        self.clock = Clock()
        self.published: list[Event] = []
        self._leased, self._token = leased, 0
        self.start()

    def start(self) -> None:
        self._token += int(self._leased)
        self.board = DebtBoard(Holds(lambda: self.clock.wall))
        self.plans = ManifestCache(1 << 24)
        self.ledger = DriverLedger(
            settings=self.settings,
            catalogs=self.catalogs,
            board=self.board,
            plans=self.plans,
            checkpoint=str(self.folder / "checkpoint"),
            listener=self.published.append,
            holder=Holder(token=self._token),
        )
        self.ledger.driver.ticks = lambda: self.clock.ticks

    def stop(self) -> None:
        self.ledger.stop(STOP_SECONDS)

    def restart(self) -> None:
        """The process ends and starts again on the same state."""
        self.stop()
        self.start()

    def take_over(self) -> None:
        """Another process takes over while the first one still has its file open."""
        before = self.ledger
        self.start()
        before.stop(STOP_SECONDS)

    def lose_state(self) -> None:
        self.stop()
        shutil.rmtree(self.folder / "checkpoint")
        self.start()

    def back_up(self) -> None:
        """Copy the state of a stopped process."""
        self.stop()
        shutil.rmtree(self.folder / "backup", ignore_errors=True)
        shutil.copytree(self.folder / "checkpoint", self.folder / "backup")
        self.start()

    @property
    def has_backup(self) -> bool:
        return (self.folder / "backup").exists()

    def restore(self) -> None:
        """The state is that of the last backup."""
        self.stop()
        shutil.rmtree(self.folder / "checkpoint")
        shutil.copytree(self.folder / "backup", self.folder / "checkpoint")
        self.start()

    def hear(self, events: Sequence[Heard]) -> None:
        self.ledger.driver.hear(events)

    def sweep(self) -> None:
        """A look at every table, however rarely its commits suggest one."""
        self.clock.wall += self.settings.service.sweep_seconds
        self.ledger.driver.sweep_soon()
        self.ledger.driver.list_if_due(CATALOG)

    def look_once(self) -> None:
        """The look that is due now, if any."""
        taken = self.ledger.driver.take(CATALOG, 0.0)
        if taken is not None:
            self.ledger.driver.look(*taken)

    def drain(self) -> None:
        """All looks, also those that wait for a pause or a back-off."""
        driver = self.ledger.driver
        tables = driver.tables.catalogs[CATALOG]
        for _ in range(MOST_LOOKS):
            taken = driver.take(CATALOG, 0.0)
            if taken is not None:
                driver.look(*taken)
            elif tables.order.next_at is None:
                return
            else:
                self.clock.ticks = max(self.clock.ticks, tables.order.next_at)
        raise AssertionError("the looks never end")

    @contextmanager
    def in_trouble(self, trouble: str) -> Iterator[None]:
        """One of `TROUBLES` for a while."""
        looker, database = self.ledger.looker, self.ledger.looker.database
        if not trouble:
            yield
        elif trouble == DISK_IS_FULL:
            with _instead(database, "save", _raises("the disk is full", Reason.NO_SPACE)):
                yield
        elif trouble == DIES:  # after its counts are made, and before they are saved as a whole
            with _instead(TableState, "put_head", _raises("the look dies", Reason.UNEXPECTED)):
                yield
        elif trouble == CATALOG_FAILS:
            failing = Catalogs({})
            failing.load_if_changed = _raises("the catalog does not answer", Reason.TABLE_UNREADABLE)
            with _instead(looker, "catalogs", failing):
                yield
        else:
            with _instead(looker, "counting", _FailingCache(int(trouble == STORE_FAILS_LATER))):
                yield


def _raises(message: str, reason: Reason) -> Any:
    def fails(*_: object, **__: object) -> None:
        raise RetryError(message, reason=reason)

    return fails


@contextmanager
def _instead(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Another attribute of an object for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
