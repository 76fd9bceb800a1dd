"""The event bus: every typed event of the process passes here."""

from __future__ import annotations

from collections.abc import Sequence

from compactor.events import Event, Listener


class EventBus:
    """Publishes events to listeners from the publisher's thread: first `listeners` and subscribers, then `last`."""

    def __init__(self, *listeners: Listener, last: Sequence[Listener] = ()) -> None:
        self._listeners = listeners
        self._last = last

    def subscribe(self, listener: Listener) -> None:
        """Publish later events to this listener too."""
        self._listeners = (*self._listeners, listener)  # replaced, never changed: other threads publish

    def publish(self, event: Event) -> None:
        """Pass the event to every listener."""
        for listener in (*self._listeners, *self._last):
            listener(event)
