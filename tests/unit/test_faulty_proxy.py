"""The proxy of the fault tests breaks what it says, and no more."""

from __future__ import annotations

import socket
from contextlib import suppress

from tests.faults.proxy import FaultyProxy, Mode


def test_a_client_that_waits_for_an_answer_waits_no_longer_when_the_fault_ends() -> None:
    """Else it would wait for its own timeout, a minute or more: a fault that nobody asked for."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = FaultyProxy(server.getsockname())
        proxy.mode = Mode.SLOW
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            accepted, _ = server.accept()
            assert accepted.recv(3) == b"GET"
            proxy.mode = Mode.PASS
            with suppress(ConnectionResetError):  # or an end of the stream
                assert client.recv(1) == b""
            accepted.close()
        proxy.close()
