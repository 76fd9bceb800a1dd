"""`check-config --connect` and `compact` through Iceberg's Java client: properties that only it needs, and proxies."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from tests.integration.service_process import document, firnline
from tests.services.http_relay import Relay, http_relay
from tests.services.quick_java import SPARK_CONF
from tests.services.rest_catalog import RestCatalog
from tests.slow import slow

CLIENT = "Java client of lake"
NO_AWS = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}
NO_PROXIES = dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"), "")


@pytest.fixture
def table(rest_catalog: RestCatalog) -> Table:
    catalog = load_catalog("lake", **rest_catalog.properties)
    catalog.create_namespace_if_not_exists("db")
    made = catalog.create_table(("db", f"t{uuid.uuid4().hex[:8]}"), pa.schema([("id", pa.int64())]))
    for commit in range(3):
        made.append(pa.table({"id": [commit]}))
    return made


@pytest.fixture
def properties(rest_catalog: RestCatalog) -> dict[str, str]:
    return dict(rest_catalog.properties)


def written(folder: Path, table: Table, properties: dict[str, str]) -> Path:
    tree = {
        "catalogs": {"lake": properties},
        "tables": {"include": [".".join(table.name()[-2:])]},
        "spark": {"master": "local[2]", "conf": dict(SPARK_CONF)},
        "state": {"checkpoint": f"file://{folder}/state/checkpoint"},
    }
    path = folder / "firnline.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def checks(config: Path, *arguments: str, code: int = 0, **environment: str) -> dict[str, dict[str, Any]]:
    done = firnline(
        config, "check-config", "--connect", "--output", "json", *arguments, **{**NO_AWS, **NO_PROXIES, **environment}
    )
    assert done.returncode == code, done.stdout + done.stderr
    done.returncode = 0
    return {check["name"]: check for check in document(done)["checks"]}


@pytest.mark.slow
def test_what_only_java_needs_is_missed(table: Table, properties: dict[str, str], tmp_path: Path) -> None:
    """Python's clients need no region for a store with an address of its own."""
    del properties["s3.region"]
    found = checks(written(tmp_path, table, properties), code=2)
    assert {name for name, check in found.items() if check["status"] == "failed"} == {CLIENT}
    assert "region" in found[CLIENT]["detail"]
    assert "catalogs.lake" in found[CLIENT]["remedy"]


@pytest.fixture
def proxy(rest_catalog: RestCatalog) -> Iterator[Relay]:
    """It alone knows the hosts of catalog and store."""
    host, _, port = rest_catalog.uri.removeprefix("http://").rstrip("/").partition(":")
    with http_relay(routes={"catalog.test": (host, int(port)), "store.test": rest_catalog.s3.address}) as relay:
        yield relay


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check-config", *slow("compact")])
def test_catalog_and_store_behind_a_proxy(
    table: Table, properties: dict[str, str], proxy: Relay, tmp_path: Path, command: str
) -> None:
    behind = properties | {"uri": "http://catalog.test:8181", "s3.endpoint": "http://store.test:9000"}
    config = written(tmp_path, table, behind)
    environment = NO_PROXIES | {"HTTP_PROXY": proxy.endpoint, "http_proxy": proxy.endpoint}
    if command == "check-config":
        found = checks(config, **environment)
        assert [found[name]["status"] for name in (CLIENT, "store of lake, write")] == ["ok", "ok"]
    else:
        done = firnline(config, "compact", ".".join(table.name()[-2:]), "--force", "--output", "json", **environment)
        assert document(done)["groups"][0]["files_in"] == 3
    assert set(proxy.hosts) == {"catalog.test:8181", "store.test:9000"}
