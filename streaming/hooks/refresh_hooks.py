"""Refresh hooks at work: after a commit, others are told, each by a thread of its own; nobody here waits for them.

A hook that is slow delays only itself: what is committed meanwhile to the same table is told once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from compactor.events import HookFinished, Listener, RunCommitted
from compactor.settings.hooks import HookSettings
from compactor.table_queue import TableQueue
from streaming.hooks.hook import Hook
from streaming.hooks.kafka_event import kafka_hook
from streaming.hooks.mysql_statement import mysql_hook
from streaming.hooks.spark_statement import spark_hook
from streaming.hooks.trino_statement import trino_hook

LOG = logging.getLogger(__name__)
ATTEMPTS = 3
FIRST_PAUSE_SECONDS = 1.0


def make_hook(settings: HookSettings, session: SparkSession, producer: Any) -> Hook:
    """The hook that the settings describe.

    Raises:
        InputError: it needs a client that is not installed.
    """
    match settings.kind:
        case "kafka":
            return kafka_hook(settings, producer)
        case "spark":
            return spark_hook(settings, session)
        case "trino":
            return trino_hook(settings)
        case _:
            return mysql_hook(settings)


@dataclass(frozen=True)
class NamedHook:
    """A hook, what it is called in metrics and logs, and the tables it is for."""

    name: str
    tables: tuple[str, ...]
    call: Hook


def named_hooks(wanted: Sequence[HookSettings], session: SparkSession, producer: Any) -> list[NamedHook]:
    """The hooks that the settings describe, in their order.

    Raises:
        InputError: as `make_hook`.
    """
    return [
        NamedHook(f"{number}-{each.kind}", each.tables, make_hook(each, session, producer))
        for number, each in enumerate(wanted)
    ]


class RefreshHooks:
    """Calls hooks in the background. `pause` sleeps between attempts; it ends early when everything stops."""

    def __init__(
        self,
        hooks: Sequence[NamedHook],
        listener: Listener,
        clock: Callable[[], float] = time.monotonic,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._pause = first_pause_seconds
        self._stopped = threading.Event()
        self._lanes = [(hook, TableQueue[RunCommitted]()) for hook in hooks]
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """One thread a hook."""
        for hook, lane in self._lanes:
            thread = threading.Thread(target=self._work, args=(hook, lane), name=f"hook-{hook.name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, seconds: float = 0.0) -> None:
        """Call for what waits, for at most so long; of what is left then it is told that nobody was called."""
        for _, lane in self._lanes:
            lane.close()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._stopped.set()
        for hook, lane in self._lanes:
            for table in lane.drained():
                self._listener(
                    HookFinished(hook=hook.name, table=table, seconds=0.0, error="the service stopped before its turn")
                )

    def committed(self, event: RunCommitted) -> None:
        """A table has a new snapshot. Returns at once."""
        for hook, lane in self._lanes:
            if any(event.table.matches(glob) for glob in hook.tables):
                lane.put(event.table, event)

    def _work(self, hook: NamedHook, lane: TableQueue[RunCommitted]) -> None:
        while (taken := lane.take()) is not None:
            _, event = taken
            started = self._clock()
            error = self._call(hook, event)
            if error is not None:
                LOG.warning("hook %s was not told of %s: %s", hook.name, event.table, error)
            self._listener(
                HookFinished(hook=hook.name, table=event.table, seconds=self._clock() - started, error=error or "")
            )

    def _call(self, hook: NamedHook, event: RunCommitted) -> str | None:
        """None when it went well, else what the last attempt said."""
        said = None
        for attempt in range(ATTEMPTS):
            if attempt and self._stopped.wait(self._pause * 2 ** (attempt - 1)):
                return said
            try:
                hook.call(event)
            except Exception as error:  # noqa: BLE001 - each client has errors of its own, none may end the thread
                said = f"{type(error).__name__}: {error}"
            else:
                return None
        return said
