"""Set up the log of a process. What formats its lines is imported for the first of them.

structlog and Rich take an eighth of a second, and a command such as `emit` logs nothing.
"""

from __future__ import annotations

import logging
import sys
import threading
from functools import cached_property
from types import TracebackType
from typing import TextIO

from compactor.settings.tree import LogSettings

SILENT = ("SQLQueryContextLogger", "py4j", "kafka.cluster", "kafka.net")
"""pyspark logs errors that it also raises; py4j logs an error when a query is stopped within a batch; kafka-python logs
each attempt to reach a broker, several a second, and firnline reports the failure itself."""


def set_up_logging(settings: LogSettings, *, verbose: bool = False, to: TextIO | None = None) -> None:
    """Set up the log of this process. `verbose`: DEBUG for firnline's lines; `to`: stream instead of stderr."""
    handler = logging.StreamHandler(to) if to else _ToStderr()
    handler.setFormatter(_Formatter(settings))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("firnline").setLevel(logging.DEBUG if verbose else settings.level)
    for name in SILENT:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.captureWarnings(capture=True)
    sys.excepthook, threading.excepthook = _log_end, _log_thread_end


def change_level(before: str, now: str) -> None:
    """Change the level of firnline's lines; not if `--verbose` has set another than the settings said before."""
    log = logging.getLogger("firnline")
    if log.level == logging.getLevelName(before):
        log.setLevel(now)


class _Formatter(logging.Formatter):
    """Formats lines as streaming/logs/format.py says, for the terminal that stderr is at the start."""

    def __init__(self, settings: LogSettings) -> None:
        super().__init__()
        self._terminal = sys.stderr.isatty()
        self._as_json = settings.as_json(terminal=self._terminal)

    @cached_property
    def _lines(self) -> logging.Formatter:
        from streaming.logs.format import formatter  # noqa: PLC0415 - see the first lines of this module

        return formatter(as_json=self._as_json, colours=self._terminal)

    def format(self, record: logging.LogRecord) -> str:
        return self._lines.format(record)


class _ToStderr(logging.StreamHandler[TextIO]):
    """Writes to the current sys.stderr: a progress bar replaces it while it is shown."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def _log_end(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, Exception):
        logging.getLogger("firnline").critical("ended by an unexpected error", exc_info=error)
    else:
        sys.__excepthook__(kind, error, traceback)


def _log_thread_end(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is not None and not isinstance(ended.exc_value, SystemExit):
        name = ended.thread.name if ended.thread else "unknown"
        logging.getLogger("firnline").error("thread %s ended", name, exc_info=ended.exc_value)
