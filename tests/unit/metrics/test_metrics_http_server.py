"""The HTTP server, asked over real sockets: metrics, health, requests of every kind, addresses and ports."""

from __future__ import annotations

import errno
import gzip
import json
import socket
import threading
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.openmetrics import parser as openmetrics

from compactor.errors import InputError
from metrics.http.http_server import MetricsServer
from metrics.recorder import Recorder
from metrics.service_view import Health
from tests.integration.service_process import wait_for
from tests.services.prometheus import installed as prometheus_installed
from tests.services.prometheus import prometheus
from tests.unit.metrics.support import WELL, Lazy, Service, ask, site
from tests.unit.metrics.test_metrics_recorder import COMMITTED as RUN_COMMITTED
from tests.unit.metrics.test_metrics_recorder import REWRITTEN

pytestmark = pytest.mark.usefixtures("info_logged")


def counted() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("firnline_commits_total", "Runs committed.", registry=registry).inc(3)
    return registry


OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"


def test_metrics_in_openmetrics_when_asked(serve):
    _, headers, body = ask(serve(registry=counted()), "/metrics", Accept=OPENMETRICS)
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"firnline_commits_total 3.0\n# EOF\n")
    assert b"_created" not in body


def test_exemplars_lead_from_a_figure_to_its_run_where_the_format_has_them(serve):
    registry = CollectorRegistry()
    recorder = Recorder(registry)
    for event in (REWRITTEN, RUN_COMMITTED):
        recorder(replace(event, run_id="run-7"))
    server = serve(registry=registry)
    families = {
        family.name: family.samples
        for family in openmetrics.text_string_to_metric_families(
            ask(server, "/metrics", Accept=OPENMETRICS)[2].decode()
        )
    }
    led = {name for name, samples in families.items() for sample in samples if sample.exemplar is not None}
    assert led == {
        "firnline_rewrite_groups",
        "firnline_run_stage_seconds",
        "firnline_commits",
        "firnline_event_to_compacted_seconds",
    }
    (sample,) = [sample for sample in families["firnline_rewrite_groups"] if sample.exemplar]
    assert (sample.exemplar.labels, sample.exemplar.value) == ({"run_id": "run-7"}, 1.0)
    assert b"run-7" not in ask(server, "/metrics")[2]


