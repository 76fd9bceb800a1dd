"""`firnline run` that also writes its typed events to a file, one JSON object a line.

A line has the time (`at`), the class of the event (`event`) and those of its fields that are numbers or text. Events of
partitions are left out, since there are twenty for each look at a table.

    python -m tests.benchmarks.fleet.watched_service SETTINGS.yaml EVENTS.jsonl
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

from compactor.events import Event, ManifestsRead, PartitionsSkipped
from compactor.settings.tree import load_settings
from compactor.table_names import TableName
from streaming.garbage_collection import collect_rarely
from streaming.logs.set_up import set_up_logging
from streaming.service.service import Service

LEFT_OUT = (PartitionsSkipped, ManifestsRead)


def writer(out: TextIO) -> Callable[[Event], None]:
    """A listener; threads of the service call it at the same time."""
    lock = threading.Lock()

    def write(event: Event) -> None:
        if isinstance(event, LEFT_OUT):
            return
        found: dict[str, Any] = {"at": time.time(), "event": type(event).__name__}
        for field in fields(event):
            value = getattr(event, field.name)
            if isinstance(value, TableName):
                found[field.name] = str(value)
            elif isinstance(value, str | int | float | None):
                found[field.name] = value
        line = json.dumps(found) + "\n"
        with lock:
            out.write(line)
            out.flush()

    return write


def main() -> None:
    settings = load_settings(Path(sys.argv[1]))
    set_up_logging(settings.logging)
    collect_rarely()
    stop = threading.Event()
    with Path(sys.argv[2]).open("a", encoding="utf-8") as out:
        service = Service(settings, path=Path(sys.argv[1]), listener=writer(out))
        signal.signal(signal.SIGHUP, lambda *_: service.reload())
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: stop.set())
        try:
            service.start()
            service.run_until(stop)
        finally:
            service.stop()


if __name__ == "__main__":
    main()
