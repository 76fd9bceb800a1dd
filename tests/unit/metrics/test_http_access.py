"""HTTPS and basic authentication of the HTTP pages, over real sockets."""

from __future__ import annotations

import base64
import http.client
import logging
import socket
import ssl
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import bcrypt
import pytest

from compactor.errors import InputError
from compactor.settings.http import HttpSettings
from metrics.http import http_access
from metrics.http.http_access import NOBODY, BasicAuth, Certificate
from metrics.http.http_connections import MOST_CONNECTIONS
from metrics.http.http_server import MetricsServer
from metrics.service_view import Health
from tests.integration.service_process import wait_for
from tests.services.certificates import Certificates, issue
from tests.unit.metrics.support import Service

PASSWORD = "correct horse: é"  # noqa: S105
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return issue(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def secure(serve, certificates: Certificates) -> MetricsServer:
    return serve(certificate=Certificate(str(certificates.certificate), str(certificates.key)))


@pytest.fixture
def auth() -> BasicAuth:
    return BasicAuth({"me": HASH})


@pytest.fixture
def private(serve, auth: BasicAuth) -> MetricsServer:
    health = Health(live=True, ready=False, details={"lake.db.secret_table": "why"})
    return serve(Service(health=health), auth=auth)


def https(server: MetricsServer, trust: Path) -> int:
    context = ssl.create_default_context(cafile=str(trust))
    connection = http.client.HTTPSConnection(*server.address, timeout=20, context=context)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().status
    finally:
        connection.close()


def get(server: MetricsServer, path: str, authorization: str = "") -> tuple[int, str]:
    connection = http.client.HTTPConnection(*server.address, timeout=20)
    try:
        connection.request("GET", path, headers={"Authorization": authorization} if authorization else {})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


# HTTPS


def test_a_client_that_trusts_the_authority_is_served(secure: MetricsServer, certificates: Certificates) -> None:
    assert https(secure, certificates.authority) == 200


def test_a_client_that_does_not_is_not(secure: MetricsServer, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        https(secure, issue(tmp_path).authority)


def test_neither_plain_text_nor_silence_before_the_handshake_holds_up_others(
    secure: MetricsServer, certificates: Certificates
) -> None:
    held = [socket.create_connection(secure.address, timeout=20) for _ in range(2 * MOST_CONNECTIONS)]
    try:
        for client in held[::2]:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert [https(secure, certificates.authority) for _ in range(5)] == [200] * 5
    finally:
        for client in held:
            client.close()


def test_old_versions_of_tls_are_refused(secure: MetricsServer, certificates: Certificates) -> None:
    context = ssl.create_default_context(cafile=str(certificates.authority))
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(secure.address, timeout=20) as client, pytest.raises(OSError):  # noqa: SIM117
        with context.wrap_socket(client, server_hostname="127.0.0.1"):
            pass


def test_a_renewed_certificate_is_used_and_one_that_cannot_be_is_told_once_a_change(
    serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, other = issue(tmp_path / "used"), issue(tmp_path / "other")
    right = made.key.read_bytes()
    used = Certificate(str(made.certificate), str(made.key))
    server = serve(certificate=used)

    def warned() -> int:
        assert [https(server, made.authority) for _ in range(3)] == [200] * 3
        return len([record for record in caplog.records if record.levelno == logging.WARNING])

    with caplog.at_level(logging.INFO):
        assert (warned(), used.trouble) == (0, "")
        made.key.write_bytes(other.key.read_bytes())
        assert warned() == 1
        assert str(made.key) in used.trouble
        assert "the earlier one is still used" in used.trouble
        made.key.write_bytes(b"half written")
        assert warned() == 2
        made.key.unlink()
        assert warned() == 3
        assert "No such file" in used.trouble
        made.key.write_bytes(right)
        assert (warned(), used.trouble) == (3, "")
        assert f"http: the renewed certificate {made.certificate} is used" in caplog.messages
    for mine, its in ((made.certificate, other.certificate), (made.key, other.key)):
        mine.write_bytes(its.read_bytes())
    assert https(server, other.authority) == 200


def test_files_that_cannot_be_used_name_the_settings(tmp_path: Path, certificates: Certificates) -> None:
    other = issue(tmp_path / "other")
    encrypted = tmp_path / "encrypted.key"
    command = ["openssl", "rsa", "-aes256", "-passout", "pass:canary", "-in", str(certificates.key)]
    made = subprocess.run([*command, "-out", str(encrypted)], capture_output=True, check=False)
    keys = [other.key, tmp_path / "missing.key", *([encrypted] if made.returncode == 0 else [])]
    for key in keys:
        with pytest.raises(InputError, match=r"http\.tls_certificate, http\.tls_key"):
            Certificate(str(certificates.certificate), str(key))


# Basic authentication


def test_the_right_password_opens_every_page(private: MetricsServer) -> None:
    for path in ("/", "/metrics", "/api/v1/status", "/nowhere"):
        assert get(private, path)[0] == 401
        for _ in range(2):  # hashed, then known
            assert get(private, path, basic("me", PASSWORD))[0] in (200, 404)


@pytest.mark.parametrize(
    "authorization",
    [
        basic("me", "wrong"), basic("you", PASSWORD), basic("", ""), basic("me", ""), basic("me", "a" * 100),
        basic("me", "a\0b"), "Basic", "Basic !!!", "Basic " + base64.b64encode(b"\xff\xfe:x").decode(),
        "Basic " + base64.b64encode(b"no colon").decode(), "Bearer me", basic("me", PASSWORD)[6:], "Basic\t",
    ],
)  # fmt: skip
def test_everything_else_does_not(private: MetricsServer, authorization: str) -> None:
    assert get(private, "/metrics", basic("me", PASSWORD))[0] == 200
    assert get(private, "/metrics", authorization)[0] == 401


def test_a_browser_is_asked_for_the_password(private: MetricsServer) -> None:
    connection = http.client.HTTPConnection(*private.address, timeout=20)
    connection.request("GET", "/")
    assert connection.getresponse().headers["WWW-Authenticate"].startswith("Basic ")
    connection.close()


def test_probes_learn_the_state_alone(private: MetricsServer) -> None:
    assert get(private, "/healthz") == (200, "OK\n")
    assert get(private, "/readyz") == (503, "Service Unavailable\n")
    assert "secret_table" in get(private, "/readyz", basic("me", PASSWORD))[1]


def test_an_unknown_user_costs_as_much_as_a_known_one() -> None:
    assert not bcrypt.checkpw(b"anything", NOBODY)


def test_a_password_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = []
    real = bcrypt.checkpw
    monkeypatch.setattr(bcrypt, "checkpw", lambda *given: hashed.append(1) or real(*given))
    auth = BasicAuth({"me": HASH})
    assert all(auth.allows(basic("me", PASSWORD)) for _ in range(5))
    assert len(hashed) == 1
    assert not auth.allows(basic("me", "wrong"))
    assert auth.allows(basic("me", PASSWORD))
    assert len(hashed) == 2


class SlowHash:
    """Hashes that take until `released`, and how many began."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.released, self.began, self._real = threading.Event(), threading.Semaphore(0), bcrypt.checkpw
        monkeypatch.setattr(bcrypt, "checkpw", self._checkpw)

    def _checkpw(self, password: bytes, digest: bytes) -> bool:
        self.began.release()
        self.released.wait(60)
        return self._real(password, digest)


def test_a_flood_of_wrong_passwords_starves_neither_probes_nor_known_clients(
    private: MetricsServer, auth: BasicAuth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_access, "CHECK_SECONDS", 60.0)
    assert get(private, "/metrics", basic("me", PASSWORD))[0] == 200
    slow = SlowHash(monkeypatch)
    flood = [socket.create_connection(private.address, timeout=60) for _ in range(100)]
    request = f"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: {basic('me', 'wrong')}\r\n\r\n".encode()
    try:
        for client in flood:
            with suppress(OSError):  # closed for another client
                client.sendall(request)
        wait_for("a full queue", lambda: auth._places._value == 0)
        assert [get(private, "/healthz")[0] for _ in range(20)] == [200] * 20
        assert get(private, "/healthz", basic("me", "wrong")) == (200, "OK\n")
        assert get(private, "/metrics", basic("me", PASSWORD))[0] == 200
        assert get(private, "/metrics", basic("me", "wrong"))[0] == 503
        slow.released.set()
        wait_for("the answers", lambda: get(private, "/metrics", basic("me", "wrong"))[0] == 401)
    finally:
        slow.released.set()
        for client in flood:
            client.close()


def test_a_password_that_waits_too_long_is_asked_to_come_again(
    private: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_access, "CHECK_SECONDS", 0.01)
    slow = SlowHash(monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        try:
            first = pool.submit(get, private, "/metrics", basic("me", PASSWORD))
            assert slow.began.acquire(timeout=60)
            assert get(private, "/metrics", basic("me", PASSWORD))[0] == 503
        finally:
            slow.released.set()
        assert first.result()[0] == 200
    assert get(private, "/metrics", basic("me", PASSWORD))[0] == 200


# Settings


def test_pages_are_for_this_machine_alone_by_default() -> None:
    assert HttpSettings().local
    assert not HttpSettings(host="0.0.0.0").local  # noqa: S104
