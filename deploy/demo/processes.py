"""The demo's child processes: each in its own session, with a log file; an unexpected end is reported."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

from compactor.errors import GiveUpError
from compactor.settings.origins import ENVIRONMENT_PREFIX

STOP_SECONDS = 30.0  # the service's limit for SIGTERM
LAST_LINES = 15


class Child:
    """A running Python module. `lines=True` keeps its stdout for `take_lines` instead of the log."""

    def __init__(self, name: str, arguments: list[str], folder: Path, *, lines: bool = False) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader: threading.Thread | None = None
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if lines else log,
                stderr=log,
                cwd=folder,
                env=_environment(),
                start_new_session=True,  # Ctrl-C must only reach the demo, which stops its children in order
            )
        if self._process.stdout is not None:
            self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
            self._reader.start()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def take_lines(self) -> list[str]:
        taken = []
        with suppress(queue.Empty):
            while True:
                taken.append(self._lines.get_nowait())
        return taken

    def finished(self) -> bool:
        """Whether the process has ended successfully and all its lines can be taken.

        Raises:
            GiveUpError: it ended with an error; the message contains the end of its log and the log's path.
        """
        if self.running:
            return False
        if self._reader is not None:
            self._reader.join(timeout=5)
        if self._process.returncode != 0:
            raise self._ended()
        return True

    def must_run(self) -> None:
        """Check that the process is running.

        Raises:
            GiveUpError: it has ended; the message contains the end of its log and the log's path.
        """
        if not self.running:
            raise self._ended()

    def stop(self) -> None:
        """Terminate the process; kill it if it does not end in time."""
        if self.running:
            self._process.terminate()
        try:
            self._process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _read(self, stdout: IO[bytes]) -> None:
        for line in stdout:
            self._lines.put(line.decode("utf-8", "replace").rstrip("\n"))

    def _ended(self) -> GiveUpError:
        return GiveUpError(
            f"the {self.name} ended with exit code {self._process.returncode}; its log {self.log} ends with:\n"
            + last_lines(self.log)
        )


def last_lines(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
    return "\n".join(f"  {line.rstrip()}" for line in lines) or "  (nothing)"


def _environment() -> dict[str, str]:
    """This process's environment without firnline settings, which would override the demo's file."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ENVIRONMENT_PREFIX)}
    root = str(Path(__file__).resolve().parents[2])
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (root, kept.get("PYTHONPATH"))))
    kept["PYTHONUNBUFFERED"] = "1"
    kept["COLUMNS"] = "200"  # do not wrap log lines
    return kept