@pytest.mark.skipif(not prometheus_installed(), reason="prometheus is not installed; `make test-monitoring` does it")
def test_a_real_prometheus_keeps_the_exemplars(serve, tmp_path):
    registry = CollectorRegistry()
    Recorder(registry)(replace(RUN_COMMITTED, run_id="run-7"))
    host, port = serve(registry=registry).address
    with prometheus(tmp_path, f"{host}:{port}") as server:
        found = wait_for("a scrape", lambda: server.exemplars("firnline_event_to_compacted_seconds_bucket"))
    assert found == [{"run_id": "run-7"}]


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text;version=abc", "text/plain;version=x.y", ",;=;,", "*/*"]
)
def test_odd_accept_headers_get_the_plain_format(serve, accept):
    status, headers, body = ask(serve(registry=counted()), "/metrics", Accept=accept)
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b"firnline_commits_total 3.0" in body


def test_folded_accept_header_does_not_break_the_response_headers():
    answer = site(registry=counted()).answer(
        "/metrics", {"Accept": "application/openmetrics-text;version=1.1.\r\n Evil: 1"}
    )
    assert "\n" not in answer.content_type
    assert "\r" not in answer.content_type


def test_metrics_are_compressed_when_asked(serve):
    server = serve(registry=counted())
    _, headers, body = ask(server, "/metrics", Accept_Encoding="br, gzip;q=0.8")
    assert headers["Content-Encoding"] == "gzip"
    assert b"firnline_commits_total 3.0" in gzip.decompress(body)
    _, headers, body = ask(server, "/metrics", Accept_Encoding="identity")
    assert headers["Content-Encoding"] is None
    assert b"firnline_commits_total 3.0" in body


def test_readyz_turns_from_503_to_200_and_names_the_part(serve):
    service = Service(health=Health(live=True, ready=False, details={"stream": "still starting"}))
    server = serve(service)
    status, headers, body = ask(server, "/readyz")
    assert (status, headers["Content-Type"]) == (503, "application/json")
    assert json.loads(body) == {"live": True, "ready": False, "details": {"stream": "still starting"}}
    assert ask(server, "/healthz")[0] == 200
    service.health = WELL
    assert ask(server, "/readyz")[0] == 200


def test_health_check_that_raises_is_not_well_and_is_logged(serve, caplog):
    def broken():
        raise RuntimeError("secret address")

    server = serve(Lazy(health=broken))
    status, _, body = ask(server, "/healthz")
    assert status == 503
    assert json.loads(body)["details"]["health"].startswith("the check failed")
    assert b"secret" not in body
    assert "the health check itself failed" in caplog.text


def test_failing_collector_is_a_500_that_hides_the_cause_and_the_server_lives_on(serve, caplog):
    class Broken:
        def describe(self):
            return []

        def collect(self):
            raise RuntimeError("secret address")

    registry = CollectorRegistry()
    registry.register(Broken())
    server = serve(registry=registry)
    status, _, body = ask(server, "/metrics")
    assert status == 500
    assert b"log" in body
    assert b"secret" not in body
    assert "secret address" in caplog.text
    assert ask(server, "/healthz")[0] == 200


def test_unknown_path_is_a_404_with_a_hint(serve):
    status, headers, body = ask(serve(), "/metric<s>")
    assert (status, headers["Content-Type"]) == (404, "text/plain; charset=utf-8")
    assert b"Try /, /api/v1/status, /metrics, /healthz, /readyz" in body


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz", "/readyz", "/nothing"])
def test_head_has_the_headers_of_get_and_no_body(serve, path):
    server = serve(registry=counted())
    got_status, got_headers, got_body = ask(server, path)
    status, headers, body = ask(server, path, method="HEAD")
    assert (status, body) == (got_status, b"")
    assert headers["Content-Length"] == got_headers["Content-Length"] == str(len(got_body))
    assert headers["Content-Type"] == got_headers["Content-Type"]


def test_requests_are_not_logged_to_stderr(serve, capfd):
    server = serve()
    ask(server, "/metrics")
    ask(server, "/nothing")
    ask(server, "/metrics", method="POST")
    server.stop()
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_client_that_hangs_up_leaves_no_traceback_on_stderr(serve, capfd):
    arrived, gone = threading.Event(), threading.Event()

    def slow():
        arrived.set()
        gone.wait(5)
        return WELL

    server = serve(Lazy(health=slow))
    with socket.create_connection(server.address) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
        arrived.wait(5)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close with a reset
    gone.set()
    for _ in range(20):
        assert ask(server, "/healthz")[0] == 200
    server.stop()
    assert capfd.readouterr().err == ""


def test_port_in_use_names_the_setting_and_the_way_out(serve):
    _, port = serve().address
    second = MetricsServer(site(), "127.0.0.1", port)
    with pytest.raises(
        InputError, match=rf"^http\.port: port {port} on '127.0.0.1' is already in use; .* set http.port"
    ):
        second.start()
    second.stop()


@pytest.mark.parametrize(
    ("host", "port", "key"),
    [("127.0.0.1", 70_000, "http.port"), ("203.0.113.7", 0, "http.host"), ("no such host", 0, "http.host")],
)
def test_address_that_cannot_be_bound_names_the_setting(host, port, key):
    with pytest.raises(InputError, match=f"^{key}: .* set {key} to"):
        MetricsServer(site(), host, port).start()


def test_port_without_permission_names_the_setting(monkeypatch):
    def refuse(*_args, **_options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(InputError, match=r"^http\.port: no permission to listen on port 80; set http\.port"):
        MetricsServer(site(), "127.0.0.1", 80).start()


def test_stop_frees_the_port_and_both_may_be_called_twice(serve):
    server = serve()
    _, port = server.address
    server.start()
    assert server.address == ("127.0.0.1", port)
    server.stop()
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    again = MetricsServer(site(), "127.0.0.1", port)
    again.start()
    assert again.address == ("127.0.0.1", port)
    assert ask(again, "/healthz")[0] == 200
    again.stop()
    assert again.address == ("127.0.0.1", port)
