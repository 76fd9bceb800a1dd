"""The main job where tables live in production: commit events on Kafka, a REST catalog, files in S3. All real."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.integration.service_process import Site, site
from tests.services.rest_catalog import RestCatalog

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

CONNECT_EVENT = Path(__file__).parents[1] / "contracts" / "fixtures" / "kafka_connect" / "commit_to_table.bin"
COMMITS, PARTS, ROWS = 28, 4, 250


@pytest.fixture
def table() -> str:
    """The catalog is shared: a name nobody else uses."""
    return f"events_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def lake(tmp_path: Path, broker: str, rest_catalog: RestCatalog, table: str) -> Iterator[Site]:
    own = {"include": [f"db.{table}"], "observe": ["db.orders"]}
    kafka = {"commit_topics": [f"control-{table}"]}
    with site(tmp_path / "site", broker, catalogs={"lake": rest_catalog.properties}, tables=own, kafka=kafka) as made:
        yield made


def checksum(site: Site, table: str, served: RestCatalog, folder: Path) -> list[tuple[Any, ...]]:
    """Rows, sum of ids and of hashes, as a reader that knows nothing of Iceberg finds them in the live objects."""
    folder.mkdir()
    paths = []
    for number, location in enumerate(sorted(site.live_files(table))):
        (folder / f"{number}.parquet").write_bytes(served.s3.get(location))
        paths.append(str(folder / f"{number}.parquet"))
    query = f"SELECT count(*), sum(id), sum(hash(part, id, payload)::hugeint) FROM read_parquet({paths})"
    return [tuple(row) for row in duckdb.execute(query).fetchall()]


@pytest.mark.slow
def test_commits_from_before_the_first_start_become_one_replace_commit(
    lake: Site, table: str, rest_catalog: RestCatalog, tmp_path: Path
) -> None:
    lake.create(table)
    lake.append(table, commits=COMMITS, parts=PARTS, rows=ROWS)
    files, rows = lake.live_files(table), lake.rows(table)
    digest = checksum(lake, table, rest_catalog, tmp_path / "before")
    assert (len(files), len(rows)) == (COMMITS * PARTS, COMMITS * PARTS * ROWS)
    assert all(location.startswith("s3://") for location in files)
    service = lake.start()
    service.wait_ready()
    (control,) = [
        each.topic for each in lake.settings.kafka.commit_topics
    ]  # made after the start, and read from its beginning
    lake.producer.send(control, CONNECT_EVENT.read_bytes()).get(timeout=30)  # a commit to db.orders, unknown here
    metrics = service.wait_metric("firnline_commits_total")
    assert lake.operations(table) == ["append"] * COMMITS + ["replace"]
    merged = lake.live_files(table)
    assert (len(merged), merged & files) == (PARTS, set())
    assert lake.rows(table) == rows
    assert checksum(lake, table, rest_catalog, tmp_path / "after") == digest
    assert metrics.total("firnline_commit_input_files_total") == COMMITS * PARTS
    assert metrics.total("firnline_commit_output_files_total") == PARTS
    service.wait_metric("firnline_looks_total", outcome="missing")
    assert "events of an unknown table are not used" in service.log_text
    code, _ = service.terminate()
    assert code == 0
    assert [each for each in lake.in_flight().all() if each.catalog in lake.catalogs.names] == []
    assert len(lake.records(control)) == 1  # only read: a sink fails on what is not its own
    view = lake.view(table)
    assert set(rest_catalog.s3.keys(f"{view.metadata.location}/data")) == files | merged  # nothing else was left
    assert not rest_catalog.s3.client.list_multipart_uploads(Bucket=rest_catalog.s3.bucket).get("Uploads")


@pytest.mark.slow
def test_the_demo_on_a_rest_catalog_and_s3(tmp_path: Path) -> None:
    """Its claims are checked by itself: 112 files become 4, then debt is paid beside the writer, rows unchanged."""
    command = [sys.executable, "-m", "deploy.demo", "--on", "rest-s3", "--folder", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "s3://lake/warehouse" in done.stdout
    assert "112 files → 4" in done.stdout
