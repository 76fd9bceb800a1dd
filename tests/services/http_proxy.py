"""HTTP servers of tests that stand before another server: they pass requests on, and change, refuse or delay some."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from tests.services.certificates import Certificates
from tests.services.serving import serving
from tests.services.waiting import PATIENCE

NOT_PASSED_ON: Final = frozenset(
    {"connection", "proxy-connection", "keep-alive", "upgrade", "transfer-encoding", "expect", "content-length",
     "accept-encoding", "server", "date"}
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What a server answered, without headers that concern its connection."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, status: int, document: Any) -> Answer:
        """A JSON document."""
        return cls(status, json.dumps(document).encode(), {"Content-Type": "application/json"})

    @classmethod
    def refusal(cls, status: int, code: str, message: str) -> Answer:
        """As S3 refuses a request."""
        text = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
        return cls(status, text.encode(), {"Content-Type": "application/xml"})

    @classmethod
    def error(cls, status: int, kind: str, message: str) -> Answer:
        """As a REST catalog refuses a request."""
        return cls.of(status, {"error": {"message": message, "type": kind, "code": status}})


def send(server: str, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
    """Send a request to a server, given as `host:port` or by its address."""
    connection = http.client.HTTPConnection(server.removeprefix("http://"), timeout=PATIENCE)
    try:
        sent = {name: value for name, value in headers.items() if name.lower() not in NOT_PASSED_ON}
        connection.request(method, path, body or None, sent)
        answer = connection.getresponse()
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in NOT_PASSED_ON}
        if method == "HEAD" and answer.headers.get("Content-Length"):
            kept["Content-Length"] = answer.headers["Content-Length"]
        return Answer(answer.status, answer.read(), kept)
    finally:
        connection.close()


class Proxy(BaseHTTPRequestHandler):
    """Answers requests with what `answer_to` says; subclasses say it. `state`: what `proxy` was given."""

    protocol_version = "HTTP/1.1"
    timeout = PATIENCE

    def answer_to(self, body: bytes) -> Answer:
        raise NotImplementedError

    @property
    def state(self) -> Any:
        return self.server.state  # type: ignore[attr-defined]

    def passed_on(self, server: str, body: bytes) -> Answer:
        return send(server, self.command, self.path, body, dict(self.headers))

    def do_GET(self) -> None:
        try:
            answer = self.answer_to(self._body())
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if "Content-Length" not in answer.headers and answer.status not in {204, 304}:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    do_POST = do_HEAD = do_DELETE = do_PUT = do_GET  # noqa: N815 - names of the standard library

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("Transfer-Encoding") or "").lower():
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def log_message(self, *_arguments: object) -> None:
        """Quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that go away, or that do not trust the certificate."""


@contextmanager
def proxy(handler: type[Proxy], state: object, certificates: Certificates | None = None) -> Iterator[str]:
    """Let `handler` answer on a port of 127.0.0.1 during the block; yields the address. With certificates: HTTPS."""
    server = _Server(("127.0.0.1", 0), handler)
    server.state = state  # type: ignore[attr-defined]
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.certificate, certificates.key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    with serving(server) as address:
        yield address if certificates is None else address.replace("http:", "https:")
