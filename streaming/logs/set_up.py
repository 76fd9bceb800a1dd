"""Set up the log of a process."""

from __future__ import annotations

import logging
import sys
import threading
from types import TracebackType
from typing import TextIO

from compactor.settings.tree import LogSettings
from streaming.logs.format import Lines

SILENT = ("SQLQueryContextLogger", "py4j", "kafka.cluster", "kafka.net")
"""pyspark logs errors that it also raises; py4j logs an error when a query is stopped within a batch; kafka-python logs
each attempt to reach a broker, several a second, and firnline reports the failure itself."""


def set_up_logging(settings: LogSettings, *, verbose: bool = False) -> None:
    """Set up the log of this process. `verbose`: DEBUG for firnline's lines."""
    terminal = sys.stderr.isatty()
    handler = _ToStderr()
    handler.setFormatter(Lines(as_json=settings.as_json(terminal=terminal), colours=terminal))
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
