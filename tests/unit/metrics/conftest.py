"""HTTP servers of a test, stopped when it ends; and the log from INFO on."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import CollectorRegistry

from metrics.http.http_server import MetricsServer, Site
from tests.unit.metrics.http_support import WELL


@pytest.fixture
def serve():
    """Starts servers on free ports; they are stopped when the test ends."""
    servers = []

    def start(**site):
        site.setdefault("registry", CollectorRegistry())
        site.setdefault("health", lambda: WELL)
        server = MetricsServer(Site(**site), "127.0.0.1", 0)
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def info_logged(caplog):
    caplog.set_level(logging.INFO)
