"""Connections of the HTTP server: bounded in number, size and time, so that no client can hold up another.

The standard library's server reads a request for as long as its bytes trickle in, and starts a thread for every
connection.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any, Protocol

from metrics.http.http_access import BasicAuth, BusyError, Certificate
from metrics.status_page import CONTENT_SECURITY

LOGGER = logging.getLogger(__name__)
MOST_CONNECTIONS = 64
"""At the same time, a thread each. Scrapers, probes and browsers need a few."""
KEPT_FOR_PROBES = 8
"""Of these connections. All requests but `/healthz` and `/readyz` are asked to come again when only these are left."""
MOST_THREADS = 2 * MOST_CONNECTIONS
"""With those of connections that were closed for others and have not ended yet."""
EXCHANGE_SECONDS = 30.0
"""To send a request after the start of a connection or the last response, and again to read the response."""
STUCK_SECONDS = 5.0
"""A response that takes longer waits for its reader: such a connection may be closed for another."""
HEAD_BYTES = 16 * 1024
"""Request line and headers together."""
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    """One HTTP response, before it is sent."""

    body: bytes
    content_type: str
    status: HTTPStatus = HTTPStatus.OK
    headers: tuple[tuple[str, str], ...] = ()


@dataclass
class Exchange:
    """What a connection does. `since`: monotonic seconds. `answering`: it has a request whose sender may send it; else
    it waits for one, or for the check of a password.
    """

    since: float
    answering: bool = False

    def age(self, now: float) -> float:
        return now - self.since


LOG_IN = Answer(
    b"Log in.\n",
    TEXT,
    HTTPStatus.UNAUTHORIZED,
    (("WWW-Authenticate", 'Basic realm="firnline", charset="UTF-8"'),),
)
"""The response to a client that is not known."""
COME_AGAIN = Answer(b"Too many requests. Come again.\n", TEXT, HTTPStatus.SERVICE_UNAVAILABLE, (("Retry-After", "1"),))
Begin = Callable[[bool], bool]
"""Begin to answer a request, of a probe or not; False: do not answer it."""


def combined(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers by name, each name spelled as `Content-Length`: case means nothing (RFC 9110, 5.1), and HTTP/2 proxies
    send small letters. The values of a name that occurs twice are joined by a comma (5.3): two lengths are none.
    """
    found: dict[str, str] = {}
    for name, value in headers:
        spelled = name.title()
        found[spelled] = f"{found[spelled]}, {value}" if spelled in found else value
    return found


def refusal(auth: BasicAuth | None, headers: Mapping[str, str]) -> Answer | None:
    """Why a client is refused: it has not logged in, or its password cannot be checked now. None: it is known.

    `headers`: as `combined` spells them.
    """
    try:
        return None if auth is None or auth.allows(headers.get("Authorization")) else LOG_IN
    except BusyError:
        return COME_AGAIN


def expendable(exchanges: Mapping[Any, Exchange], now: float) -> Any | None:
    """The connection to close for a new one: the one that has waited longest for its request, else a stuck response.

    None: all are being answered, which takes milliseconds; then the new connection is refused.
    """
    waiting = {key: each for key, each in exchanges.items() if not each.answering}
    stuck = {key: each for key, each in exchanges.items() if each.answering and each.age(now) > STUCK_SECONDS}
    candidates = waiting or stuck
    return min(candidates, key=lambda key: candidates[key].since) if candidates else None


class BodyTaker(Protocol):
    """Takes requests with a body."""

    def refusal(self, path: str, headers: Mapping[str, str]) -> Answer | None:
        """Why a request is refused before its body is read; None: its body is small enough, read it."""

    @property
    def take(self) -> Callable[[str, Mapping[str, str], bytes], Answer]:
        """The response to a request with this body."""


