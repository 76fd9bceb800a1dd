"""Sends what this process and its children print through the log pump, so that every line is a JSON object.

Python's tracebacks, the JVM before it has a log, Spark's scripts and its Python workers print plain text; no setting of
theirs changes that. firnline's own log has a pipe of its own, so that its long lines are not torn by theirs.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TextIO

PUMP = Path(__file__).with_name("pump.py")
DRAIN_SECONDS = 5.0  # for the pump to pass on the last lines; it needs milliseconds unless nobody reads them
NOT_FOR_THE_PUMP = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
STDOUT, STDERR = 1, 2


class OwnLog(io.TextIOBase):
    """Where firnline's own log goes: to the pump, or straight to stderr once the pump has ended."""

    def __init__(self, pipe: int, stderr: int, drained: int) -> None:
        self._to, self._stderr, self._drained = pipe, stderr, drained

    def write(self, text: str) -> int:
        """Write a line."""
        data = text.encode("utf-8", "backslashreplace")
        try:
            _write_all(self._to, data)
        except OSError:
            _write_all(self._stderr, data)
        return len(text)

    def drain(self) -> None:
        """End the pipe and wait until the pump has passed on what was printed so far."""
        pipe, self._to = self._to, self._stderr
        os.close(pipe)
        select.select([self._drained], [], [], DRAIN_SECONDS)


def output_as_json() -> TextIO:
    """Give stdout and stderr of this process, and of children it starts from now on, to a new pump.

    Returns where lines go that are JSON already. At exit, waits for the pump.
    """
    own, to_own = os.pipe()
    printed, to_printed = os.pipe()
    drained, done = os.pipe()
    stderr = os.dup(STDERR)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NOT_FOR_THE_PUMP)  # inherited: only its pipes end the pump
    try:
        subprocess.Popen(
            [sys.executable, "-I", "-S", str(PUMP), str(own), str(printed), str(done)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(own, printed, done),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(to_printed, STDOUT)
    os.dup2(to_printed, STDERR)
    for descriptor in (own, printed, done, to_printed):
        os.close(descriptor)
    log = OwnLog(to_own, stderr, drained)
    atexit.register(log.drain)
    return log  # type: ignore[return-value] # logging only writes and flushes


def run_with_json_output(command: list[str]) -> None:
    """Become another program, whose output passes a pump: a Spark executor in a pod of its own."""
    output_as_json()
    os.execvp(command[0], command)  # noqa: S606 - without a shell, as intended


def _write_all(to: int, data: bytes) -> None:
    while data:
        data = data[os.write(to, data) :]


if __name__ == "__main__":
    run_with_json_output(sys.argv[1:])
