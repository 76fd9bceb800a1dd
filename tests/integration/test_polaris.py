"""A rewrite lands while the commit of a writer is on its way to Apache Polaris: who wins, on each format version.

The same tests run against the catalog that other tests use in its place, and against a real server, if there is one
(`tests/services/polaris.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import pytest

from compactor.settings.tree import CommitSettings
from tests.conftest import Lake
from tests.integration.table_kit import MERGE_ON_READ, create, planned, run
from tests.services.faulty_catalog import FaultyCatalog, faulty_catalog, in_front_of
from tests.services.polaris import ADDRESS, CATALOG, PATH, address, polaris_lake
from tests.services.rest_lake import RestLake

pytestmark = pytest.mark.spark
INSERT, DELETE = "INSERT INTO {table} VALUES (77, 'p0', 77)", "DELETE FROM {table} WHERE id = 5"


@dataclass(frozen=True)
class Place:
    lake: RestLake
    catalog: FaultyCatalog


@pytest.fixture(scope="module", params=["in its place", "real"])
def place(request: pytest.FixtureRequest, lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if request.param == "real":
        server = address()
        if server is None:
            pytest.skip(f"set {ADDRESS} to the address of an Apache Polaris server")
        with in_front_of(server, CATALOG) as catalog:
            yield Place(polaris_lake(lake, catalog, "real_polaris", server), catalog)
        return
    with faulty_catalog(tmp_path_factory.mktemp("polaris")) as catalog:
        catalog.prefix, catalog.honours_rollback = PATH, True
        yield Place(polaris_lake(lake, catalog, "in_place_of_polaris", None), catalog)


@pytest.mark.parametrize(
    ("version", "setting", "statement", "refused", "stays"),
    [
        (2, "auto", INSERT, "", False),
        (2, "auto", DELETE, "", False),
        (2, "never", DELETE, "Cannot commit, missing data files", True),
        (3, "auto", INSERT, "", True),  # Iceberg's writer adds it again, to the rewrite
        (3, "auto", DELETE, "Cannot commit, missing data files", True),
        (3, "always", INSERT, "first-row-id is behind table next-row-id", True),
    ],
)
def test_who_wins(
    place: Place, table_name: str, version: int, setting: str, statement: str, refused: str, stays: bool
) -> None:
    lake = place.lake
    create(lake, table_name, version, MERGE_ON_READ, commits=3)
    rows, plan = lake.rows(table_name), planned(lake, table_name)
    commit = CommitSettings.model_validate({"polaris_rollback": setting})
    place.catalog.before_commit = lambda: run(lake, plan, commit=commit) and None
    try:
        with pytest.raises(Exception, match=refused) if refused else nullcontext():
            lake.sql(statement.format(table=f"lake.{table_name}"))
    finally:
        place.catalog.before_commit = None
    lake.sql(f"REFRESH TABLE lake.{table_name}")
    operations = [row.operation for row in lake.sql(f"SELECT operation FROM lake.{table_name}.snapshots")]
    assert operations.count("replace") == int(stays)
    inserted = [] if refused or statement is DELETE else [(77, "p0", 77)]
    kept = [row for row in rows if refused or statement is INSERT or row[0] != 5]
    assert lake.rows(table_name) == sorted([*kept, *inserted], key=repr)
