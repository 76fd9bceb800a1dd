"""The image's health check asks the service in its own container, and no proxy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from deploy.docker.healthcheck import healthy
from metrics.http.http_access import Certificate
from metrics.http.http_server import MetricsServer
from metrics.service_view import Health
from tests.services.certificates import issue
from tests.unit.metrics.support import Service, site


class Proxy(BaseHTTPRequestHandler):
    """Answers everything with success, also what it cannot reach."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The requests to a proxy that the environment names for all hosts."""
    Proxy.asked = []
    server = HTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}")
    yield Proxy.asked
    server.shutdown()
    thread.join()
    server.server_close()


def verdict(*, live: bool, certificate: Certificate | None = None) -> bool:
    shown = site(Service(health=Health(live=live, ready=False)))
    server = MetricsServer(shown, "127.0.0.1", 0, certificate=certificate)
    server.start()
    try:
        return healthy(str(server.address[1]))
    finally:
        server.stop()


@pytest.mark.parametrize("live", [True, False])
def test_no_proxy_is_asked(asked: list[str], tmp_path: Path, live: bool) -> None:
    made = issue(tmp_path)
    assert verdict(live=live) is live
    assert verdict(live=live, certificate=Certificate(str(made.certificate), str(made.key))) is live
    assert asked == []


def test_a_service_that_has_ended_is_not_healthy(asked: list[str]) -> None:
    server = MetricsServer(site(), "127.0.0.1", 0)
    server.start()
    port = server.address[1]
    server.stop()
    assert not healthy(str(port))
    assert asked == []
