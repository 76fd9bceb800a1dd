"""Requests with a body, over real sockets: only of known senders, of bounded size, and none is taken by halves."""

from __future__ import annotations

import base64
import http.client
import socket
from collections.abc import Iterator, Mapping
from http import HTTPStatus

import bcrypt
import pytest

from metrics.http.http_access import BasicAuth
from metrics.http.http_answer import TEXT, Answer
from metrics.http.http_intake import Intake
from metrics.http.http_server import MetricsServer
from tests.unit.metrics.support import site
from tests.unit.metrics.test_http_connections import send

PASSWORD = "open sesame"  # noqa: S105
KNOWN = {"Authorization": "Basic " + base64.b64encode(f"sender:{PASSWORD}".encode()).decode()}
MOST = 1000


class Receiver:
    """A server that takes bodies at one path, and what it took."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, bytes]] = []
        self.unread: list[HTTPStatus] = []
        auth = BasicAuth({"sender": bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()})
        self.closed: Answer | None = None
        intake = Intake(
            auth,
            lambda path: path == "/v1/events",
            self._take,
            MOST,
            closed=lambda: self.closed,
            unread=self.unread.append,
        )
        self.server = MetricsServer(site(), "127.0.0.1", 0, auth=auth, intake=intake)
        self.server.start()

    def _take(self, path: str, _headers: Mapping[str, str], body: bytes) -> Answer:
        self.taken.append((path, body))
        return Answer(b"taken\n", TEXT, HTTPStatus.ACCEPTED)

    def post(self, path: str, body: bytes, headers: Mapping[str, str] = KNOWN, method: str = "POST") -> int:
        connection = http.client.HTTPConnection(*self.server.address, timeout=20)
        try:
            connection.request(method, path, body, dict(headers))
            return connection.getresponse().status
        finally:
            connection.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.stop()


def head(length: object, *more: str) -> bytes:
    lines = [
        "POST /v1/events HTTP/1.1",
        "Host: x",
        f"Authorization: {KNOWN['Authorization']}",
        f"Content-Length: {length}",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def test_bodies_of_known_senders_are_taken_one_after_the_other_on_one_connection(receiver: Receiver) -> None:
    connection = http.client.HTTPConnection(*receiver.server.address, timeout=20)
    for number in range(3):
        connection.request("POST", "/v1/events", b"x" * number, KNOWN)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (202, b"taken\n")
    connection.close()
    assert receiver.taken == [("/v1/events", b""), ("/v1/events", b"x"), ("/v1/events", b"xx")]


@pytest.mark.parametrize(
    ("path", "size", "headers", "status"),
    [
        ("/v1/events", 1, {}, 401),
        ("/v1/events", 1, {"Authorization": "Basic c2VuZGVyOndyb25n"}, 401),
        ("/v1/events", 1, {"Authorization": "Bearer token"}, 401),
        ("/v1/events", MOST + 1, KNOWN, 413),
        ("/metrics", 1, KNOWN, 404),
        ("/", 1, KNOWN, 404),
    ],
)
def test_what_is_refused_is_refused_without_its_body(
    receiver: Receiver, path: str, size: int, headers: Mapping[str, str], status: int
) -> None:
    assert receiver.post(path, b"x" * size, headers) == status
    assert receiver.taken == []
    assert receiver.unread == ([] if status == HTTPStatus.NOT_FOUND else [status])


@pytest.mark.parametrize("length", ["-1", "+1", "1.0", "", "ten", "0x10", "1e3", "1_0", "9" * 5000])
def test_a_wrong_length_is_refused(receiver: Receiver, length: str) -> None:
    assert send(receiver.server, head(length)).startswith(b"HTTP/1.1 400 ")
    assert receiver.taken == []


def test_names_of_headers_have_no_case(receiver: Receiver) -> None:
    small = {name.lower(): value for name, value in KNOWN.items()}
    lines = f"authorization: {KNOWN['Authorization']}\r\ncontent-length: 5\r\nconnection: close"
    request = f"POST /v1/events HTTP/1.1\r\nHost: x\r\n{lines}\r\n\r\nhello".encode()
    assert send(receiver.server, request).startswith(b"HTTP/1.1 202 ")
    assert receiver.taken == [("/v1/events", b"hello")]
    assert receiver.post("/metrics", b"", small, "GET") == 200


@pytest.mark.parametrize(
    "more",
    [
        "transfer-encoding: chunked", "TRANSFER-ENCODING: identity", "content-length: 6",
        "no header\r\nTransfer-Encoding: chunked", "Transfer-Encoding : chunked",
        "X: a\r\r\nTransfer-Encoding: chunked",
    ],
)  # fmt: skip
def test_of_a_body_whose_end_is_not_certain_nothing_is_taken(receiver: Receiver, more: str) -> None:
    """Neither as an event nor as the next request: a proxy may have seen another end."""
    answered = send(receiver.server, head(5, more) + b"hello" + head(5) + b"again")
    assert answered.startswith((b"HTTP/1.1 411 ", b"HTTP/1.1 400 ", b"HTTP/1.1 501 "))
    assert answered.count(b"HTTP/1.1 ") == 1
    assert receiver.taken == []


def test_while_the_intake_is_closed_known_senders_learn_why(receiver: Receiver) -> None:
    receiver.closed = Answer(b"Not yet.\n", TEXT, HTTPStatus.SERVICE_UNAVAILABLE, (("Retry-After", "5"),))
    answered = send(receiver.server, head(5) + b"hello")
    assert answered.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 5\r\n" in answered
    assert answered.endswith(b"Not yet.\n")
    assert receiver.unread == [HTTPStatus.SERVICE_UNAVAILABLE]
    assert receiver.post("/v1/events", b"x", {}) == 401
    assert receiver.post("/elsewhere", b"x") == 404
    assert receiver.taken == []
    receiver.closed = None
    assert receiver.post("/v1/events", b"x") == 202


def test_half_a_body_is_not_taken(receiver: Receiver) -> None:
    with socket.create_connection(receiver.server.address, timeout=20) as client:
        client.sendall(head(10) + b"hello")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")
    assert receiver.taken == []


def test_a_refused_body_is_not_the_next_request(receiver: Receiver) -> None:
    inner = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    request = b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(inner) + inner
    assert send(receiver.server, request).count(b"HTTP/1.1 ") == 1


def test_a_sender_that_waits_for_leave_gets_it(receiver: Receiver) -> None:
    with socket.create_connection(receiver.server.address, timeout=20) as client:
        client.sendall(head(5, "Expect: 100-continue"))
        assert client.recv(100).startswith(b"HTTP/1.1 100 ")
        client.sendall(b"hello")
        assert client.recv(100).startswith(b"HTTP/1.1 202 ")
    assert receiver.taken == [("/v1/events", b"hello")]


def test_without_an_intake_no_body_is_taken(serve) -> None:
    request = b"POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
    assert send(serve(), request).startswith(b"HTTP/1.1 501 ")
