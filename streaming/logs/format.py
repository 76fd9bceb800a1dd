"""Format of log lines: JSON objects for machines or columns for people, also for lines of other libraries.

All lines go to stderr. A JSON line has `message`, `timestamp` (UTC, ISO 8601), `level`, `logger`, the fields of the
event and, for errors, `stack_trace`. Spark's JVM writes the same format (compactor/spark/log4j2-json.properties).
streaming/logs/pump.py converts all other output of the service's processes.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

import structlog

from compactor.redaction import hide
from compactor.settings.tree import LogSettings

SILENT = ("SQLQueryContextLogger", "py4j", "kafka.cluster", "kafka.net")
"""pyspark logs errors that it also raises; py4j logs an error when a query is stopped within a batch; kafka-python logs
each attempt to reach a broker, several a second, and firnline reports the failure itself."""


def set_up_logging(settings: LogSettings, *, verbose: bool = False, to: TextIO | None = None) -> None:
    """Set up the log of this process. `verbose`: DEBUG for firnline's lines; `to`: stream instead of stderr."""
    handler = logging.StreamHandler(to) if to else _ToStderr()
    handler.setFormatter(formatter(as_json=settings.as_json(terminal=sys.stderr.isatty()), colours=sys.stderr.isatty()))
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


def formatter(*, as_json: bool, colours: bool = False) -> structlog.stdlib.ProcessorFormatter:
    """A formatter for records of all libraries; the fields are their `extra`."""
    shared: list[Callable[..., Any]] = [
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
    ]
    shown: list[Callable[..., Any]] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if as_json:
        shown += [structlog.processors.format_exc_info, structlog.processors.EventRenamer("message")]
        shown += [_name_stack_trace, structlog.processors.JSONRenderer(default=str)]
    else:
        plain = structlog.dev.plain_traceback
        shown += [structlog.dev.ConsoleRenderer(colors=colours, sort_keys=False, exception_formatter=plain)]
    return _WithoutSecrets(foreign_pre_chain=shared, processors=shown)


class _WithoutSecrets(structlog.stdlib.ProcessorFormatter):
    """Hides secrets in whole lines: stack traces show the errors of drivers as they were raised."""

    def format(self, record: logging.LogRecord) -> str:
        return hide(super().format(record))


class _ToStderr(logging.StreamHandler[TextIO]):
    """Writes to the current sys.stderr: a progress bar replaces it while it is shown."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def _name_stack_trace(_logger: Any, _method: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    if "exception" in fields:
        fields["stack_trace"] = fields.pop("exception")
    return fields


def _log_end(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, Exception):
        logging.getLogger("firnline").critical("ended by an unexpected error", exc_info=error)
    else:
        sys.__excepthook__(kind, error, traceback)


def _log_thread_end(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is not None and not isinstance(ended.exc_value, SystemExit):
        name = ended.thread.name if ended.thread else "unknown"
        logging.getLogger("firnline").error("thread %s ended", name, exc_info=ended.exc_value)
