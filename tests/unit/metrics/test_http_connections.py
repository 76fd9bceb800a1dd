"""Limits of the HTTP server, over real sockets: clients that are slow, large or hostile hold up nobody."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from metrics.http.http_connections import HEAD_BYTES, KEPT_FOR_PROBES, MOST_CONNECTIONS, READ_BYTES
from metrics.http.http_server import MetricsServer
from metrics.service_view import Health, SlotUse
from tests.integration.service_process import wait_for
from tests.unit.metrics.support import WELL, Lazy, Service

CANARY = "c4n4ry"
PAGES = MOST_CONNECTIONS - KEPT_FOR_PROBES


@pytest.fixture
def server(serve) -> MetricsServer:
    return serve()


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


# Time


def test_a_request_that_takes_too_long_is_ended(serve) -> None:
    with socket.create_connection(serve(seconds=0.3).address, timeout=20) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ")
        assert closed(client)


def test_a_response_that_nobody_reads_is_ended(serve) -> None:
    details = {"x": "y" * 30_000_000}  # more than the buffers of two sockets
    server = serve(Service(health=Health(live=True, ready=True, details=details)), seconds=0.3)
    with socket.create_connection(server.address, timeout=20) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(1)
        wait_for("the connection to be cut", lambda: not server._server._open)


class Slow:
    """Whoever asks for `value` gets it once it is `released`."""

    def __init__(self, value: object) -> None:
        self.value, self.released, self.entered = value, threading.Event(), threading.Semaphore(0)

    def __call__(self) -> object:
        self.entered.release()
        self.released.wait(60)
        return self.value

    @contextmanager
    def asked(self, server: MetricsServer, path: str, number: int) -> Iterator[None]:
        """That many clients have asked for the page, and get it in the end."""
        clients = [socket.create_connection(server.address, timeout=60) for _ in range(number)]
        try:
            for client in clients:
                client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            for _ in clients:
                assert self.entered.acquire(timeout=60)
            yield
            self.released.set()
            assert all(client.recv(12) == b"HTTP/1.1 200" for client in clients)
        finally:
            self.released.set()
            for client in clients:
                client.close()


def test_while_pages_take_long_probes_are_answered_and_other_requests_are_asked_to_come_again(serve) -> None:
    slow = Slow(SlotUse())
    server = serve(Lazy(rewriting=slow))
    with slow.asked(server, "/", PAGES):
        assert [status_of(server) for _ in range(2 * KEPT_FOR_PROBES)] == [200] * 2 * KEPT_FOR_PROBES
        head = send(server, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1\r\n" in head
    assert status_of(server, "/") == 200


def test_a_new_client_is_refused_only_while_all_are_being_answered(serve) -> None:
    slow = Slow(WELL)
    server = serve(Lazy(health=slow))
    with slow.asked(server, "/healthz", MOST_CONNECTIONS), socket.create_connection(server.address) as refused:
        assert closed(refused)
    assert status_of(server) == 200
