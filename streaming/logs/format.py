"""How log lines look: JSON objects for machines, columns for people; other libraries' lines the same way.

Everything goes to stderr. A JSON line has `message`, `timestamp` (UTC, ISO 8601), `level`, `logger`, where there is one
`stack_trace`, and the fields of the event. Spark's JVM writes the same (compactor/spark/log4j2-json.properties); what
the service's processes print otherwise gets this form from streaming/logs/pump.py.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

import structlog

from compactor.settings.log import LogSettings

SILENT = ("SQLQueryContextLogger", "py4j")
"""pyspark logs what it also raises; a query that is stopped in mid-batch is no news to py4j."""


def set_up_logging(settings: LogSettings, *, verbose: bool = False, to: TextIO | None = None) -> None:
    """Format every line of this process. `verbose`: firnline's own from DEBUG; `to`: in place of stderr."""
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


def formatter(*, as_json: bool, colours: bool = False) -> structlog.stdlib.ProcessorFormatter:
    """A formatter of records, whoever made them; fields are what they carry as `extra`."""
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
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=shown)


class _ToStderr(logging.StreamHandler[TextIO]):
    """To what stderr is at the moment: a progress bar takes it over while it is shown."""

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
        logging.getLogger("firnline").critical("ended by an error nobody foresaw", exc_info=error)
    else:
        sys.__excepthook__(kind, error, traceback)


def _log_thread_end(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is not None and not isinstance(ended.exc_value, SystemExit):
        name = ended.thread.name if ended.thread else "unknown"
        logging.getLogger("firnline").error("thread %s ended", name, exc_info=ended.exc_value)
