"""Call refresh hooks after a commit, each in its own thread. Rewrites do not wait for hooks.

A slow hook delays only its own calls. Commits to the same table during a call cause one further call.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from compactor.events import HookFinished, Listener, RunCommitted
from compactor.patience.backoff import LATER, Backoff
from compactor.redaction import hide
from compactor.settings.hooks import HookSettings
from compactor.settings.kafka import KafkaSettings
from compactor.table_queue import TableQueue
from streaming.hooks.kinds import Hook, make_hook

LOG = logging.getLogger(__name__)
ATTEMPTS = 3


@dataclass(frozen=True)
class NamedHook:
    """A hook, its name in metrics and logs, and the globs of its tables."""

    name: str
    tables: tuple[str, ...]
    call: Hook


def named_hooks(wanted: Sequence[HookSettings], kafka: KafkaSettings) -> list[NamedHook]:
    """Make the hooks that the settings describe, in their order.

    Raises:
        InputError: as `make_hook`.
    """
    return [
        NamedHook(hook_name(number, each), each.tables, make_hook(each, kafka)) for number, each in enumerate(wanted)
    ]


def hook_name(number: int, settings: HookSettings) -> str:
    """The hook's name in metrics, logs and checks. `number`: its place in the settings, from 0."""
    return f"{number}-{settings.kind}"


class RefreshHooks:
    """Calls hooks in the background, each call with up to three attempts."""

    def __init__(self, hooks: Sequence[NamedHook], listener: Listener, backoff: Backoff = LATER) -> None:
        self._listener = listener
        self._backoff = backoff
        self._stopped = threading.Event()
        self._lanes = [(hook, TableQueue[RunCommitted]()) for hook in hooks]
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for hook, lane in self._lanes:
            thread = threading.Thread(target=self._work, args=(hook, lane), name=f"hook-{hook.name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, seconds: float = 0.0) -> None:
        """Drain the queues for at most `seconds`; report pending calls as failed."""
        for _, lane in self._lanes:
            lane.close()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._stopped.set()
        for hook, lane in self._lanes:
            for table in lane.drained():
                self._listener(
                    HookFinished(hook=hook.name, table=table, seconds=0.0, error="the service stopped before the call")
                )

    def committed(self, event: RunCommitted) -> None:
        """Queue calls for a commit. Does not block."""
        for hook, lane in self._lanes:
            if any(event.table.matches(glob) for glob in hook.tables):
                lane.put(event.table, event)

    def _work(self, hook: NamedHook, lane: TableQueue[RunCommitted]) -> None:
        while (taken := lane.take()) is not None:
            _, event = taken
            started = time.monotonic()
            error = self._call(hook, event)
            if error is not None:
                LOG.warning("refresh hook %s failed for table %s: %s", hook.name, event.table, error)
            self._listener(
                HookFinished(hook=hook.name, table=event.table, seconds=time.monotonic() - started, error=error or "")
            )

    def _call(self, hook: NamedHook, event: RunCommitted) -> str | None:
        """Return None on success, else the error of the last attempt."""
        failure = None
        for attempt in range(ATTEMPTS):
            if attempt and self._stopped.wait(self._backoff.seconds(attempt)):
                return failure
            try:
                hook.call(event)
            except Exception as error:  # noqa: BLE001 - clients raise their own errors; none may end the thread
                failure = hide(f"{type(error).__name__}: {error}")
            else:
                return None
        return failure
