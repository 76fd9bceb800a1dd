"""Hostile HTTP requests, sent over sockets as they are. The same requests for the same seed."""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "h0st1le"
"""In every request, and therefore in no answer."""
PATHS = (
    "/metrics", "/", "/healthz", "/readyz", "/api/v1/status", f"/{MARK}", f"/../../etc/passwd?{MARK}",
    f"//{MARK}.example/",
    f"/%2e%2e/{MARK}", f"/<script>{MARK}</script>", f"/\x00{MARK}", f"/metrics?name[]={MARK}", f"/{MARK}" * 300,
    f"http://{MARK}.example/", f"/\x1b[31m{MARK}", f"/{MARK}%0d%0aSet-Cookie:x", "*", "", f"/metrics/{MARK}",
)  # fmt: skip
METHODS = (
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "TRACE",
    "OPTIONS",
    "CONNECT",
    "PRI",
    MARK,
    f"<{MARK}>",
    "get",
    "G\x00T",
)
VERSIONS = ("HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9.9", f"HTTP/{MARK}", "", f"HTTP/1.1 {MARK}", "HTTP/1.1.1")
HEADERS = (
    f"X: {MARK}", f"Host: {MARK}", f"Host: {MARK}\r\nHost: other", "Content-Length: 99999999999", "Content-Length: -1",
    "Content-Length: 5\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked", "Expect: 100-continue",
    f"Accept: application/openmetrics-text;version=1.0.0{MARK}", "Accept-Encoding: gzip;q=1" + ",gzip" * 500,
    f"Authorization: Basic {MARK}", f"Authorization: Bearer {MARK}", "Authorization: Basic " + "A" * 8000,
    f" folded {MARK}", f"no colon {MARK}", f"Range: bytes=0-{MARK}", "Connection: Upgrade, HTTP2-Settings",
    f"X-Forwarded-For: {MARK}", f"Cookie: {MARK}", "\x00: \x00", f"Referer: <script>{MARK}</script>",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A server. `trust`: the authority of its certificate, if it serves HTTPS."""

    host: str
    port: int
    trust: Path | None = None

    def connect(self) -> socket.socket:
        """A connection with the handshake done."""
        plain = socket.create_connection((self.host, self.port), timeout=30)
        if self.trust is None:
            return plain
        context = ssl.create_default_context(cafile=str(self.trust))
        return context.wrap_socket(plain, server_hostname=self.host)

    def send(self, request: bytes) -> bytes:
        """Send, say that nothing more comes, and read to the end."""
        received = b""
        with suppress(OSError), self.connect() as client:  # refused, reset or cut: as it deserves
            client.sendall(request)
            socket.socket.shutdown(client, socket.SHUT_WR)  # of TLS too: SSLSocket's own would stop reading as well
            while data := client.recv(1 << 16):
                received += data
        return received


def hostile_request(rng: random.Random) -> bytes:
    """One request, or something that is none."""
    kinds: tuple[tuple[Callable[[random.Random], bytes], int], ...] = (
        (_odd, 70), (_large, 8), (_pipelined, 8), (_smuggled, 6), (_noise, 6), (_other_protocol, 2),
    )  # fmt: skip
    return rng.choice([kind for kind, weight in kinds for _ in range(weight)])(rng)


def _odd(rng: random.Random) -> bytes:
    lines = [f"{rng.choice(METHODS)} {rng.choice(PATHS)} {rng.choice(VERSIONS)}"]
    lines += [rng.choice(HEADERS) for _ in range(rng.randrange(6))]
    lines += [f"X-Mark: {MARK}", "Connection: close"]
    return ("\r\n".join(lines) + rng.choice(["\r\n\r\n", "\n\n", "\r\n", ""])).encode("latin-1", "replace")


def _large(rng: random.Random) -> bytes:
    """Longer than a head may be, in one of its parts."""
    filler = MARK * rng.randrange(100, 20_000)
    match rng.randrange(3):
        case 0:
            return f"GET /{filler} HTTP/1.1\r\n\r\n".encode()
        case 1:
            return f"GET / HTTP/1.1\r\nX: {filler}\r\n\r\n".encode()
        case _:
            return b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % number for number in range(500)) + b"\r\n"


def _pipelined(rng: random.Random) -> bytes:
    one = f"GET {rng.choice(['/healthz', '/readyz', f'/{MARK}'])} HTTP/1.1\r\nX: {MARK}\r\n\r\n".encode()
    return one * rng.randrange(2, 30) + b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n"


def _smuggled(rng: random.Random) -> bytes:
    """A request inside of the body of another."""
    inner = f"GET /{MARK} HTTP/1.1\r\n\r\n".encode()
    lengths = (f"Content-Length: {len(inner)}", "Transfer-Encoding: chunked", "Content-Length: 0\r\nContent-Length: 9")
    head = f"{rng.choice(['GET', 'POST', 'HEAD'])} /healthz HTTP/1.1\r\n{rng.choice(lengths)}\r\n\r\n".encode()
    return head + inner


def _noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(2000)) + b"\r\n\r\n"


def _other_protocol(rng: random.Random) -> bytes:
    """HTTP/2, TLS, SSH, Kafka."""
    return rng.choice(
        [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 30,
            bytes.fromhex("16030100c8010000c40303") + rng.randbytes(195),
            b"SSH-2.0-OpenSSH_9.6\r\n",
            b"\x00\x00\x00\x12\x00\x12\x00\x03" + rng.randbytes(20),
        ]
    )
