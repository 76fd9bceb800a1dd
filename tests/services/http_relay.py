"""An HTTP relay that refuses what a rule says: before a server, as an older or stricter store would, or as a proxy.

As a forward proxy it takes requests with a whole address (`GET http://host/path`), which clients send that were told of
a proxy. HTTP only: no tunnels.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import urlsplit

from tests.services.serving import serving

Refused = tuple[int, str, str]
"""Status, code and message, as S3 answers them."""
Rule = Callable[[str, str, Mapping[str, str]], Refused | None]
"""Of method, path and headers with names in lower case; None: the request passes."""
HOP_BY_HOP: Final = {"connection", "proxy-connection", "upgrade", "transfer-encoding", "expect", "content-length"}
TIMEOUT_SECONDS: Final = 60
NO_ROUTES: Final[Mapping[str, tuple[str, int]]] = {}


def passes(_method: str, _path: str, _headers: Mapping[str, str]) -> None:
    """All requests pass."""


def without_checksums(method: str, _path: str, headers: Mapping[str, str]) -> Refused | None:
    """As stores that do not know the checksums which clients of 2025 send by default."""
    if method not in {"PUT", "POST"}:
        return None
    if "chunked" in headers.get("transfer-encoding", "") or "TRAILER" in headers.get("x-amz-content-sha256", ""):
        return 411, "MissingContentLength", "You must provide the Content-Length HTTP header."
    if any(name.startswith("x-amz-checksum-") or name == "x-amz-sdk-checksum-algorithm" for name in headers):
        return 501, "NotImplemented", "A header you provided implies functionality that is not implemented"
    return None


def without_writes(method: str, path: str, _headers: Mapping[str, str]) -> Refused | None:
    """As a policy that allows to read data files, and to write only metadata."""
    if method in {"PUT", "POST"} and "/metadata/" not in path:
        return 403, "AccessDenied", "Access Denied"
    return None


@dataclass
class Relay:
    """`refused`: requests that the rule refused; `hosts`: of the whole addresses that it was asked for as a proxy."""

    rule: Rule
    target: tuple[str, int] | None
    routes: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    endpoint: str = ""
    refused: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def http_relay(
    rule: Rule = passes, target: tuple[str, int] | None = None, routes: Mapping[str, tuple[str, int]] = NO_ROUTES
) -> Iterator[Relay]:
    """Relay to `target`; without one, to where each request wants to go: a proxy, which alone knows the hosts in
    `routes`.
    """
    relay = Relay(rule, target, routes)

    class Handler(_Handler):
        state = relay

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as endpoint:
        relay.endpoint = endpoint
        yield relay


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Relay

    def _go(self) -> None:
        body, relay = self._body(), self.state
        headers = {name.lower(): value for name, value in self.headers.items()}
        to, path = relay.target, self.path
        if to is None:
            parts = urlsplit(self.path)
            to = relay.routes.get(str(parts.hostname)) or (str(parts.hostname), parts.port or 80)
            path = self.path.removeprefix(f"http://{parts.netloc}") or "/"
            with relay.lock:
                relay.hosts.append(parts.netloc)
        refused = relay.rule(self.command, path, headers)
        if refused is not None:
            with relay.lock:
                relay.refused.append(f"{self.command} {path}: {refused[1]}")
            status, code, message = refused
            text = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
            self._answer(status, text, [("Content-Type", "application/xml")])
            return
        server = http.client.HTTPConnection(*to, timeout=TIMEOUT_SECONDS)
        sent = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        if body or self.command in {"PUT", "POST"}:
            sent["Content-Length"] = str(len(body))
        server.request(self.command, path, body, sent)
        answer = server.getresponse()
        known = [(name, value) for name, value in answer.getheaders() if name.lower() not in {*HOP_BY_HOP, "date"}]
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self._answer(answer.status, answer.read(), known, length)
        server.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _go  # noqa: N815

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("Transfer-Encoding") or "").lower():
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(pieces)

    def _answer(self, status: int, body: bytes, headers: list[tuple[str, str]], length: str | None = None) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if status not in {204, 304}:
            self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""
