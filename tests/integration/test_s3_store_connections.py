"""Connections to a real S3 server: a table that is loaded again and again leaves none open."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.iceberg.tables import Catalogs
from compactor.table_names import TableName
from tests.services.rest_catalog import RestCatalog


@pytest.fixture
def never_collected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.usefixtures("never_collected")
def test_connections_do_not_wait_for_the_garbage_collector(rest_catalog: RestCatalog) -> None:
    catalogs, name = Catalogs({"lake": rest_catalog.properties}), TableName("lake", (uuid.uuid4().hex,), "t")
    catalog, rows = catalogs.catalog("lake"), pa.table({"id": [1, 2]})
    catalog.create_namespace(name.namespace)
    catalog.create_table(name.identifier, rows.schema).append(rows)

    def opened(times: int) -> int:
        before = open_files()
        for _ in range(times):
            assert catalogs.load(name).manifests()
        return open_files() - before

    opened(2)
    assert opened(10) < 10, "PyIceberg leaves three of each load"
