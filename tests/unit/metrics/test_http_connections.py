"""Limits of the HTTP server, over real sockets: clients that are slow, large or hostile hold up nobody."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from metrics.http.http_connections import HEAD_BYTES, KEPT_FOR_PROBES, MOST_CONNECTIONS, READ_BYTES
from metrics.http.http_server import MetricsServer, Site
from metrics.status_page import Counting, Health
from tests.integration.service_process import wait_for

CANARY = "c4n4ry"
PAGES = MOST_CONNECTIONS - KEPT_FOR_PROBES


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    made = MetricsServer(Site(CollectorRegistry(), lambda: Health(live=True, ready=True)), "127.0.0.1", 0)
    made.start()
    yield made
    made.stop()


def send(server: MetricsServer, request: bytes) -> bytes:
    """Everything that the server answers until it closes the connection."""
    with socket.create_connection(server.address, timeout=20) as client:
        client.sendall(request)
        received = b""
        try:
            while data := client.recv(65536):
                received += data
        except ConnectionResetError:  # closed with bytes of ours unread
            pass
        return received


def status_of(server: MetricsServer, path: str = "/healthz") -> int:
    connection = http.client.HTTPConnection(*server.address, timeout=20)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def closed(client: socket.socket) -> bool:
    try:
        return client.recv(65536) == b""
    except ConnectionError:
        return True


# Sizes


@pytest.mark.parametrize("start", [b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ", b"GET /"])
def test_a_head_that_is_too_large_is_refused(server: MetricsServer, start: bytes) -> None:
    head = start + b"a" * (HEAD_BYTES + 2 * READ_BYTES)
    assert b" 431 " in send(server, head).splitlines()[0]
    assert status_of(server) == 200


def test_a_body_is_not_taken_for_the_next_request(server: MetricsServer) -> None:
    inner = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"
    size = b"Content-Length: %d" % len(inner)
    for length in (size, b"content-length: 0\r\n" + size, b"transfer-encoding: chunked", b"x\r\n" + size):
        answered = send(server, b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + length + b"\r\n\r\n" + inner)
        assert answered.count(b"HTTP/1.1 ") == 1


# Reflection


@pytest.mark.parametrize(
    "request_line",
    [
        f"<script>{CANARY}</script> / HTTP/1.1", f"GET /{CANARY}<script> HTTP/1.1", f"GET / HTTP/{CANARY}",
        f"{CANARY}", f"GET / HTTP/1.1 {CANARY}", f"POST /{CANARY} HTTP/1.1", f"GET /\x1b[2J{CANARY} HTTP/1.1",
        f"GET //{CANARY}/.. HTTP/1.1", f"GET /?{CANARY} HTTP/9.9", f"TRACE /{CANARY} HTTP/1.1",
    ],
)  # fmt: skip
def test_no_response_repeats_a_part_of_the_request(server: MetricsServer, request_line: str) -> None:
    request = f"{request_line}\r\nX-Test: {CANARY}\r\nConnection: close\r\n\r\n".encode("latin-1")
    answered = send(server, request)
    assert answered.startswith(b"HTTP/1.1 ") or not answered
    assert CANARY.encode() not in answered
    assert b"Content-Type: text/html" not in answered or b" 200 " in answered.splitlines()[0]


# Time


def test_clients_that_send_nothing_or_little_do_not_hold_up_others(server: MetricsServer) -> None:
    held = [socket.create_connection(server.address, timeout=20) for _ in range(2 * MOST_CONNECTIONS)]
    try:
        for number, client in enumerate(held):
            if number % 2:
                client.sendall(b"GET /metr")
        assert [status_of(server) for _ in range(10)] == [200] * 10
    finally:
        for client in held:
            client.close()


def hurried(details: str = "") -> MetricsServer:
    """Its clients have a moment to send a request, and again to read the response."""
    health = Health(live=True, ready=True, details={"x": details})
    made = MetricsServer(Site(CollectorRegistry(), lambda: health), "127.0.0.1", 0, seconds=0.3)
    made.start()
    return made


def test_a_request_that_takes_too_long_is_ended() -> None:
    server = hurried()
    with socket.create_connection(server.address, timeout=20) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ")
        assert closed(client)
    server.stop()


def test_a_response_that_nobody_reads_is_ended() -> None:
    server = hurried("y" * 30_000_000)  # more than the buffers of two sockets
    with socket.create_connection(server.address, timeout=20) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(1)
        wait_for("the connection to be cut", lambda: not server._server._open)  # type: ignore[union-attr]
    server.stop()


class Slow:
    """A server whose status page takes until `released`, and clients that have asked for it."""

    def __init__(self, clients: int) -> None:
        self.released, self.entered = threading.Event(), threading.Semaphore(0)
        site = Site(CollectorRegistry(), lambda: Health(live=True, ready=True), counting=self._counting)
        self.server = MetricsServer(site, "127.0.0.1", 0)
        self.server.start()
        self.clients = [socket.create_connection(self.server.address, timeout=60) for _ in range(clients)]
        for client in self.clients:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

    def _counting(self) -> Counting:
        self.entered.release()
        self.released.wait(60)
        return Counting(1, 1)

    def close(self) -> None:
        self.released.set()
        for client in self.clients:
            client.close()
        self.server.stop()


def test_while_pages_take_long_probes_are_answered_and_other_requests_are_asked_to_come_again() -> None:
    slow = Slow(PAGES)
    try:
        for _ in range(PAGES):
            assert slow.entered.acquire(timeout=60)
        assert [status_of(slow.server) for _ in range(2 * KEPT_FOR_PROBES)] == [200] * 2 * KEPT_FOR_PROBES
        head = send(slow.server, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1\r\n" in head
        slow.released.set()
        assert all(client.recv(12) == b"HTTP/1.1 200" for client in slow.clients)
        assert status_of(slow.server, "/") == 200
    finally:
        slow.close()


def test_a_new_client_is_refused_only_while_all_are_being_answered() -> None:
    released, entered = threading.Event(), threading.Semaphore(0)

    def health() -> Health:
        entered.release()
        released.wait(60)
        return Health(live=True, ready=True)

    server = MetricsServer(Site(CollectorRegistry(), health), "127.0.0.1", 0)
    server.start()
    busy = [socket.create_connection(server.address, timeout=60) for _ in range(MOST_CONNECTIONS)]
    try:
        for client in busy:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        for _ in busy:
            assert entered.acquire(timeout=60)
        with socket.create_connection(server.address, timeout=20) as refused:
            assert closed(refused)
        released.set()
        assert all(client.recv(12) == b"HTTP/1.1 200" for client in busy)
        assert status_of(server) == 200
    finally:
        released.set()
        for client in busy:
            client.close()
        server.stop()
