"""Format of log lines: JSON objects for machines or columns for people, also for lines of other libraries.

All lines go to stderr. A JSON line has `message`, `timestamp` (UTC, ISO 8601), `level`, `logger`, the fields of the
event (`extra`) and, for errors, `stack_trace`. Spark's JVM writes the same (compactor/spark/log4j2-json.properties).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from compactor.redaction import hide

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; the rest of a record is the `extra` of its event."""
_OWN: Final = frozenset({"message", "timestamp", "level", "logger", "stack_trace"})
_COLOURS: Final = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
_PLAIN: Final = "\x1b[0m"


class Lines(logging.Formatter):
    """Formats records without secrets: stack traces show the errors of drivers as they were raised."""

    def __init__(self, *, as_json: bool, colours: bool = False) -> None:
        super().__init__()
        self._as_json = as_json
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "message": record.getMessage(),
            "timestamp": datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **{name: value for name, value in vars(record).items() if name not in _STANDARD},
        }
        if record.exc_info:
            line["stack_trace"] = self.formatException(record.exc_info)
        return hide(json.dumps(line, default=str) if self._as_json else self._columns(line))

    def _columns(self, line: Mapping[str, Any]) -> str:
        colour, plain = (_COLOURS.get(line["level"], ""), _PLAIN) if self._colours else ("", "")
        trace = f"\n{line['stack_trace']}" if "stack_trace" in line else ""
        fields = "".join(f" {name}={line[name]}" for name in line if name not in _OWN)
        return (
            f"{line['timestamp']} {colour}{line['level']:<8}{plain} {line['message']} [{line['logger']}]{fields}{trace}"
        )
