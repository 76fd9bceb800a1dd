"""Manifests that executors decode: how many at once, and what the driver holds of them. Threads act as executors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from compactor.errors import RetryError
from compactor.manifests import executor_job
from compactor.manifests.executor_job import JOBS_PER_CORE, ReadOnExecutors
from compactor.manifests.reads import Wanted, batches, read_here, wanted_of
from tests.properties.table_history import TableHistory

CORES = 2
AT_ONCE = JOBS_PER_CORE * CORES


class Cluster:
    """Runs each job in the thread that collects it. The first ones end together: all of them must run at once."""

    defaultParallelism = CORES  # noqa: N815 - as Spark spells it

    def __init__(self, *, fails: bool = False) -> None:
        self.started = 0
        self.pools = set[str]()
        self.session: Any = SimpleNamespace(sparkContext=self)
        self._fails = fails
        self._together = threading.Barrier(AT_ONCE)
        self._lock = threading.Lock()

    def setLocalProperty(self, key: str, value: str) -> None:  # noqa: N802
        self.pools.add(f"{key}={value}")

    def setJobGroup(self, *_: object) -> None:  # noqa: N802
        pass

    def parallelize(self, data: Sequence[Any], slices: int) -> _Job:
        assert slices == 1
        return _Job(self, data)

    def runs(self) -> None:
        with self._lock:
            self.started += 1
            first = self.started <= AT_ONCE
        if first:
            self._together.wait(60)
        if self._fails:
            raise PySparkException("Job aborted")


class _Job:
    def __init__(self, cluster: Cluster, data: Sequence[Any]) -> None:
        self._cluster = cluster
        self._data = data
        self._work: Callable[[Any], Any] = lambda each: each

    def map(self, work: Callable[[Any], Any]) -> _Job:
        self._work = work
        return self

    def collect(self) -> list[Any]:
        self._cluster.runs()
        return [self._work(each) for each in self._data]


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableHistory:
    """A table of ten manifests, each a batch of its own."""
    made = TableHistory(tmp_path, 2)
    for _ in range(10):
        made.append_unreal("a", [10, 20])
    monkeypatch.setattr(executor_job, "batches", lambda wanted: batches(wanted, 1))
    return made


def wanted(history: TableHistory) -> list[Wanted]:
    view = history.view()
    return wanted_of(view, view.manifests())


def test_all_cores_decode_and_the_driver_holds_no_more_than_their_jobs(history: TableHistory) -> None:
    cluster, io, manifests = Cluster(), history.table.io, wanted(history)
    found: dict[str, list[Any]] = {}
    for taken, decoded in enumerate(ReadOnExecutors(cluster.session, from_bytes=0)(io, manifests)):
        assert cluster.started - taken <= AT_ONCE
        found |= {each.key: list(entries) for each, entries in zip(decoded.wanted, decoded.entries, strict=True)}
    assert cluster.started == 10
    assert found == {
        each.key: list(entries)
        for decoded in read_here(io, manifests)
        for each, entries in zip(decoded.wanted, decoded.entries, strict=True)
    }
    assert cluster.pools == {"spark.scheduler.pool=rewrite"}


def test_a_job_that_fails_ends_the_read_and_no_other_is_started(history: TableHistory) -> None:
    cluster = Cluster(fails=True)
    with pytest.raises(RetryError, match="Job aborted", check=lambda error: error.reason == "manifest_job"):
        list(ReadOnExecutors(cluster.session, from_bytes=0)(history.table.io, wanted(history)))
    assert cluster.started == AT_ONCE


def test_a_manifest_that_is_gone_is_named(history: TableHistory) -> None:
    cluster, manifests = Cluster(), wanted(history)
    lost = manifests[3].manifest.manifest_path
    Path(lost.removeprefix("file://")).unlink()
    with pytest.raises(RetryError, match=lost.rsplit("/", 1)[1]) as error:
        list(ReadOnExecutors(cluster.session, from_bytes=0)(history.table.io, manifests))
    assert error.value.reason == "manifest_unreadable"
