"""The main job where tables live in production: commit events on Kafka, a REST catalog, files in S3. All real."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.service_process import Site, site
from tests.services.rest_catalog import RestCatalog

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


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


@pytest.mark.slow
def test_the_demo_on_a_rest_catalog_and_s3(tmp_path: Path) -> None:
    """Its claims are checked by itself: 112 files become 4, then debt is paid beside the writer, rows unchanged."""
    command = [sys.executable, "-m", "deploy.demo", "--on", "rest-s3", "--folder", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "s3://lake/warehouse" in done.stdout
    assert "112 files → 4" in done.stdout
