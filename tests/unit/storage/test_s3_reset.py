"""Connections that end in the middle of an object, as those of real networks do."""

from __future__ import annotations

import socket
import struct
import threading

from compactor.storage.s3_store import S3ByteStore

CONTENT = b"0123456789"
RESET = struct.pack("ii", 1, 0)  # close with RST


def serve(server: socket.socket, asked: list[bytes]) -> None:
    """Two requests: the first answer is reset after four bytes, the second one is whole."""
    for given in (4, 10):
        client, _ = server.accept()
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(65536)
        asked += [line for line in head.split(b"\r\n") if line.lower().startswith(b"range:")]
        client.sendall(
            b"HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\nContent-Range: bytes 0-9/10\r\n\r\n"
            + CONTENT[:given]
        )
        if given < len(CONTENT):
            threading.Event().wait(0.2)  # the bytes arrive before the reset
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()


def test_a_read_goes_on_after_a_connection_that_was_reset() -> None:
    """A file group is not given up for it."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = threading.Thread(target=serve, args=(server, asked), daemon=True)
        serving.start()
        properties = {
            "s3.endpoint": f"http://127.0.0.1:{server.getsockname()[1]}", "s3.region": "eu-west-1",
            "s3.access-key-id": "a", "s3.secret-access-key": "b",
        }  # fmt: skip
        assert S3ByteStore(properties).read("s3://bucket/key", 0, 10) == CONTENT
        serving.join(10)
    assert len(asked) == 2
