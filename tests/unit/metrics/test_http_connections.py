"""Limits of the HTTP server, over real sockets: clients that are slow, large or hostile hold up nobody."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry

from metrics.http import http_connections
from metrics.http.http_connections import (
    HEAD_BYTES,
    KEPT_FOR_PROBES,
    MOST_CONNECTIONS,
    MOST_THREADS,
    STUCK_SECONDS,
    Exchange,
    expendable,
)
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


# Which connection is closed for a new one


def test_the_longest_wait_for_a_request_ends_first() -> None:
    exchanges = {"old": Exchange(1.0), "older": Exchange(0.5), "new": Exchange(9.0)}
    assert expendable(exchanges, 10.0) == "older"


def test_what_is_being_answered_is_not_closed_for_others() -> None:
    exchanges = {"old": Exchange(0.0, answering=True), "waits": Exchange(9.0)}
    assert expendable(exchanges, 10.0) == "waits"


def test_a_response_that_nobody_reads_is_closed_before_a_client_is_refused() -> None:
    now = 100.0
    exchanges = {"stuck": Exchange(now - STUCK_SECONDS - 1, answering=True), "works": Exchange(now, answering=True)}
    assert expendable(exchanges, now) == "stuck"
    assert expendable({"works": Exchange(now, answering=True)}, now) is None


# Sizes


def test_a_head_that_is_too_large_is_refused(server: MetricsServer) -> None:
    head = b"GET /healthz HTTP/1.1\r\n" + b"X-A: " + b"a" * HEAD_BYTES + b"\r\n\r\n"
    assert b" 431 " in send(server, head).splitlines()[0]
    many = b"GET /healthz HTTP/1.1\r\n" + b"".join(b"A%d: b\r\n" % number for number in range(200)) + b"\r\n"
    assert b" 431 " in send(server, many).splitlines()[0]
    assert status_of(server) == 200


def test_a_request_line_that_is_too_long_is_refused(server: MetricsServer) -> None:
    assert b" 414 " in send(server, b"GET /" + b"a" * HEAD_BYTES + b" HTTP/1.1\r\n\r\n").splitlines()[0]
    assert status_of(server) == 200


def test_a_body_is_not_taken_for_the_next_request(server: MetricsServer) -> None:
    inner = b"GET /readyz HTTP/1.1\r\n\r\n"
    size = b"Content-Length: %d" % len(inner)
    for length in (size, b"content-length: 0\r\n" + size, b"transfer-encoding: chunked", b"x\r\n" + size):
        answered = send(server, b"GET /healthz HTTP/1.1\r\n" + length + b"\r\n\r\n" + inner)
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
        assert len(server._server._exchanges) <= MOST_CONNECTIONS  # type: ignore[union-attr]
    finally:
        for client in held:
            client.close()


def test_a_request_that_takes_too_long_is_ended(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "EXCHANGE_SECONDS", 0.3)
    with socket.create_connection(server.address, timeout=20) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nX-A: ")
        assert closed(client)
    wait_for("its place to be free", lambda: not server._server._exchanges)  # type: ignore[union-attr]


def test_a_response_that_nobody_reads_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "EXCHANGE_SECONDS", 0.3)
    large = Health(live=True, ready=True, details={"x": "y" * 30_000_000})  # more than the buffers of two sockets
    server = MetricsServer(Site(CollectorRegistry(), lambda: large), "127.0.0.1", 0)
    server.start()
    try:
        with socket.create_connection(server.address, timeout=20) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            wait_for("the connection to be cut", lambda: not server._server._exchanges)  # type: ignore[union-attr]
    finally:
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
            client.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")

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
        head = send(slow.server, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1\r\n" in head
        slow.released.set()
        assert all(client.recv(12) == b"HTTP/1.1 200" for client in slow.clients)
        assert status_of(slow.server, "/") == 200
    finally:
        slow.close()


def test_a_page_that_is_stuck_is_closed_before_a_request_is_asked_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Slow(PAGES)
    try:
        for _ in range(PAGES):
            assert slow.entered.acquire(timeout=60)
        monkeypatch.setattr(http_connections, "STUCK_SECONDS", 0.0)
        assert status_of(slow.server, "/metrics") == 200
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
            client.sendall(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
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


def test_threads_of_closed_connections_count_until_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their pages take long, and closing a connection does not end that."""
    monkeypatch.setattr(http_connections, "STUCK_SECONDS", 0.0)
    others = set(threading.enumerate())  # of servers of other tests
    slow = Slow(0)
    clients = slow.clients

    def handlers() -> int:
        return sum("process_request_thread" in each.name for each in threading.enumerate() if each not in others)

    def one_more_is_refused() -> bool:
        client = socket.create_connection(slow.server.address, timeout=1)
        with suppress(OSError):
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        if slow.entered.acquire(timeout=1):  # its page is being made, until `released`
            clients.append(client)
            return False
        with client, suppress(TimeoutError):
            return closed(client) and handlers() >= MOST_THREADS
        return False

    try:
        wait_for("a connection to be refused", one_more_is_refused, every=0.0)
        wait_for("threads that are ending to end", lambda: handlers() <= MOST_THREADS)
        slow.released.set()
        wait_for("an answer", lambda: handlers() <= MOST_CONNECTIONS)
        assert status_of(slow.server) == 200
    finally:
        slow.close()
