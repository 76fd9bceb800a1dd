"""Send the output of this process and its children through the log pump, so that every line is a JSON object.

Python tracebacks, the JVM before it sets up its log, Spark's scripts and its Python workers print plain text, and no
setting changes that. firnline's log has a separate pipe, so that other output does not split its long lines.
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

from compactor import redaction

NEEDED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE")
PUMP, REDACTION = Path(__file__).with_name("pump.py"), Path(str(redaction.__file__))
DRAIN_SECONDS = 5.0  # for the pump to write the last lines; normally milliseconds
NOT_FOR_THE_PUMP = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
STDOUT, STDERR = 1, 2


class OwnLog(io.TextIOBase):
    """Stream of firnline's log: to the pump, or to stderr after the pump has ended."""

    def __init__(self, pipe: int, stderr: int, drained: int) -> None:
        self._to, self._stderr, self._drained = pipe, stderr, drained

    def write(self, text: str) -> int:
        data = text.encode("utf-8", "backslashreplace")
        try:
            _write_all(self._to, data)
        except OSError:
            _write_all(self._stderr, data)
        return len(text)

    def drain(self) -> None:
        """Close the pipe and wait until the pump has written everything printed so far."""
        pipe, self._to = self._to, self._stderr
        os.close(pipe)
        select.select([self._drained], [], [], DRAIN_SECONDS)


def output_as_json() -> TextIO:
    """Redirect stdout and stderr of this process and of its future children to a new pump.

    Returns the stream for lines that are already JSON. At exit, waits for the pump.
    """
    own, to_own = os.pipe()
    printed, to_printed = os.pipe()
    drained, done = os.pipe()
    stderr = os.dup(STDERR)
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, NOT_FOR_THE_PUMP
    )  # the pump inherits this mask and ends only with its pipes
    try:
        subprocess.Popen(
            [sys.executable, "-I", "-S", str(PUMP), str(own), str(printed), str(done), str(REDACTION)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(own, printed, done),
            env={name: os.environ[name] for name in NEEDED_VARIABLES if name in os.environ},  # settings hold secrets
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
    """Replace this process by another program with its output sent through a pump: for executors as pods."""
    output_as_json()
    os.execvp(command[0], command)  # noqa: S606 - no shell, on purpose


def _write_all(to: int, data: bytes) -> None:
    while data:
        data = data[os.write(to, data) :]


if __name__ == "__main__":
    run_with_json_output(sys.argv[1:])
