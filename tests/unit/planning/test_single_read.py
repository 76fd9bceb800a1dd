"""One look at a table reads each manifest list once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO

from compactor.debt.board import DebtBoard
from compactor.events import Event, LedgerUpdated
from compactor.iceberg.tables import Catalogs, KnownVersion, TableView
from compactor.manifests.cache import ManifestCache
from compactor.planning.conflicts import changes_since
from compactor.planning.plan_table import AS_THE_SERVICE, Request, plan_table
from compactor.settings.policy import PolicyValues
from compactor.settings.tree import Settings
from compactor.storage.ledger_database import LedgerDatabase
from streaming.ledger.board_writer import BoardWriter
from streaming.ledger.looker import Looker
from streaming.ledger.table_record import Asked, Outcome
from tests.properties.table_history import NAME, TableHistory

CATEGORIES = "abcde"
FILTER = "category in ('b', 'c')"


class CountingIO(FileIO):
    """A FileIO that counts how often each file is opened for reading."""

    def __init__(self) -> None:
        super().__init__()
        self._io = PyArrowFileIO()
        self.reads: Counter[str] = Counter()

    @property
    def manifest_lists(self) -> list[int]:
        """How often each manifest list was read, list by list."""
        return [count for path, count in self.reads.items() if "/snap-" in path]

    def new_input(self, location: str) -> InputFile:
        self.reads[location] += 1
        return self._io.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        raise AssertionError(f"a look writes nothing: {location}")

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise AssertionError(f"a look deletes nothing: {location}")


class LookedAt(Catalogs):
    """One table; each load is a new look with a FileIO that counts."""

    def __init__(self, history: TableHistory) -> None:
        super().__init__({"lake": {}})
        self.history = history
        self.io = CountingIO()

    def load(self, name: Any = NAME, ref: str = "main") -> TableView:
        view = self.history.view()
        self.io = CountingIO()
        return TableView(name, view.metadata, view.metadata_location, self.io, ref)

    def load_if_changed(self, name: Any, known: KnownVersion | None, now: float) -> TableView:  # noqa: ARG002
        return self.load(name)


@pytest.fixture
def lake(tmp_path: Path) -> LookedAt:
    """Ten commits of two files each; every other one adds a delete file that names no data file."""
    history = TableHistory(tmp_path, 2)
    for category in CATEGORIES * 2:
        history.append_unreal(category, [10, 10])
    for category in "bd":
        history.append_unreal(category, [1], deletes=True)
    return LookedAt(history)


@pytest.mark.parametrize("request_", [AS_THE_SERVICE, Request(), Request(where=FILTER, force=True)])
def test_a_plan_reads_the_manifest_list_once(lake: LookedAt, request_: Request) -> None:
    policy = PolicyValues(strategy="threshold", min_input_files=2)
    assert plan_table(lake.load(), policy, ManifestCache(1 << 20), request_).groups
    assert lake.io.manifest_lists == [1]


class Looking:
    """The ledger's looks at the table, without memory of what was loaded before."""

    def __init__(self, lake: LookedAt, database: LedgerDatabase, budget: int) -> None:
        catalog = {"type": "sql", "uri": "sqlite://", "warehouse": "file:///nowhere"}
        settings = Settings(catalogs={"lake": catalog}, service={"manifests_per_batch": budget})
        self.published: list[Event] = []
        board = DebtBoard()
        self._looker = Looker(
            settings=settings,
            catalogs=lake,
            database=database,
            counting=ManifestCache(1 << 20),
            plans=ManifestCache(1 << 20),
            writer=BoardWriter(settings, board, self.published.append),
        )

    def looks(self) -> Iterator[LedgerUpdated]:
        """Look at the table until everything is counted; yields what each look found."""
        more = True
        while more:
            looked = self._looker.look(NAME, Asked())
            assert looked.outcome in {Outcome.COUNTED, Outcome.COUNTING}
            yield next(event for event in reversed(self.published) if isinstance(event, LedgerUpdated))
            more = looked.more


@pytest.fixture
def database(tmp_path: Path) -> Iterator[LedgerDatabase]:
    opened = LedgerDatabase(tmp_path / "ledger.sqlite")
    yield opened
    opened.close()


@pytest.mark.parametrize("budget", [100, 3])
def test_a_look_of_the_ledger_reads_each_manifest_list_once(
    lake: LookedAt, database: LedgerDatabase, budget: int
) -> None:
    """A recount of one snapshot, then a walk over three unseen ones; then a look that finds nothing new."""
    looking = Looking(lake, database, budget)
    for unseen in (0, 3, 0):
        for category in CATEGORIES[:unseen]:
            lake.history.append_unreal(category, [10])
        for _ in looking.looks():
            assert set(lake.io.manifest_lists) == {1}
    assert database.head(NAME.key) is not None


def test_a_recount_after_a_contradicted_walk_reads_each_manifest_list_once(
    lake: LookedAt, database: LedgerDatabase
) -> None:
    looking = Looking(lake, database, 100)
    list(looking.looks())
    lake.history.append_unreal("a", [10])
    state = database.state(NAME.key)
    state.put_head((state.head() or "").replace('"drift": 0', '"drift": 7'))
    state.save()
    assert [update.recount_reason for update in looking.looks()] == ["summary_mismatch"]
    assert lake.io.manifest_lists == [1]


def test_the_check_before_a_commit_reads_each_manifest_list_once(lake: LookedAt) -> None:
    planned = lake.load()
    assert planned.snapshot is not None
    for category in CATEGORIES:
        lake.history.append_unreal(category, [10])
    changes = changes_since(lake.load(), planned, planned.snapshot.snapshot_id, ManifestCache(1 << 20))
    assert len(changes) == len(CATEGORIES)
    assert lake.io.manifest_lists == [1] * len(CATEGORIES)
