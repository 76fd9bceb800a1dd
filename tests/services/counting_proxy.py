"""A TCP relay that counts the bytes it carries and looks for a text: a witness of what went over the wire."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_CHUNK = 256 * 1024


@dataclass
class Wire:
    """The relay's address, and the bytes carried so far: `up` to the server, `down` from it. `sought` is a text, and
    `seen` how often it went by.
    """

    host: str
    port: int
    up: int = 0
    down: int = 0
    delay_seconds: float = 0.0
    sought: bytes = b""
    seen: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def total(self) -> int:
        return self.up + self.down

    def count(self, *, up: int = 0, down: int = 0, seen: int = 0) -> None:
        with self._lock:
            self.up += up
            self.down += down
            self.seen += seen


@contextmanager
def counting_proxy(
    host: str, port: int, delay_seconds: float = 0.0, *, sought: bytes = b"", at: tuple[str, int] = ("127.0.0.1", 0)
) -> Iterator[Wire]:
    """Relay from the address `at` to a server until the end of the block; every request waits `delay_seconds`, as if
    the server were far.
    """
    with socket.create_server(at, backlog=128) as listener:
        wire = Wire(*listener.getsockname()[:2], delay_seconds=delay_seconds, sought=sought)
        threading.Thread(target=_serve, args=(listener, (host, port), wire), daemon=True).start()
        yield wire
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket, target: tuple[str, int], wire: Wire) -> None:
    with suppress(OSError):  # the listener was closed
        while True:
            client, _ = listener.accept()
            try:
                server = socket.create_connection(target)
            except OSError:
                client.close()
                continue
            threading.Thread(target=_relay, args=(client, server, wire, "up"), daemon=True).start()
            threading.Thread(target=_relay, args=(server, client, wire, "down"), daemon=True).start()


def _relay(source: socket.socket, target: socket.socket, wire: Wire, direction: str) -> None:
    end_of_last = b""
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            wire.count(**{direction: len(data)})
            if wire.sought:
                wire.count(seen=(end_of_last + data).count(wire.sought))
                end_of_last = (end_of_last + data)[-len(wire.sought) + 1 :]
            if direction == "up" and wire.delay_seconds:
                time.sleep(wire.delay_seconds)
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
