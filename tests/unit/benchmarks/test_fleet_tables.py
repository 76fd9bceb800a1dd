"""The fleet of `make bench-fleet`: PyIceberg and the ledger read copied tables and commits made in advance."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from compactor.debt.ledger import advance
from compactor.errors import InputError
from compactor.iceberg.tables import FileSizes, TableView
from compactor.manifests.cache import ManifestCache
from compactor.table_names import TableName
from tests.benchmarks.fleet.commits import RETAINED, commits_of
from tests.benchmarks.fleet.tables import Fleet, Shape, pointers
from tests.properties.ledger_counts import DictionaryStore

SHAPE = Shape(tables=3, partitions=4, history=5, files=2, rows=10, namespaces=2)
FILES = 4 * 2 + 5
SIZES = FileSizes(512 * 1024 * 1024, 384 * 1024 * 1024)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet.make(tmp_path_factory.mktemp("fleet"), SHAPE)


@pytest.fixture
def catalog(fleet: Fleet, tmp_path: Path) -> Catalog:
    made = SqlCatalog("own", uri=f"sqlite:///{tmp_path}/own.db", warehouse=fleet.warehouse)
    for namespace in ("db0", "db1"):
        made.create_namespace(namespace)
    with pointers(tmp_path / "own.db", "own") as tables:
        tables.reset(fleet.heads)
    return made


def view(table: Table) -> TableView:
    return TableView(TableName("own", ("db0",), "t"), table.metadata, table.metadata_location, table.io)


def test_every_copy_is_a_table_of_its_own(fleet: Fleet, catalog: Catalog) -> None:
    tables = [catalog.load_table(name) for name in fleet.shape.names]
    assert len({table.metadata.table_uuid for table in tables}) == 3
    assert len({manifest.manifest_path for table in tables for manifest in manifests(table)}) == 3 * len(
        manifests(tables[0])
    )
    assert {table.scan().to_arrow().num_rows for table in tables} == {FILES * 10}
    assert sorted(catalog.list_tables("db0")) == [("db0", "t00000"), ("db0", "t00002")]


def test_a_copy_accepts_commits_and_leaves_the_others_alone(fleet: Fleet, catalog: Catalog) -> None:
    table, other = (catalog.load_table(fleet.shape.name(number)) for number in (0, 1))
    table.append(table.scan(limit=5).to_arrow())
    assert catalog.load_table(fleet.shape.name(0)).scan().to_arrow().num_rows == FILES * 10 + 5
    assert catalog.load_table(fleet.shape.name(1)).metadata == other.metadata


def test_the_ledger_counts_each_commit_made_in_advance(fleet: Fleet, catalog: Catalog, tmp_path: Path) -> None:
    name, store, cache = fleet.shape.name(2), DictionaryStore(), ManifestCache(1 << 20)
    first = advance(view(catalog.load_table(name)), SIZES, store, cache, manifest_budget=100)
    assert (first.recount_reason, first.totals.data_files) == ("first_sight", FILES)
    with pointers(tmp_path / "own.db", "own") as tables:
        for commit in commits_of(fleet, name, 6):
            tables.set(name, commit.metadata_location)
            update = advance(view(catalog.load_table(name)), SIZES, store, cache, manifest_budget=100)
            assert update.recount_reason is None
            assert update.snapshot_id == commit.snapshot_id
            assert update.totals.data_files == FILES + commit.number + 1
            assert len(update.partitions) == 1
    table = catalog.load_table(name)
    again = advance(view(table), SIZES, DictionaryStore(), cache, manifest_budget=100)
    assert again.totals == update.totals
    assert table.scan().to_arrow().num_rows == (FILES + 6) * 10


def test_more_commits_go_on_where_the_first_ended(fleet: Fleet, catalog: Catalog, tmp_path: Path) -> None:
    name = fleet.shape.name(1)
    few, more = commits_of(fleet, name, 3), commits_of(fleet, name, RETAINED + 10)
    assert more[:3] == few
    with pointers(tmp_path / "own.db", "own") as tables:
        tables.set(name, more[-1].metadata_location)
    table = catalog.load_table(name)
    assert len(table.metadata.snapshots) == RETAINED
    assert table.scan().to_arrow().num_rows == (FILES + RETAINED + 10) * 10


def test_a_folder_with_another_fleet_is_refused(fleet: Fleet) -> None:
    assert Fleet.make(fleet.folder, SHAPE).heads == fleet.heads
    with pytest.raises(InputError, match="another shape"):
        Fleet.make(fleet.folder, Shape(tables=4))


def manifests(table: Table) -> list[ManifestFile]:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.manifests(table.io)
