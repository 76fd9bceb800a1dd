"""A relay before a REST catalog: each call waits some milliseconds on its way, and is noted in a file.

It runs in a process of its own, so that it shares no interpreter lock with what is measured. It parses only request
lines, content lengths and the status of answers; bytes of answers pass as they are. A line of the file is: time of the
request, time of the answer's first byte, status, kind of the call, table (separated by tabs).

    python -m tests.benchmarks.fleet.catalog_proxy --to http://127.0.0.1:8181 --port 8182 --delay-ms 5 --calls FILE
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, cast
from urllib.parse import unquote, urlsplit

END_OF_HEAD = b"\r\n\r\n"
END_OF_CHUNKS = b"0\r\n\r\n"
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked", re.IGNORECASE)
FLUSH_SECONDS = 0.1

KINDS = {
    ("GET", "table"): "load table",
    ("HEAD", "table"): "check table",
    ("POST", "table"): "commit",
    ("DELETE", "table"): "drop table",
    ("GET", "tables"): "list tables",
    ("POST", "tables"): "create table",
    ("GET", "namespaces"): "list namespaces",
    ("POST", "namespaces"): "create namespace",
    ("GET", "namespace"): "load namespace",
    ("POST", "metrics"): "report metrics",
    ("GET", "config"): "config",
}


def kind_of(method: str, target: str) -> tuple[str, str]:
    """The kind of a call, and its table as `namespace.table` (empty for calls about no table)."""
    parts = urlsplit(target).path.strip("/").split("/")
    if "namespaces" not in parts:
        return KINDS.get((method, parts[-1]), f"{method} {parts[-1]}"), ""
    names = [unquote(part).replace("\x1f", ".") for part in parts[parts.index("namespaces") + 1 :]]
    match names:
        case []:
            place = "namespaces"
        case [_]:
            place = "namespace"
        case [_, place]:
            pass
        case [_, "tables", _]:
            place = "table"
        case _:
            place = names[-1]
    table = f"{names[0]}.{names[2]}" if len(names) > 2 and names[1] == "tables" else ""
    return KINDS.get((method, place), f"{method} {place}"), table


@dataclass
class Relay:
    """What all connections share."""

    host: str
    port: int
    delay: float
    calls: TextIO

    def note(self, started: float, status: int, kind: str, table: str) -> None:
        self.calls.write(f"{started:.4f}\t{time.time():.4f}\t{status}\t{kind}\t{table}\n")

    def flush(self) -> None:
        self.calls.flush()
        asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)


class Server(asyncio.Protocol):
    """The connection to the catalog that belongs to one client's connection."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def data_received(self, data: bytes) -> None:
        self.client.answered(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self.client.server_left()


@dataclass(eq=False)
class Client(asyncio.Protocol):
    """A client's connection. Clients send no request before the last one is answered."""

    relay: Relay
    transport: asyncio.Transport | None = None
    server: asyncio.Transport | None = None
    received: bytearray = field(default_factory=bytearray)
    call: tuple[float, str, str] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _error: Exception | None) -> None:
        if self.server is not None:
            self.server.close()

    def data_received(self, data: bytes) -> None:
        self.received += data
        end = self._end_of_request()
        if end < 0:
            return
        request, self.received = bytes(self.received[:end]), self.received[end:]
        method, target, _ = request[: request.index(b"\r\n")].decode("latin-1").split(" ", 2)
        kind, table = kind_of(method, target)
        self.call = (time.time(), kind, table)
        asyncio.get_running_loop().call_later(self.relay.delay, self._forward, request)

    def _end_of_request(self) -> int:
        """Where the request ends in what was received; -1 while it is not complete."""
        end = self.received.find(END_OF_HEAD)
        if end < 0:
            return -1
        head, body = self.received[: end + 2], end + len(END_OF_HEAD)
        length = LENGTH.search(head)
        if length is not None:
            body += int(length[1])
        elif CHUNKED.search(head):
            last = self.received.find(END_OF_CHUNKS, body)
            return -1 if last < 0 else last + len(END_OF_CHUNKS)
        return body if len(self.received) >= body else -1

    def _forward(self, request: bytes) -> None:
        if self.server is not None:
            self.server.write(request)
        else:  # the first request, or the catalog has closed an idle connection
            connecting = asyncio.ensure_future(self._connect(request))
            connecting.add_done_callback(self._connected)

    async def _connect(self, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        made: Any = await loop.create_connection(lambda: Server(self), self.relay.host, self.relay.port)
        self.server = made[0]
        made[0].write(request)

    def _connected(self, done: asyncio.Future[None]) -> None:
        if done.exception() is not None and self.transport is not None:
            self.transport.abort()

    def answered(self, data: bytes) -> None:
        """A piece of an answer; the first one begins with its status."""
        if self.call is not None:
            started, kind, table = self.call
            self.call = None
            self.relay.note(started, int(data[9:12]), kind, table)
        if self.transport is not None:
            self.transport.write(data)

    def server_left(self) -> None:
        """The catalog closed its side; an idle client does not notice."""
        self.server = None
        if self.call is not None and self.transport is not None:
            self.transport.abort()


async def serve(relay: Relay, port: int) -> None:
    loop = asyncio.get_running_loop()
    relay.flush()
    server = await loop.create_server(lambda: Client(relay), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", required=True, help="The catalog's URI.")
    parser.add_argument("--port", type=int, required=True, help="Port on 127.0.0.1.")
    parser.add_argument("--delay-ms", type=float, default=5.0)
    parser.add_argument("--calls", type=Path, required=True, help="File of calls; lines are appended.")
    options = parser.parse_args()
    target = urlsplit(options.to)
    with options.calls.open("a", encoding="utf-8") as calls:
        relay = Relay(target.hostname or "127.0.0.1", target.port or 80, options.delay_ms / 1000, calls)
        asyncio.run(serve(relay, options.port))


if __name__ == "__main__":
    main()
