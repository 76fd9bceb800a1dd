"""The parts of the ledger over a catalog of real tables, with a clock that the test sets and reads that are counted."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFileIO

from compactor.debt.board import DebtBoard, TableDebt
from compactor.errors import RetryError
from compactor.events import Event, LedgerUpdated, TableLooked
from compactor.iceberg.namespaces import Namespace
from compactor.iceberg.tables import Catalogs, KnownVersion, TableView, Unchanged
from compactor.manifests.cache import ManifestCache
from compactor.patience.holds import Holds
from compactor.reasons import Reason
from compactor.settings.tree import Settings
from compactor.storage.ledger_database import LedgerDatabase
from compactor.table_names import TableName
from streaming.ledger.board_writer import BoardWriter
from streaming.ledger.catalog_tables import CatalogTables
from streaming.ledger.looker import Looker
from streaming.ledger.table_driver import TableDriver
from streaming.ledger.table_record import Asked, Lane, Looked, TableRecord
from streaming.ledger.tables import Tables
from tests.properties.table_history import NAME, TableHistory

PATIENCE_SECONDS = 60.0
NOW = 1_900_000_000.0
"""Later than any commit of a test, in seconds since the epoch."""
SWEEP = Asked(Lane.SWEEP)
SWITCHED_ON: dict[str, Any] = {"tables": {"include": ["*"]}}
A = '["a"]'
"""The partition of category `a`, as `Scene.files` names it."""


class CountingIO(PyArrowFileIO):
    """PyIceberg's file IO; counts how often each file is opened for reading."""

    reads: ClassVar[Counter[str]] = Counter()

    def new_input(self, location: str) -> Any:
        CountingIO.reads[location] += 1
        return super().new_input(location)


def reads_since_last_time() -> int:
    """How many files were opened for reading since the last call."""
    found = CountingIO.reads.total()
    CountingIO.reads.clear()
    return found


def until(happened: Callable[[], object]) -> None:
    """Wait until it has happened."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def named(name: str, catalog: str = "lake") -> TableName:
    return TableName(catalog, ("db",), name)


class CountedCatalogs(Catalogs):
    """Catalogs whose calls are counted, and that fail or wait where the test says so."""

    def __init__(self, properties: Any) -> None:
        super().__init__(properties)
        self.calls: list[TableName] = []
        self.failure: Exception | None = None
        self.known: list[KnownVersion | None] = []
        self.silent: set[str] = set()
        self.released = threading.Event()

    def load(self, name: TableName, ref: str = "main") -> TableView:
        self._called(name)
        return super().load(name, ref)

    def load_if_changed(self, name: TableName, known: KnownVersion | None, now: float) -> TableView | Unchanged:
        self.known.append(known)
        if known is not None:  # else the base class calls `load`
            self._called(name)
        return super().load_if_changed(name, known, now)

    def list_tables(
        self, catalog_name: str, skipped: Callable[[Namespace, RetryError], None] | None = None
    ) -> Iterator[TableName]:
        self._called(TableName(catalog_name, (), "*"))
        return super().list_tables(catalog_name, skipped)

    def _called(self, name: TableName) -> None:
        self.calls.append(name)
        if name.catalog in self.silent:
            self.released.wait(PATIENCE_SECONDS)
        if self.failure is not None:
            raise self.failure


class SmallDisk(LedgerDatabase):
    """`full`: nothing can be saved."""

    full = False

    def save(self, *arguments: Any, **options: Any) -> None:
        if self.full:
            raise RetryError("the disk is full", reason=Reason.NO_SPACE)
        super().save(*arguments, **options)


class Scene:
    """A catalog `lake` with the table `db.t`, and the parts that look at it."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        self.folder = folder
        self.history = TableHistory(folder, 2)
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
            "py-io-impl": f"{__name__}.{CountingIO.__name__}",
        }
        self.settings = Settings(
            catalogs={"lake": self.properties, **sections.pop("more_catalogs", {})}, **{**SWITCHED_ON, **sections}
        )
        self.catalogs = CountedCatalogs(self.settings.catalogs)
        self.board = DebtBoard(Holds(lambda: self.now))
        self.published: list[Event] = []
        self.wakes = 0
        self.now = NOW
        self.start()

    def start(self) -> None:
        """The process starts: the state comes from the disk."""
        self.database = SmallDisk(self.folder / "ledger.sqlite")
        self.writer = BoardWriter(self.settings, self.board, self.published.append, lambda: self.now)
        self.writer.wake = self._wake
        self.plan_reads: list[Event] = []
        self.plans = ManifestCache(2**24, self.plan_reads.append)
        self.looker = Looker(
            settings=self.settings,
            catalogs=self.catalogs,
            database=self.database,
            counting=ManifestCache(2**24),
            plans=self.plans,
            writer=self.writer,
        )
        tables = Tables(self.settings, self.catalogs.names, self.board.holds)
        self.driver = TableDriver(tables, self.looker)
        self.driver.ticks = lambda: self.now
        self.lake: CatalogTables = tables.catalogs["lake"]
        reads_since_last_time()

    def restart(self) -> None:
        self.database.close()
        self.board = DebtBoard(Holds(lambda: self.now))
        self.start()

    def _wake(self) -> None:
        self.wakes += 1

    @property
    def catalog(self) -> Catalog:
        """For writers; its reads and calls are not counted."""
        return self.history.catalog

    def look(self, table: TableName = NAME, asked: Asked = SWEEP) -> Looked:
        """A look, and what follows from it."""
        looked = self.driver.look(table, asked)
        assert looked is not None
        return looked

    def record(self, table: TableName = NAME) -> TableRecord:
        return self.lake.get(table)

    def debt(self, table: TableName = NAME) -> TableDebt:
        found = self.board.get(table)
        assert found is not None
        return found

    def files(self) -> dict[str, int]:
        """Small files by partition, as the board shows them."""
        return {one.key.values: one.counts.small_files for one in self.debt().partitions.values()}

    @property
    def outcomes(self) -> list[str]:
        return [event.outcome for event in self.published if isinstance(event, TableLooked)]

    @property
    def updates(self) -> list[LedgerUpdated]:
        return [event for event in self.published if isinstance(event, LedgerUpdated)]