class Server(ThreadingHTTPServer):
    """Serves what `answer` returns for a path and headers, and the way to begin; `taker` gets requests with a body.
    Both get headers as `combined` spells them.

    Raises:
        OSError: the address cannot be bound.
    """

    daemon_threads = True  # a slow client must not delay the end of the service
    request_queue_size = 128

    def __init__(
        self,
        answer: Callable[[str, Mapping[str, str], Begin], Answer],
        address: tuple[str, int],
        family: socket.AddressFamily,
        certificate: Certificate | None = None,
        taker: BodyTaker | None = None,
    ) -> None:
        self.answer = answer
        self.taker = taker
        self.address_family = family
        self._certificate = certificate
        self._exchanges: dict[socket.socket, Exchange] = {}
        self._cut_off: set[socket.socket] = set()  # closed, and their threads have not ended yet
        self._lock = threading.Lock()
        super().__init__(address, Handler)

    def server_bind(self) -> None:
        # HTTPServer.server_bind looks up the host's full name, which takes seconds if DNS does not answer.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        request, address = super().get_request()
        if self._certificate is None:
            return request, address
        try:
            # The handshake waits for the client, so the connection's own thread does it.
            context = self._certificate.context
            return context.wrap_socket(request, server_side=True, do_handshake_on_connect=False), address
        except ValueError as error:
            raise OSError(error) from error
        finally:
            request.close()  # the wrapped socket has taken its descriptor

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002
        """Make room for a new connection, or refuse it."""
        now = time.monotonic()
        with self._lock:
            if len(self._exchanges) + len(self._cut_off) >= MOST_THREADS:
                return False
            if len(self._exchanges) >= MOST_CONNECTIONS:
                victim = expendable(self._exchanges, now)
                if victim is None:
                    return False
                self._cut(victim)
            self._exchanges[request] = Exchange(now)
        return True

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self._certificate is not None:
            request.settimeout(EXCHANGE_SECONDS)
            request.do_handshake()
        super().finish_request(request, client_address)

    def service_actions(self) -> None:
        """Close connections whose exchange takes too long. Called at every poll."""
        now = time.monotonic()
        with self._lock:
            for request in [key for key, each in self._exchanges.items() if each.age(now) > EXCHANGE_SECONDS]:
                self._cut(request)

    def waits(self, request: socket.socket) -> None:
        """A connection has begun to wait for a request."""
        with self._lock:
            self._mark(request, answering=False)

    def begin(self, request: socket.socket, probe: bool = False) -> bool:
        """Begin to answer a request whose sender may send it; False: do not answer it."""
        most = MOST_CONNECTIONS if probe else MOST_CONNECTIONS - KEPT_FOR_PROBES
        with self._lock:
            answering = {key: each for key, each in self._exchanges.items() if each.answering}
            if request not in self._exchanges:
                return False  # it was closed for another one
            if len(answering) >= most:
                stuck = expendable(answering, time.monotonic())
                if stuck is None:
                    return False
                self._cut(stuck)
            self._mark(request, answering=True)
        return True

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._exchanges.pop(request, None)
            self._cut_off.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        # A client that hangs up is not an error of the service. The default prints a traceback to stderr.
        LOGGER.debug("a request from %s ended early: %r", client_address, sys.exception())

    def _mark(self, request: socket.socket, *, answering: bool) -> None:
        """The lock is held."""
        exchange = self._exchanges.get(request)
        if exchange is not None:
            exchange.answering, exchange.since = answering, time.monotonic()

    def _cut(self, request: socket.socket) -> None:
        """End a connection; its thread notices at once, unless it waits for something else. The lock is held."""
        del self._exchanges[request]
        self._cut_off.add(request)
        try:
            # Not SSLSocket.shutdown: for a moment, its thread could then write without encryption.
            socket.socket.shutdown(request, socket.SHUT_RDWR)
        except OSError as error:
            LOGGER.debug("a connection had ended already: %s", error)


class _Head:
    """Reads the head of one request after the other, each of bounded size, and bodies of a given size."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self._stream = stream
        self._left = 0
        self.close = stream.close

    def begin(self) -> None:
        self._left = HEAD_BYTES

    def readline(self, limit: int) -> bytes:
        """Raises HTTPException if the head is too large; the base class answers that."""
        line = self._stream.readline(min(limit, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise HTTPException("the head of the request is too large")
        return line

    def read(self, size: int) -> bytes:
        """A body; shorter if the client ends it early."""
        return self._stream.read(size)


class Handler(BaseHTTPRequestHandler):
    """Answers GET, HEAD, and POST if there is somebody who takes bodies. No page repeats a part of the request."""

    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.1"  # of requests without one: they get a status and headers too
    server_version = "firnline"
    sys_version = ""
    timeout = EXCHANGE_SECONDS  # of one read or write
    server: Server

    def setup(self) -> None:
        super().setup()
        self._head = _Head(self.rfile)
        self.rfile = self._head  # type: ignore[assignment]  # only lines and bodies are read

    def handle_one_request(self) -> None:
        self.server.waits(self.request)
        self._head.begin()
        try:
            super().handle_one_request()
        except HTTPException:  # in the request line; in headers the base class catches it
            self.requestline, self.request_version, self.command = "", "HTTP/1.1", ""
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)

    def parse_request(self) -> bool:
        """Refuse a head with a line that is no header: what follows it was not read, as its `Transfer-Encoding`."""
        if not super().parse_request():
            return False
        if self.headers.defects or self.headers.get_payload():  # after a bare carriage return, headers are a payload
            self.send_error(HTTPStatus.BAD_REQUEST)
            return False
        return True

    def do_GET(self) -> None:
        headers = combined(self.headers.items())
        # Bodies are not read, and must not be taken for the next request.
        if headers.get("Content-Length", "0").strip() != "0" or "Transfer-Encoding" in headers:
            self.close_connection = True
        self._send(self.server.answer(self.path, headers, partial(self.server.begin, self.request)))

    do_HEAD = do_GET  # noqa: N815 - the base class names it so

    def do_POST(self) -> None:
        taker, headers = self.server.taker, combined(self.headers.items())
        if taker is None:
            self.send_error(HTTPStatus.NOT_IMPLEMENTED)
            return
        refusal = taker.refusal(self.path, headers)
        if refusal is not None:
            self.close_connection = True  # its body is not read, and must not be taken for the next request
            self._send(refusal)
            return
        if headers.get("Expect", "").lower() == "100-continue":
            super().handle_expect_100()
        size = int(headers["Content-Length"])
        body = self._head.read(size)
        if len(body) < size:  # the client has gone, or was too slow
            self.close_connection = True
            return
        self._send(taker.take(self.path, headers, body) if self.server.begin(self.request) else COME_AGAIN)

    def handle_expect_100(self) -> bool:
        """The response follows at once, or a POST request asks for its body itself."""
        return True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Log nothing: scrapes and probes come every few seconds."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """A refusal. The base class would repeat the method or the request line."""
        self.close_connection = True
        status = HTTPStatus(code)
        self._send(Answer(f"{status.phrase}\n".encode(), TEXT, status))

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", CONTENT_SECURITY)
        if self.close_connection:
            self.send_header("Connection", "close")
        for name, value in answer.headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
