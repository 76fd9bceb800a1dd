"""10,000 hostile requests and clients that never finish one, at a working service that is scraped meanwhile."""

from __future__ import annotations

import base64
import random
import re
import socket
import ssl
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Self

import bcrypt
import pytest

from metrics.http.http_connections import MOST_CONNECTIONS
from tests.integration.service_process import ServiceProcess, Site, site, wait_for
from tests.security.hostile_requests import MARK, Target, hostile_request
from tests.services.certificates import issue

REQUESTS = 10_000
SENDERS = 12
PASSWORD = "the-password-of-the-scraper"  # noqa: S105
MEMORY_BYTES = 100 * 1024 * 1024


class Scraper:
    """Scrapes again and again in a thread of its own, as Prometheus does, until it is stopped."""

    def __init__(self, target: Target, password: str) -> None:
        scheme = "https" if target.trust else "http"
        self._request = urllib.request.Request(f"{scheme}://{target.host}:{target.port}/metrics")  # noqa: S310
        if password:
            login = base64.b64encode(f"me:{password}".encode()).decode()
            self._request.add_header("Authorization", f"Basic {login}")
        self._context = ssl.create_default_context(cafile=str(target.trust)) if target.trust else None
        self.answers: Counter[str] = Counter()
        self.slowest = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def scrape(self) -> str:
        try:
            with urllib.request.urlopen(self._request, timeout=30, context=self._context) as answer:  # noqa: S310
                return "well" if b"firnline_build_info" in answer.read() else "odd"
        except OSError as error:
            return repr(error)

    def _work(self) -> None:
        while not self._ended.wait(0.05):
            started = time.monotonic()
            self.answers[self.scrape()] += 1
            self.slowest = max(self.slowest, time.monotonic() - started)


@contextmanager
def service(folder: Path, broker: str, *, secured: bool) -> Iterator[tuple[ServiceProcess, Target, str]]:
    """A service with a table, plain or with HTTPS and a password."""
    http = {}
    certificates = issue(folder / "certificates")
    if secured:
        digest = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
        http = {
            "tls_certificate": str(certificates.certificate),
            "tls_key": str(certificates.key),
            "basic_auth": {"me": digest},
        }
    with site(folder / "site", broker, http=http) as place:
        place.append("t", commits=1)
        running = place.start()
        target = Target("127.0.0.1", running.port, certificates.authority if secured else None)
        password = PASSWORD if secured else ""
        wait_for("the service", lambda: running.must_run() or Scraper(target, password).scrape() == "well")
        _wait_ready(place, running)
        yield running, target, password


def _wait_ready(place: Site, running: ServiceProcess) -> None:
    wait_for("the service to be ready", lambda: running.must_run() or "ready: " in running.log_text)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("secured", [False, True], ids=["plain", "TLS and password"])
def test_hostile_requests_get_nothing_and_stop_nothing(broker: str, tmp_path: Path, secured: bool) -> None:
    with service(tmp_path, broker, secured=secured) as (running, target, password):
        memory, log = resident_bytes(running.pid), len(running.log_text)
        with Scraper(target, password) as scraper, ThreadPoolExecutor(SENDERS) as pool:
            answers = list(pool.map(lambda seed: target.send(hostile_request(random.Random(seed))), range(REQUESTS)))
        statuses = Counter(status for answer in answers for status in status_lines(answer))
        print(
            f"\n{REQUESTS:,} hostile requests: {dict(sorted(statuses.items()))}; {sum(not each for each in answers):,} "
            f"without an answer; scrapes: {dict(scraper.answers)}, the slowest {scraper.slowest:.2f} s; memory grew by "
            f"{(resident_bytes(running.pid) - memory) / 1e6:.0f} MB"
        )
        assert scraper.answers.keys() == {"well"}
        assert all(MARK.encode() not in answer for answer in answers)
        assert set(statuses) <= {"200", "400", "401", "404", "414", "431", "501", "503", "505"}
        assert statuses["200"]
        if secured:
            assert not any(b"firnline_build_info" in answer for answer in answers)
        assert "Traceback" not in running.log_text[log:]
        assert MARK not in running.log_text[log:]
        assert resident_bytes(running.pid) - memory < MEMORY_BYTES
        wait_for("all connections to be closed", lambda: connections(running) == 0)
        assert running.terminate()[0] == 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("secured", [False, True], ids=["plain", "TLS and password"])
def test_clients_that_never_finish_hold_up_no_scrape(broker: str, tmp_path: Path, secured: bool) -> None:
    """Ten times as many as the server has places: some are silent, some send a byte now and then, some never read."""
    with service(tmp_path, broker, secured=secured) as (running, target, password):
        held: list[socket.socket] = []
        with Scraper(target, password) as scraper:
            for number in range(10 * MOST_CONNECTIONS):
                with suppress(OSError):
                    held.append(slow_client(target, number))
            for _ in range(5):
                for client in held:
                    with suppress(OSError):
                        client.send(b"X")
                time.sleep(0.5)
        print(f"\n{len(held)} slow clients; scrapes: {dict(scraper.answers)}, the slowest {scraper.slowest:.2f} s")
        assert scraper.answers.keys() == {"well"}
        assert connections(running) <= MOST_CONNECTIONS + 1
        for client in held:
            with closing(client):
                pass
        assert running.terminate()[0] == 0


def slow_client(target: Target, number: int) -> socket.socket:
    client = socket.create_connection((target.host, target.port), timeout=5)
    if target.trust is None and number % 3 == 1:
        client.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
    if target.trust is None and number % 3 == 2:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    if target.trust is not None and number % 2:
        client.sendall(bytes.fromhex("16030100c8"))  # the beginning of a handshake
    return client


def status_lines(answer: bytes) -> list[str]:
    return [found.decode() for found in re.findall(rb"^HTTP/1\.1 (\d{3}) ", answer, re.MULTILINE)]


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def connections(running: ServiceProcess) -> int:
    """Established connections to the service's port, by its own end."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{running.port:04X}") and row[3] == "01" for row in rows)
