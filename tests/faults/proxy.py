"""A TCP proxy that breaks the connections which pass it, as networks and overloaded servers do."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

CHUNK = 65536
SLOW_SECONDS = 0.5
CUT_BYTES = 6000
LINGER_NONE = struct.pack("ii", 1, 0)  # close with RST


class Mode(Enum):
    """What happens to connections."""

    PASS = "they pass"  # noqa: S105 - no password
    REFUSE = "they are refused"
    HANG = "nothing passes, and nothing is closed"
    CUT = f"each is reset after {CUT_BYTES} bytes"
    SLOW = f"each part of an answer takes {SLOW_SECONDS} s more"
    STATUS_500 = "every HTTP request gets status 500"
    STATUS_503 = "every HTTP request gets status 503"
    STATUS_429 = "every HTTP request gets status 429"

    @property
    def status(self) -> int | None:
        """The HTTP status that is answered instead of the server."""
        return int(self.name[-3:]) if self.name.startswith("STATUS") else None


@dataclass
class Trap:
    """Waits for a request that contains `pattern`, and springs once. `delivered`: the server gets it, no answer passes.

    `sprung` is called when the request, or its answer, has arrived at the proxy; then the connection is reset.
    """

    pattern: bytes
    delivered: bool
    sprung: Callable[[], None]
    over: bool = False


class FaultyProxy:
    """Listens on a port of its own and forwards to `target`, as `mode` says. Both can be changed at any time."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self._mode = Mode.PASS
        self.trap: Trap | None = None
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def mode(self) -> Mode:
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        """Connections that are open meet a hang or delay; every other change resets them."""
        self._mode = mode
        if mode not in (Mode.HANG, Mode.SLOW):
            with self._lock:
                broken, self._open = self._open, set()
            for each in broken:
                _reset(each)

    def close(self) -> None:
        self._listener.close()
        self.mode = Mode.REFUSE

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        mode = self._mode
        if mode is Mode.REFUSE:
            _reset(client)
            return
        if mode.status is not None:
            _answer(client, mode.status)
            return
        while self._mode is Mode.HANG:
            time.sleep(0.05)
        try:
            server = socket.create_connection(self.target, timeout=10)
        except OSError:
            _reset(client)
            return
        server.settimeout(None)
        with self._lock:
            self._open |= {client, server}
        caught = threading.Event()
        threading.Thread(target=self._pump, args=(client, server, caught), daemon=True).start()
        self._pump(server, client, caught, answers=True)

    def _pump(
        self, source: socket.socket, sink: socket.socket, caught: threading.Event, *, answers: bool = False
    ) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(CHUNK):
                if self._is_caught(data, caught, answers=answers):
                    _reset(sink)
                    _reset(source)
                    break
                while self._mode is Mode.HANG:
                    time.sleep(0.05)
                if answers and self._mode is Mode.SLOW:
                    time.sleep(SLOW_SECONDS)
                if self._mode is Mode.CUT and passed + len(data) > CUT_BYTES:
                    sink.sendall(data[: CUT_BYTES - passed])
                    _reset(sink)
                    _reset(source)
                    break
                passed += len(data)
                sink.sendall(data)
        with self._lock:
            self._open -= {source, sink}
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _is_caught(self, data: bytes, caught: threading.Event, *, answers: bool) -> bool:
        """Whether the trap springs on this data, so that the connection ends here."""
        trap = self.trap
        if trap is None:
            return False
        if answers:
            if not caught.is_set():
                return False
        else:
            if trap.over or trap.pattern not in data:
                return False
            trap.over = True
            if trap.delivered:
                caught.set()
                return False
        trap.sprung()
        return True


def _reset(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
    with suppress(OSError):  # wakes a thread that reads: while it waits, the kernel keeps the connection open
        connection.shutdown(socket.SHUT_RD)
    connection.close()


def _answer(client: socket.socket, status: int) -> None:
    with suppress(OSError):
        client.settimeout(5)
        client.recv(CHUNK)
        client.sendall(f"HTTP/1.1 {status} broken\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        client.shutdown(socket.SHUT_WR)
        time.sleep(0.2)
        client.close()
