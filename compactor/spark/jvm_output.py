"""What Spark's JVM and its Python workers print, passed on line by line without secrets.

Spark logs the errors of its clients as they are, and a setting of its log could only hide what looks like a secret.
This process knows the secrets themselves (redaction.py).
"""

from __future__ import annotations

import atexit
import os
import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from compactor.redaction import hide

READ_BYTES = 1 << 16
LONGEST_LINE = 1 << 20
"""Bytes. A longer line is cut, so that it cannot fill the memory."""
DRAIN_SECONDS = 5.0
STDERR = 2


class Passage:
    """A pipe whose lines appear in another descriptor without secrets, until all writers have closed it.

    Lines are dropped if the reader of `to` is gone: a writer must not wait or fail because of it.
    """

    def __init__(self, to: int) -> None:
        self._source, self.entrance = os.pipe()
        self._to = to
        self._busy = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="jvm-output", daemon=True)
        self._thread.start()

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
        data = b"".join(hide(line.decode("utf-8", "replace")).encode() + b"\n" for line in lines)
        while data:
            try:
                data = data[os.write(self._to, data) :]
            except BlockingIOError:
                select.select([], [self._to], [])
            except OSError:
                return


@contextmanager
def output_without_secrets() -> Iterator[int]:
    """A descriptor for the standard output and error of a child that starts in the block. Its lines go to stderr."""
    passage = Passage(os.dup(STDERR))
    atexit.register(passage.drain)
    try:
        yield passage.entrance
    finally:
        os.close(passage.entrance)  # the child has its own
        passage.drain()
