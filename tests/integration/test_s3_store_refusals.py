"""Stores that refuse some requests of each client: boto3, Arrow and the AWS SDK for Java."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from tests.integration.service_process import document, firnline
from tests.services.http_relay import Relay, Rule, http_relay, without_checksums, without_writes
from tests.services.quick_java import SPARK_CONF
from tests.services.s3_server import S3Server

pytestmark = pytest.mark.spark
DEFAULT = {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_supported"}


@dataclass
class Place:
    """A table whose store firnline reaches through a relay, and its settings file."""

    table: Table
    config: Path
    relay: Relay


@pytest.fixture
def place(request: pytest.FixtureRequest, s3_server: S3Server, tmp_path: Path) -> Iterator[Place]:
    """`param`: the rule of the relay."""
    rule: Rule = request.param
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": s3_server.folder()}
    catalog = load_catalog("lake", **properties, **s3_server.properties)
    catalog.create_namespace("db")
    small = {"firnline.policy.min_row_group_size": "0"}
    table = catalog.create_table("db.t", pa.schema([("id", pa.int64())]), properties=small)
    for commit in range(6):
        table.append(pa.table({"id": [commit]}))
    with http_relay(rule, s3_server.address) as relay:
        settings = {
            "catalogs": {"lake": properties | s3_server.behind(relay.endpoint).properties},
            "spark": {"master": "local[2]", "conf": dict(SPARK_CONF)},
            "state": {"checkpoint": f"file://{tmp_path}/checkpoint"},
        }
        config = tmp_path / "firnline.yaml"
        config.write_text(yaml.safe_dump(settings))
        yield Place(table, config, relay)


@pytest.mark.slow
@pytest.mark.parametrize("place", [without_checksums], indirect=True)
@pytest.mark.parametrize("engine", ["splice", "encode", "spark"])
def test_a_store_without_the_checksums_of_2025(place: Place, engine: str) -> None:
    report = document(firnline(place.config, "compact", "db.t", "--force", "--engine", engine, "--output", "json"))
    assert [(group["files_in"], group["files_out"]) for group in report["groups"]] == [(6, 1)]
    assert place.relay.refused == []
    assert sorted(place.table.refresh().scan().to_arrow()["id"].to_pylist()) == list(range(6))


@pytest.mark.slow
@pytest.mark.parametrize("place", [without_checksums], indirect=True)
@pytest.mark.parametrize("engine", ["encode", "spark"])
def test_the_error_names_what_asks_for_checksums(place: Place, engine: str) -> None:
    done = firnline(place.config, "compact", "db.t", "--force", "--engine", engine, **DEFAULT)
    assert done.returncode == 3
    assert "AWS_REQUEST_CHECKSUM_CALCULATION must be when_required" in done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("place", [without_writes], indirect=True)
@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_a_bucket_that_may_not_be_written(place: Place, engine: str) -> None:
    done = firnline(place.config, "compact", "db.t", "--force", "--engine", engine)
    assert done.returncode == 3
    assert '"reason": "access_denied"' in done.stderr
    assert "check the " in done.stderr.splitlines()[-1]
