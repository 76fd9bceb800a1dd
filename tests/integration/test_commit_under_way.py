"""Requests that are answered while they are still under way in the catalog, or in a proxy, and land afterwards."""

from __future__ import annotations

import time

import pytest

from compactor.errors import CommitUnknownError, StoppedError
from compactor.lease.right import CommitRight
from compactor.runs.committable import CommitTools
from compactor.runs.manifests import rewrite_manifests
from tests.integration.table_kit import append, create, planned, run, unreferenced
from tests.integration.test_commit_state import sweep_at, sweep_until_settled
from tests.services.faulty_catalog import Fault, FaultyCatalog
from tests.services.rest_lake import RestLake
from tests.slow import slow

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("status", [409, *slow(400, 404, 500)])
@pytest.mark.parametrize("rolled_back", [True, *slow(False)])
def test_a_request_that_lands_after_its_answer_and_after_the_run_finds_its_files(
    rest_lake: RestLake, faulty: FaultyCatalog, table_name: str, status: int, rolled_back: bool
) -> None:
    """The catalog, or a proxy that repeats requests, answers while the same request waits behind a lock.

    A head that has moved proves nothing either: somebody may roll the table back to the old one.
    """
    create(rest_lake, table_name, commits=3)
    rows, plan, asked = rest_lake.rows(table_name), planned(rest_lake, table_name), list[None]()

    def confirm() -> None:
        asked.append(None)
        if len(asked) > 1:
            raise StoppedError("the service ends")

    with faulty.failing(Fault.UNDER_WAY, status), pytest.raises(CommitUnknownError):
        run(rest_lake, plan, right=CommitRight(confirm=confirm))
    outputs = unreferenced(rest_lake, table_name)
    assert outputs
    sweep_at(rest_lake, time.time() + 30 * 86_400)
    assert unreferenced(rest_lake, table_name) == outputs, "no time proves that it does not land"
    if rolled_back:
        before = rest_lake.view(table_name).snapshot.snapshot_id
        append(rest_lake, table_name)
        rest_lake.sql(f"CALL lake.system.rollback_to_snapshot('{table_name}', {before})")
        assert rest_lake.view(table_name).snapshot.snapshot_id == before
    arrived = faulty.arrive()
    assert arrived == ([409] if rolled_back else [200]), "version 2 gives no sequence number a second time"
    assert rest_lake.rows(table_name) == rows
    sweep_until_settled(rest_lake, table_name)
    assert rest_lake.rows(table_name) == rows
    assert unreferenced(rest_lake, table_name) == set()


@pytest.mark.parametrize("version", [2, *slow(3)])
def test_a_merge_of_manifests_that_lands_after_its_refusal_finds_its_files(
    rest_lake: RestLake, faulty: FaultyCatalog, table_name: str, version: int
) -> None:
    create(rest_lake, table_name, version, "'commit.manifest-merge.enabled'='false'", commits=3)
    rows, view = rest_lake.rows(table_name), rest_lake.view(table_name)
    with faulty.failing(Fault.UNDER_WAY, 409, times=10), pytest.raises(CommitUnknownError):
        rewrite_manifests(rest_lake.session, view, (0,), "run-of-test", CommitTools(rest_lake.catalogs))
    assert faulty.arrive()[0] == 200
    assert rest_lake.rows(table_name) == rows
    assert len(rest_lake.view(table_name).manifests()) < len(view.manifests())
