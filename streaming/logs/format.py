"""Format of log lines: JSON objects for machines or columns for people, also for lines of other libraries.

All lines go to stderr. A JSON line has `message`, `timestamp` (UTC, ISO 8601), `level`, `logger`, the fields of the
event and, for errors, `stack_trace`. Spark's JVM writes the same format (compactor/spark/log4j2-json.properties).
streaming/logs/pump.py converts all other output of the service's processes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import structlog

from compactor.redaction import hide


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


def _name_stack_trace(_logger: Any, _method: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    if "exception" in fields:
        fields["stack_trace"] = fields.pop("exception")
    return fields
