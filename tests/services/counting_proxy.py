"""A TCP relay that counts the bytes it carries: an independent witness of what went over the wire."""

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
    """The relay's address, and the bytes carried so far: `up` to the server, `down` from it."""

    host: str
    port: int
    up: int = 0
    down: int = 0
    delay_seconds: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def total(self) -> int:
        return self.up + self.down

    def count(self, *, up: int = 0, down: int = 0) -> None:
        with self._lock:
            self.up += up
            self.down += down


@contextmanager
def counting_proxy(host: str, port: int, delay_seconds: float = 0.0) -> Iterator[Wire]:
    """Relay to a server until the end of the block; every request waits `delay_seconds`, as if the server were far."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        wire = Wire(*listener.getsockname()[:2], delay_seconds=delay_seconds)
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
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            wire.count(**{direction: len(data)})
            if direction == "up" and wire.delay_seconds:
                time.sleep(wire.delay_seconds)
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
