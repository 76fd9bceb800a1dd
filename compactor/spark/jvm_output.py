"""What Spark's JVM and its Python workers print, passed on line by line without secrets.

Spark logs the errors of its clients as they are, and a setting of its log could only hide what looks like a secret.
This process knows the secrets themselves (redaction.py).
"""

from __future__ import annotations

import atexit
import json
import os
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from compactor.redaction import hide

READ_BYTES = 1 << 16
LONGEST_LINE = 1 << 20
"""Bytes. A longer line is cut, so that it cannot fill the memory."""
DRAIN_SECONDS = 5.0
STDERR = 2
FIRST_LINES = 20
NO_ERROR = ("WARNING:", "Picked up ", "NOTE: Picked up ")
"""How lines begin that a JVM prints at its start and that are no error."""
ENTRY = '{"message":'
"""How a line by log4j2-json.properties begins."""


class Passage:
    """A pipe whose lines appear in another descriptor without secrets, until all writers have closed it.

    Lines are dropped if the reader of `to` is gone: a writer must not wait or fail because of it. `as_json`: a line
    that is no log entry, as those of a crash, becomes one.
    """

    def __init__(self, to: int, *, as_json: bool = False) -> None:
        self._source, self.entrance = os.pipe()
        self._to = to
        self._as_json = as_json
        self._first: list[str] = []
        self._busy = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="jvm-output", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """The descriptor to write to, so that the passage can be the output of a child."""
        return self.entrance

    @property
    def first_error(self) -> str:
        """The first of the first lines that is no notice of a start; empty if there is none."""
        said = (line.strip() for line in self._first)
        return next((line for line in said if line and not line.startswith(NO_ERROR)), "")

    def drain(self) -> None:
        """Wait until everything that was printed so far has been passed on."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._thread.is_alive() and time.monotonic() < deadline:
            with self._busy:
                if not select.select([self._source], [], [], 0)[0]:
                    return
            time.sleep(0.001)

    def _work(self) -> None:
        rest = b""
        while True:
            select.select([self._source], [], [])
            with self._busy:
                found = os.read(self._source, READ_BYTES)
                *lines, rest = (rest + found).split(b"\n")
                if rest and (not found or len(rest) > LONGEST_LINE):
                    lines, rest = [*lines, rest], b""
                self._write(lines)
            if not found:
                return

    def _write(self, lines: list[bytes]) -> None:
        shown = [hide(line.decode("utf-8", "replace")) for line in lines]
        self._first += shown[: FIRST_LINES - len(self._first)]
        entries = map(entry, filter(str.strip, shown)) if self._as_json else shown
        data = b"".join(line.encode() + b"\n" for line in entries)
        while data:
            try:
                data = data[os.write(self._to, data) :]
            except BlockingIOError:
                select.select([], [self._to], [])
            except OSError:
                return


def entry(line: str) -> str:
    """A line as a log entry in JSON, unless it is one."""
    if line.startswith(ENTRY):
        return line
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return json.dumps({"message": line, "timestamp": now, "level": "warning", "logger": "stderr"})


@contextmanager
def output_without_secrets(*, as_json: bool = False) -> Iterator[Passage]:
    """The standard output and error of a child that starts in the block. Its lines go to stderr. `as_json`: see
    `Passage`.
    """
    passage = Passage(os.dup(STDERR), as_json=as_json)
    atexit.register(passage.drain)
    try:
        yield passage
    finally:
        os.close(passage.entrance)  # the child has its own
        passage.drain()
