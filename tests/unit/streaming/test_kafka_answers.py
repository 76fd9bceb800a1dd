"""A broker that refuses a login: its answer is in the error, and it is not asked again and again.

The broker is a socket that speaks the few messages before a login has succeeded.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from kafka.errors import (
    KafkaConnectionError,
    KafkaTimeoutError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)

from compactor.errors import InputError, RetryError
from compactor.settings.kafka import KafkaSettings
from streaming.kafka.clients import ensure_topics, is_refusal, no_broker, producer

API_VERSIONS, HANDSHAKE, AUTHENTICATE = 18, 17, 36
UNSUPPORTED_VERSION, UNSUPPORTED_MECHANISM, NOT_AUTHENTICATED = 35, 33, 58


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def versions(error: int) -> bytes:
    keys = ((API_VERSIONS, 0, 0), (HANDSHAKE, 0, 1), (AUTHENTICATE, 0, 1), (3, 0, 5))
    return struct.pack(">hi", error, len(keys)) + b"".join(struct.pack(">hhh", *key) for key in keys)


@dataclass
class Broker:
    """`mechanisms`: that it allows. `connections`: how often it was asked."""

    mechanisms: tuple[str, ...] = ("PLAIN",)
    connections: int = 0
    server: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    def __post_init__(self) -> None:
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        while size := connection.recv(4, socket.MSG_WAITALL):
            request = connection.recv(*struct.unpack(">i", size), socket.MSG_WAITALL)
            key, version, number = struct.unpack(">hhi", request[:8])
            body = self._answer(key, version, request)
            connection.sendall(struct.pack(">ii", len(body) + 4, number) + body)

    def _answer(self, key: int, version: int, request: bytes) -> bytes:
        if key == API_VERSIONS:
            return versions(UNSUPPORTED_VERSION if version else 0)
        if key == HANDSHAKE:
            refused = not any(text(each) in request for each in self.mechanisms)
            listed = b"".join(text(each) for each in self.mechanisms)
            return struct.pack(">hi", UNSUPPORTED_MECHANISM if refused else 0, len(self.mechanisms)) + listed
        said = text("Authentication failed: Invalid username or password")
        return struct.pack(">h", NOT_AUTHENTICATED) + said + struct.pack(">iq", 0, 0)


@contextmanager
def running(broker: Broker) -> Iterator[Broker]:
    thread = threading.Thread(target=broker.serve, daemon=True)
    thread.start()
    try:
        yield broker
    finally:
        broker.server.shutdown(socket.SHUT_RDWR)
        broker.server.close()
        thread.join()


def settings(broker: Broker, mechanism: str = "PLAIN") -> KafkaSettings:
    login = {"sasl.mechanism": mechanism, "sasl.username": "me", "sasl.password": "Tr0ub4dor"}
    options = {"security.protocol": "SASL_PLAINTEXT", "bootstrap.timeout.ms": "20000", **login}
    return KafkaSettings(bootstrap_servers=broker.address, options=options)


MAKERS: list[Callable[[KafkaSettings], object]] = [
    lambda kafka: ensure_topics(kafka, create=False),
    producer,
]


@pytest.mark.parametrize("made", MAKERS, ids=["admin", "producer"])
def test_a_wrong_password_is_named_at_once(made: Callable[[KafkaSettings], object]) -> None:
    with running(Broker()) as broker, pytest.raises(RetryError) as error:
        made(settings(broker))
    before, _, remedy = str(error.value).rpartition("; check ")
    assert before.startswith(f"Kafka does not let this client in at {broker.address}: [Error 58]")
    assert before.endswith("Authentication failed: Invalid username or password")
    assert "password" in remedy
    assert broker.connections == 1


def test_a_mechanism_that_is_off_is_named_at_once() -> None:
    with running(Broker()) as broker, pytest.raises(RetryError, match="UnsupportedSaslMechanism"):
        ensure_topics(settings(broker, "SCRAM-SHA-256"), create=False)
    assert broker.connections == 1


def lost(cause: Exception) -> KafkaConnectionError:
    error = KafkaConnectionError("Handshake failed")
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SaslAuthenticationFailedError(), True),
        (UnsupportedSaslMechanismError(), True),
        (RuntimeError("GSSAPI lib not found!"), True),
        (lost(ssl.SSLCertVerificationError()), True),
        (lost(ConnectionResetError()), False),
        (KafkaConnectionError("socket disconnected"), False),
        (KafkaTimeoutError("x"), False),
        (ConnectionRefusedError(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_a_refusal_ends_the_attempts(error: Exception, expected: bool) -> None:
    assert is_refusal(error) is expected


def test_a_password_that_is_not_set_is_named_before_any_attempt() -> None:
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "me"}
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1", options=options)
    with pytest.raises(InputError, match="set FIRNLINE_KAFKA__OPTIONS__SASL__PASSWORD"):
        producer(kafka)
    assert isinstance(no_broker(kafka, KafkaTimeoutError("x")), RetryError)
