"""HTTP servers of a test, stopped when it ends; and the log from INFO on."""

from __future__ import annotations

import logging

import pytest

from metrics.http.http_server import MetricsServer
from tests.unit.metrics.support import site


@pytest.fixture
def serve():
    """Starts servers of a site on free ports; they are stopped when the test ends."""
    servers = []

    def start(service=None, *, registry=None, board=None, recent=None, **options):
        shown = site(service, registry=registry, board=board, recent=recent)
        server = MetricsServer(shown, options.pop("host", "127.0.0.1"), options.pop("port", 0), **options)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def info_logged(caplog):
    caplog.set_level(logging.INFO)
