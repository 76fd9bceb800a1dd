"""Fixtures of several modules: splices of tiny files, and a REST catalog that fails or rolls rewrites back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.patience.backoff import Backoff
from tests.conftest import Lake
from tests.correctness.stage import any_size_splices
from tests.integration.service_process import Site, site
from tests.services.faulty_catalog import FaultyCatalog, faulty_catalog
from tests.services.rest_lake import RestLake, rest_lake_of


@pytest.fixture
def tiny_files_spliced() -> Iterator[None]:
    with any_size_splices():
        yield


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyCatalog]:
    with faulty_catalog(tmp_path_factory.mktemp("faulty")) as catalog:
        yield catalog


@pytest.fixture(scope="module")
def rest_lake(lake: Lake, faulty: FaultyCatalog, request: pytest.FixtureRequest) -> RestLake:
    """Spark opens a catalog once, and each module has another one."""
    return rest_lake_of(lake, faulty, request.module.__name__.rpartition(".")[2])


@pytest.fixture(autouse=True)
def _no_patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks are looked at often; a commit that nothing answers fails at once, but in tests of that wait."""
    monkeypatch.setattr("compactor.commit.decisions.TURN_SECONDS", 0.05)
    if "patient" not in request.fixturenames:
        monkeypatch.setattr("compactor.commit.decisions.PASSES", frozenset())


@pytest.fixture
def place(tmp_path: Path, broker: str) -> Iterator[Site]:
    with site(tmp_path, broker) as made:
        yield made


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that nothing answers is tried again, without a pause."""
    monkeypatch.setattr("compactor.commit.decisions.SOON", Backoff(0.01, 0.01))
