"""The catalog's side of a measurement: the proxy's process, and the calls that it has noted."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

from deploy.demo.local_process import free_port, local_process
from deploy.demo.rest_catalog import answers
from tests.benchmarks.fleet.processes import processor_seconds

LISTS = "list namespaces"
LOADS = "load table"
LOOKS = frozenset({LOADS, "check table"})
"""Kinds of calls that look at one table."""


@dataclass(frozen=True)
class Call:
    """One call."""

    started: float
    answered: float
    status: int
    kind: str
    table: str


@dataclass
class CallLog:
    """The proxy's address and its file, read on from where the last read ended."""

    uri: str
    file: Path
    calls: list[Call] = field(default_factory=list)
    _read: int = 0

    def all(self) -> list[Call]:
        """All calls so far, in the order of their answers."""
        with self.file.open("rb") as file:
            file.seek(self._read)
            content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        self._read += len(complete)
        for line in complete.decode().splitlines():
            started, answered, status, kind, table = line.split("\t")
            self.calls.append(Call(float(started), float(answered), int(status), kind, table))
        return self.calls

    def between(self, start: float, end: float) -> list[Call]:
        return [call for call in self.all() if start <= call.started <= end]


def by_kind(calls: list[Call]) -> dict[str, int]:
    """The number of calls of each kind, the most frequent first; answers without content are named apart."""
    return dict(Counter(call.kind + (" (not modified)" if call.status == 304 else "") for call in calls).most_common())


@contextmanager
def catalog_proxy(folder: Path, upstream: str, delay_ms: float) -> Iterator[CallLog]:
    """Run the proxy; its files are in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    port, file = free_port(), folder / "calls.tsv"
    file.touch()
    pid = folder / "proxy.pid"
    program = f"echo $$ > '{pid}'; exec \"$@\""
    command = ["sh", "-c", program, "sh", sys.executable, "-m", "tests.benchmarks.fleet.catalog_proxy"]
    command += ["--to", upstream, "--port", str(port), "--delay-ms", str(delay_ms), "--calls", str(file)]
    uri = f"http://127.0.0.1:{port}"
    root = str(Path(__file__).resolve().parents[3])
    with local_process("proxy", command, folder, lambda: answers(uri), {"PYTHONPATH": root}):
        yield CallLog(uri, file)


@dataclass(frozen=True)
class ProxyCost:
    """Of one call, in milliseconds: what the proxy adds to it, and the processor time that it takes itself."""

    added_ms: float
    processor_ms: float


def proxy_cost(log: CallLog, upstream: str, calls: int = 300) -> ProxyCost:
    """Measured with the cheapest call, one after the other."""
    pid = int((log.file.parent / "proxy.pid").read_text())
    _call_times(upstream, calls)  # the server's first calls are slow
    direct = median(_call_times(upstream, calls))
    before = processor_seconds(pid)
    through = median(_call_times(log.uri, calls))
    used = processor_seconds(pid) - before
    return ProxyCost((through - direct) * 1000, used / calls * 1000)


def _call_times(uri: str, calls: int) -> list[float]:
    """Seconds of each call; all go over one connection, as those of clients do."""
    found = []
    connection = HTTPConnection(uri.removeprefix("http://"), timeout=10)
    for _ in range(calls):
        started = time.perf_counter()
        connection.request("GET", "/v1/config")
        connection.getresponse().read()
        found.append(time.perf_counter() - started)
    connection.close()
    return found
