"""Manifests decoded by a Spark job are those that the driver decodes."""

from __future__ import annotations

import pytest

from compactor.events import ManifestsRead
from compactor.iceberg.tables import TableView
from compactor.manifests.cache import ManifestCache
from compactor.manifests.executor_job import ReadOnExecutors
from compactor.table_names import TableName
from tests.conftest import Lake


@pytest.fixture
def view(lake: Lake, table_name: str) -> TableView:
    """Data and deletes of two specs, a manifest a commit."""
    table = f"lake.{table_name}"
    lake.sql(
        f"CREATE TABLE {table} (id BIGINT, day DATE) USING iceberg PARTITIONED BY (day) TBLPROPERTIES ("
        "'format-version' = '2', 'write.delete.mode' = 'merge-on-read', 'commit.manifest-merge.enabled' = 'false')"
    )
    for commit in range(4):
        lake.sql(f"INSERT INTO {table} SELECT id, DATE '2024-01-0{commit + 1}' FROM range(10)")
    lake.sql(f"DELETE FROM {table} WHERE id = 3")
    lake.sql(f"ALTER TABLE {table} ADD PARTITION FIELD bucket(3, id)")
    lake.sql(f"INSERT INTO {table} SELECT id, DATE '2024-02-01' FROM range(10)")
    return lake.catalogs.load(TableName.parse(table, lake.catalogs.names))


def test_executors_read_what_the_driver_reads(lake: Lake, view: TableView) -> None:
    reads: list[ManifestsRead] = []
    manifests = view.manifests()
    cache = ManifestCache(2**24, reads.append)  # type: ignore[arg-type]
    cache.use_reader(ReadOnExecutors(lake.session, from_bytes=0))
    expected = [list(one) for one in ManifestCache(2**24).read(view, manifests)]
    for from_store in (len(manifests), 0):
        assert [list(one) for one in cache.read(view, manifests)] == expected
        assert reads[-1].misses == from_store
    assert len({entry.key.spec_id for one in expected for entry in one}) == 2
