"""A service that another has taken over from commits nothing and deletes nothing; the other cleans up after it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.commit.in_flight import InFlightRecords
from compactor.commit.sweep import sweep
from compactor.errors import StoppedError
from compactor.events import Event, RunFailed
from compactor.iceberg.other_compactors import DEPLOYMENT
from compactor.lease.decisions import TAKEOVER_SECONDS
from compactor.lease.holder import LeaseHolder
from compactor.lease.local_store import LocalLeaseStore
from compactor.lease.owner import Owner
from compactor.lease.right import CommitRight
from compactor.manifests.cache import ManifestCache
from compactor.runs.committable import CommitTools
from compactor.runs.manifests import rewrite_manifests
from compactor.runs.rewriter import Rewriter
from compactor.runs.slots import SlotPool
from tests.conftest import Lake
from tests.integration.table_kit import append, create, planned, records_of, replaces, unreferenced

pytestmark = pytest.mark.spark

ELSEWHERE = replace(Owner.this_process(), host="another.host")


class TwoServices:
    """The active service, and a standby; `take_over` makes the active one a paused one that has been replaced."""

    def __init__(self, folder: Path) -> None:
        self._now = 0.0
        self.first, self.second = (
            LeaseHolder(LocalLeaseStore(folder), owner=ELSEWHERE, clock=lambda: self._now) for _ in range(2)
        )
        assert self.first.look()
        assert not self.second.look()

    def take_over(self) -> None:
        self._now += TAKEOVER_SECONDS + 1
        assert self.second.look()


@pytest.fixture
def services(tmp_path: Path) -> TwoServices:
    return TwoServices(tmp_path / "lease")


def rewriter_of(
    lake: Lake, right: CommitRight, events: list[Event], records: InFlightRecords | None = None
) -> Rewriter:
    return Rewriter(
        lake.session,
        lake.catalogs,
        ManifestCache(1 << 24),
        records or lake.in_flight(),
        slots=SlotPool(2),
        lease_seconds=60,
        check_seconds=60,
        listener=events.append,
        right=right,
    )


def swept(lake: Lake, table: str, confirm: Callable[[], None], hours: int = 0) -> int:
    now, cache = time.time() + 3600 * hours, ManifestCache(1 << 20)
    found = sweep(lake.in_flight(), lake.catalogs, cache, now=now, grace_seconds=1e9, confirm=confirm)
    return found.get(lake.name(table), 0)


def test_a_run_whose_service_was_replaced_before_the_commit_commits_and_deletes_nothing(
    lake: Lake, table_name: str, services: TwoServices
) -> None:
    create(lake, table_name, commits=3)
    rows, plan, events = lake.rows(table_name), planned(lake, table_name), list[Event]()

    def paused_before_the_commit() -> bool:
        services.take_over()
        return True

    with pytest.raises(StoppedError, match="lost its lease") as caught:
        rewriter_of(lake, services.first.right, events).run(plan, enabled=paused_before_the_commit)
    assert caught.value.reason == "lease_lost"
    (failed,) = [event for event in events if isinstance(event, RunFailed)]
    assert (failed.stage, failed.reason, failed.reaction) == ("commit", "lease_lost", "stop")
    assert replaces(lake, table_name) == 0
    outputs = unreferenced(lake, table_name)
    assert outputs, "the replaced service deletes no file"
    assert swept(lake, table_name, services.first.confirm) == 0, "not in a sweep either"
    assert unreferenced(lake, table_name) == outputs
    assert swept(lake, table_name, services.second.confirm) == len(outputs)
    swept(lake, table_name, services.second.confirm)
    assert records_of(lake, table_name) == []
    assert lake.rows(table_name) == rows


def test_outputs_that_the_new_service_has_deleted_are_never_committed(
    lake: Lake, table_name: str, services: TwoServices
) -> None:
    """The paused service is on another host: the new one cannot see that it lives, takes it for dead and cleans up."""
    create(lake, table_name, commits=3)
    plan = planned(lake, table_name)
    elsewhere, taken = InFlightRecords(lake.in_flight().location, ELSEWHERE, 60, time.time), list[None]()

    def paused_before_the_commit() -> bool:
        if taken:  # asked at each attempt
            return True
        taken.append(None)
        services.take_over()
        assert swept(lake, table_name, services.second.confirm, hours=1) == 0  # notes the head
        append(lake, table_name)
        assert swept(lake, table_name, services.second.confirm, hours=1) > 0
        assert unreferenced(lake, table_name) == set()
        return True

    with pytest.raises(StoppedError):
        rewriter_of(lake, services.first.right, [], elsewhere).run(plan, enabled=paused_before_the_commit)
    assert replaces(lake, table_name) == 0
    assert len(lake.rows(table_name)) == 31
    for _ in range(2):
        swept(lake, table_name, services.second.confirm)
    assert records_of(lake, table_name) == []


@pytest.mark.parametrize("version", [2, 3])
def test_a_service_that_was_replaced_rewrites_no_manifests(
    lake: Lake, table_name: str, services: TwoServices, version: int
) -> None:
    create(lake, table_name, version, "'commit.manifest-merge.enabled'='false'", commits=3)
    view = lake.view(table_name)
    services.take_over()
    with pytest.raises(StoppedError):
        rewrite_manifests(lake.session, view, (0,), "run", CommitTools(lake.catalogs, right=services.first.right))
    assert lake.view(table_name).metadata_location == view.metadata_location
    rewrite_manifests(lake.session, view, (0,), "run", CommitTools(lake.catalogs, right=services.second.right))
    snapshot = lake.view(table_name).snapshot
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.additional_properties[DEPLOYMENT] == services.second.deployment
