"""What the pages say of a service that is standby, active, or unable to renew its lease."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry

from compactor.debt.board import DebtBoard
from compactor.lease.decisions import VALID_SECONDS
from compactor.lease.holder import LeaseHolder
from compactor.lease.local_store import LocalLeaseStore
from compactor.lease.owner import Owner
from compactor.settings.tree import Settings
from metrics.recent_work import RecentWork
from streaming.service.pages import ServiceState, metrics_server

ELSEWHERE = replace(Owner.this_process(), host="pod-0", pid=7)


def test_a_service_says_whether_it_is_standby_or_active(tmp_path: Path) -> None:
    now = [0.0]
    first, second = (
        LeaseHolder(LocalLeaseStore(tmp_path), owner=ELSEWHERE, clock=lambda: now[0], wall_clock=lambda: 0.0)
        for _ in range(2)
    )
    starting = ServiceState(starting=True)
    assert (starting.active, starting.health.details) == (False, {"service": "starting or stopping"})
    first.look()
    second.look()
    active, standby = ServiceState(lease=first, ready=True), ServiceState(lease=second, starting=True)
    waiting = {"service": "standby: pod-0 (pid 7) is active since 1970-01-01 00:00:00Z"}
    assert (standby.health.live, standby.health.ready, standby.health.active) == (True, False, False)
    assert standby.health.details == waiting
    assert (active.health.live, active.health.ready, active.health.active) == (True, True, True)
    assert active.health.deployment == first.deployment != ""
    now[0] += VALID_SECONDS
    assert (active.health.live, active.health.ready, active.health.active) == (True, False, False)
    assert "nothing is committed" in active.health.details["lease"]


def test_observe_mode_is_active_without_a_lease() -> None:
    assert ServiceState(ready=True).health.active


def test_the_metric_of_readiness_is_what_readyz_says(tmp_path: Path) -> None:
    now = [0.0]
    lease = LeaseHolder(LocalLeaseStore(tmp_path), owner=ELSEWHERE, clock=lambda: now[0], wall_clock=lambda: 0.0)
    lease.look()
    state, registry = ServiceState(lease=lease, starting=True), CollectorRegistry()
    settings = Settings(catalogs={"lake": {"type": "sql", "uri": "sqlite://"}})
    metrics_server(settings, registry, DebtBoard(), state, RecentWork())
    found = []
    for state.ready, state.events_read, seconds in (
        (False, True, 0.0),
        (True, True, 0.0),
        (True, False, 0.0),
        (True, True, VALID_SECONDS),
    ):
        now[0] += seconds
        found.append(registry.get_sample_value("firnline_service_ready"))
    assert found == [0, 1, 0, 0]
