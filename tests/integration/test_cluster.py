"""A real Spark cluster: master and workers as processes, executors without a copy of the project."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.integration.service_process import (
    ROWS,
    Site,
    document,
    firnline,
    site,
    wait_for,
)
from tests.services.quick_java import SPARK_CONF
from tests.services.spark_cluster import SparkCluster, spark_cluster

NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master without workers: each test adds its own."""
    with spark_cluster(tmp_path_factory.mktemp("spark")) as running:
        yield running


@contextmanager
def workers(cluster: SparkCluster, *cores: int) -> Iterator[None]:
    """Workers for one test."""
    try:
        cluster.add_workers(*cores)
        yield
    finally:
        for worker in cluster.workers:
            worker.kill()
        wait_for("the master to miss its workers", lambda: cluster.cores == 0)


def place_on(cluster: SparkCluster, folder: Path, broker: str = NOBODY, **sections: Any) -> Any:
    spark = {"master": cluster.master, "conf": {**SPARK_CONF, **cluster.conf}}
    return site(folder, broker, spark=spark, **sections)


def fill(place: Site, *tables: str, parts: int, commits: int = 4, rows: int = 500) -> None:
    """The same rows in each table."""
    for table in tables:
        place.create(table)
    for commit in range(commits):
        columns = [
            [f"p{number % parts:02d}" for number in range(parts * rows)],
            list(range(commit * parts * rows, (commit + 1) * parts * rows)),
            [random.randbytes(120).hex() for _ in range(parts * rows)],
        ]
        for table in tables:
            place.catalogs.catalog("lake").load_table(("db", table)).append(pa.table(columns, schema=ROWS))


def counted(result: Any) -> tuple[int, int]:
    """Files in and files out of a run."""
    groups = result["groups"]
    return sum(group["files_in"] for group in groups), sum(group["files_out"] for group in groups)


def contents(files: set[str]) -> list[tuple[int, str]]:
    """Size and digest of each file."""
    return sorted((Path(file).stat().st_size, hashlib.sha256(Path(file).read_bytes()).hexdigest()) for file in files)


@pytest.mark.slow
def test_a_table_that_is_compacted_on_a_cluster_has_the_rows_and_files_of_local_mode(
    cluster: SparkCluster, tmp_path: Path
) -> None:
    with place_on(cluster, tmp_path) as place, workers(cluster, 1, 1):
        fill(place, "here", "there", parts=4)
        before = place.rows("here")
        there = document(firnline(place.config, "compact", "db.there", "--force", "--output", "json"))
        local = {"FIRNLINE_SPARK__MASTER": "local[2]", "FIRNLINE_SPARK__CONF__SPARK_PYSPARK_PYTHON": sys.executable}
        here = document(firnline(place.config, "compact", "db.here", "--force", "--output", "json", **local))
        assert place.rows("here") == place.rows("there") == before
        assert contents(place.live_files("here")) == contents(place.live_files("there"))
        assert len(place.live_files("there")) == 4
        assert counted(here) == counted(there) == (16, 4)
        assert place.unreferenced("there") == set()


@pytest.mark.slow
def test_a_service_without_executors_says_so_stays_up_and_goes_on(
    cluster: SparkCluster, broker: str, tmp_path: Path
) -> None:
    with place_on(cluster, tmp_path, broker) as place:
        service = place.start()

        def missing() -> bool:
            service.must_run()
            answer = service.get("/readyz")
            return answer is not None and answer[0] == 503 and "no Spark executor" in answer[1]

        wait_for("/readyz to name the missing executors", missing)
        answer = service.get("/healthz")
        assert answer is not None
        assert answer[0] == 200
        with workers(cluster, 1):
            service.wait_ready()


@pytest.mark.slow
def test_executors_without_the_packages_are_named_with_the_remedy(cluster: SparkCluster, tmp_path: Path) -> None:
    with place_on(cluster, tmp_path) as place, workers(cluster, 1):
        fill(place, "t", parts=1)
        bare = tmp_path / "bare-python"
        bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
        bare.chmod(0o755)
        done = firnline(
            place.config, "compact", "db.t", "--force", FIRNLINE_SPARK__CONF__SPARK_PYSPARK_PYTHON=str(bare)
        )
        assert done.returncode == 2
        assert "executors cannot import what rewrites need" in done.stderr
        assert "pyarrow" in done.stderr
        assert "spark.pyspark.python" in done.stderr
