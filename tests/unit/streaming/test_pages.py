"""What the pages say of a service that is standby, active, or unable to renew its lease."""

from __future__ import annotations

import base64
import http.client
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from prometheus_client import CollectorRegistry

from compactor.debt.board import DebtBoard
from compactor.lease.decisions import VALID_SECONDS
from compactor.lease.holder import LeaseHolder
from compactor.lease.local_store import LocalLeaseStore
from compactor.lease.owner import Owner
from compactor.settings.tree import Settings
from metrics.recent_work import RecentWork
from streaming.service.pages import Phase, metrics_server
from streaming.service.service import Service
from tests.services.certificates import issue
from tests.unit.streaming.states import state_of

ELSEWHERE = replace(Owner.this_process(), host="pod-0", pid=7)


def test_a_service_says_whether_it_is_standby_or_active(tmp_path: Path) -> None:
    now = [0.0]
    first, second = (
        LeaseHolder(LocalLeaseStore(tmp_path), owner=ELSEWHERE, clock=lambda: now[0], wall_clock=lambda: 0.0)
        for _ in range(2)
    )
    starting = state_of(Phase.STARTING)
    assert (starting.active, starting.health.details) == (False, {"service": "starting or stopping"})
    first.look()
    second.look()
    active, standby = state_of(lease=first), state_of(Phase.STARTING, lease=second)
    waiting = {"service": "standby: pod-0 (pid 7) is active since 1970-01-01 00:00:00Z"}
    assert (standby.health.live, standby.health.ready, standby.health.active) == (True, False, False)
    assert standby.health.details == waiting
    assert (active.health.live, active.health.ready, active.health.active) == (True, True, True)
    assert active.health.deployment == first.deployment != ""
    now[0] += VALID_SECONDS
    assert (active.health.live, active.health.ready, active.health.active) == (True, False, False)
    assert "nothing is committed" in active.health.details["lease"]


def test_the_metric_of_readiness_is_what_readyz_says(tmp_path: Path) -> None:
    now = [0.0]
    lease = LeaseHolder(LocalLeaseStore(tmp_path), owner=ELSEWHERE, clock=lambda: now[0], wall_clock=lambda: 0.0)
    lease.look()
    state, registry = state_of(lease=lease), CollectorRegistry()
    settings = Settings(catalogs={"lake": {"type": "sql", "uri": "sqlite://"}})
    metrics_server(settings, registry, DebtBoard(), state, RecentWork())
    found = []
    for state.phase, state.broker.trouble, seconds in (
        (Phase.STARTING, "", 0.0),
        (Phase.READY, "", 0.0),
        (Phase.READY, "no Kafka broker answers", 0.0),
        (Phase.READY, "", VALID_SECONDS),
    ):
        now[0] += seconds
        found.append(registry.get_sample_value("firnline_service_ready"))
    assert found == [0, 1, 0, 0]


# Events by HTTP

PASSWORD = "open sesame"  # noqa: S105
KNOWN = {"Authorization": "Basic " + base64.b64encode(f"sender:{PASSWORD}".encode()).decode()}


NO_BROKER = {"bootstrap_servers": "127.0.0.1:1", "options": {"bootstrap.timeout.ms": 500}}


def settings_of(folder: Path, *, kafka: Mapping[str, Any] = NO_BROKER, **http: Any) -> Settings:
    return Settings(
        catalogs={"lake": {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}},
        kafka=kafka,
        state={"checkpoint": f"file://{folder}/checkpoint"},
        http={"port": 0, **http},
    )


def takes_events(folder: Path, *, kafka: Mapping[str, Any] = NO_BROKER) -> Settings:
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    return settings_of(folder, kafka=kafka, basic_auth={"sender": hashed}, accept_events=True)


@contextmanager
def serving(service: Service) -> Iterator[Service]:
    service._http.start()
    try:
        yield service
    finally:
        service._http.stop()


def post(service: Service, path: str = "/v1/events", body: bytes = b"rubbish") -> tuple[int, str | None, str]:
    """Status, `Retry-After` and body of the answer; an intake that is open refuses the default body with 400."""
    connection = http.client.HTTPConnection(*service._http.address, timeout=20)
    try:
        connection.request("POST", path, body, KNOWN)
        answer = connection.getresponse()
        return answer.status, answer.headers["Retry-After"], answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/v1/events", "/v1/namespaces/db/tables/t/metrics"])
def test_observe_mode_takes_no_events(tmp_path: Path, path: str) -> None:
    """It may run on another system's topic, and writes nothing."""
    with serving(Service(takes_events(tmp_path), observe=True)) as service:
        for service._state.broker.prepared in (False, True):
            status, retry, text = post(service, path)
            assert (status, retry) == (403, None)
            assert "--observe" in text


def test_no_event_is_taken_before_the_commit_topic_was_checked(tmp_path: Path) -> None:
    service = Service(takes_events(tmp_path))
    with serving(service):
        assert post(service)[:2] == (503, "5")
        service._state.broker.look()  # no broker answers
        status, retry, text = post(service)
        assert (status, retry) == (503, "5")
        assert "commit topic" in text
        service._state.broker.prepared = True
        assert post(service)[0] == 400


# Addresses and certificates


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1", "http://127.0.0.1:0"),
        ("0.0.0.0", "http://127.0.0.1:0"),  # noqa: S104
        ("::", "http://127.0.0.1:0"),
        ("::1", "http://[::1]:0"),
        ("fd00::7", "http://[fd00::7]:0"),
        ("pages.internal", "http://pages.internal:0"),
    ],
)
def test_the_address_of_the_pages_can_be_opened(tmp_path: Path, host: str, shown: str) -> None:
    assert Service(settings_of(tmp_path, host=host)).address == shown


def test_a_renewed_certificate_that_cannot_be_used_is_a_detail_of_the_health(tmp_path: Path) -> None:
    made = issue(tmp_path / "tls")
    service = Service(settings_of(tmp_path, tls_certificate=str(made.certificate), tls_key=str(made.key)))
    service._state.phase = Phase.READY
    with serving(service):
        assert "certificate" not in readyz(service, made.authority)
        made.key.write_bytes(b"half written")
        assert "the earlier one is still used" in readyz(service, made.authority)
    assert service._state.health.ready


def readyz(service: Service, authority: Path) -> str:
    """The body of an answer with status 200."""
    context = ssl.create_default_context(cafile=str(authority))
    connection = http.client.HTTPSConnection(*service._http.address, timeout=20, context=context)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read().decode()
    finally:
        connection.close()
