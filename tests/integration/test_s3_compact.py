"""`firnline compact` on a table in S3 behind a REST catalog: everything real, the command in a process of its own."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from tests.integration.service_process import document, firnline
from tests.services.counting_proxy import Wire, counting_proxy
from tests.services.rest_catalog import RestCatalog, rest_catalog
from tests.services.s3_server import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILES = 8
GOAL = 0.02  # bytes on the wire, metadata and catalog included, per byte compacted
ROWS = 9000
PAYLOAD_BYTES = 1000
NAMES = ("id", "payload")


@dataclass
class Lake:
    """A table in S3, the settings file to compact it with, and the wire that the command talks through."""

    s3: S3Server
    table: Table
    config: Path
    wire: Wire

    def reload(self) -> Table:
        return self.table.refresh()

    def rows(self) -> list[tuple[Any, ...]]:
        found = self.reload().scan().to_arrow()
        return sorted(zip(*(found.column(name).to_pylist() for name in NAMES), strict=True))

    def live_files(self) -> list[str]:
        return sorted(task.file.file_path for task in self.reload().scan().plan_files())

    def data_objects(self) -> list[str]:
        return self.s3.keys(f"{self.table.location()}/data")

    def open_uploads(self) -> list[Any]:
        found: list[Any] = self.s3.client.list_multipart_uploads(Bucket=self.s3.bucket).get("Uploads", [])
        return found

    def through_duckdb(self, folder: Path) -> list[tuple[Any, ...]]:
        """Number of rows, sum of ids and a hash of all payloads, as another reader of the same files sees them."""
        paths = []
        for number, location in enumerate(self.live_files()):
            (folder / f"{number}.parquet").write_bytes(self.s3.get(location))
            paths.append(str(folder / f"{number}.parquet"))
        query = f"SELECT count(*), sum(id), sum(hash(payload)::hugeint) FROM read_parquet({paths})"
        return [tuple(row) for row in duckdb.execute(query).fetchall()]


def fill(table: Table, files: int, rows: int) -> None:
    """Appends of one file each; the payload is noise, so that a file is as large as its rows."""
    noise = random.Random(7)
    for number in range(files):
        ids = range(number * rows, (number + 1) * rows)
        payload = [noise.randbytes(PAYLOAD_BYTES) for _ in ids]
        table.append(pa.table({"id": pa.array(ids, pa.int64()), "payload": pa.array(payload, pa.binary())}))


@pytest.fixture(params=["keys of the settings", "keys vended by the catalog"])
def lake(request: pytest.FixtureRequest, s3_server: S3Server, tmp_path: Path) -> Iterator[Lake]:
    host, _, port = s3_server.endpoint.removeprefix("http://").partition(":")
    vends = "vended" in request.param
    with counting_proxy(host, int(port)) as wire:
        seen = s3_server.behind(wire.endpoint)
        with rest_catalog(tmp_path / "catalog", seen, vends=vends) as served:
            yield make(s3_server, served, wire, tmp_path, vends=vends)


def make(s3: S3Server, served: RestCatalog, wire: Wire, folder: Path, *, vends: bool) -> Lake:
    catalog: Catalog = load_catalog("lake", **{**served.properties, **s3.properties})
    catalog.create_namespace("db")
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("payload", pa.binary())])
    table = catalog.create_table(("db", f"t{uuid.uuid4().hex[:8]}"), schema)
    properties = served.properties
    if vends:
        properties = {key: value for key, value in properties.items() if "access-key" not in key}
    config = folder / "firnline.yaml"
    settings = {
        "catalogs": {"lake": properties},
        "spark": {"master": "local[2]"},
        "state": {"checkpoint": f"file://{folder}/checkpoint"},
    }
    config.write_text(yaml.safe_dump(settings))
    return Lake(s3, table, config, wire)


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_compact_on_s3(lake: Lake, tmp_path: Path, engine: str) -> None:
    fill(lake.table, FILES, ROWS)
    before, digest, objects = lake.rows(), lake.through_duckdb(tmp_path), lake.data_objects()
    assert len(lake.live_files()) == FILES
    size = sum(task.file.file_size_in_bytes for task in lake.table.scan().plan_files())
    carried = lake.wire.total
    name = f"lake.db.{lake.table.name()[-1]}"
    report = document(firnline(lake.config, "compact", name, "--engine", engine, "--output", "json"))
    carried = lake.wire.total - carried
    (group,) = report["groups"]
    assert group["engine"] == ("spark" if engine == "spark" else "splice")
    assert group["rows_out"] == FILES * ROWS
    assert len(lake.live_files()) == 1
    assert lake.rows() == before
    assert lake.through_duckdb(tmp_path) == digest
    assert sorted(lake.data_objects()) == sorted([*objects, *lake.live_files()])
    assert lake.open_uploads() == []
    if engine == "auto":
        assert carried <= GOAL * size, f"{carried} bytes over the wire for {size} bytes compacted"
