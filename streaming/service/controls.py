"""What an operator changes while the service works: its settings, its limits, its end after the running rewrites."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compactor.lease.holder import LeaseHolder
from compactor.runs.dispatcher import Dispatcher
from compactor.runs.pauses import PauseWatch
from compactor.runs.usage import HourOfUsage
from compactor.runs.usage_file import UsageFile
from compactor.runs.work_order import Limits
from compactor.settings.current import CurrentSettings
from compactor.settings.tree import Settings
from streaming.intake.event_stream import EventStream
from streaming.ledger.driver_ledger import DriverLedger
from streaming.logs.events import LOG
from streaming.logs.set_up import change_level
from streaming.service.in_flight_sweep import InFlightSweep
from streaming.service.settings_reload import Change, SettingsReload
from streaming.wiring import Rewriting


@dataclass(eq=False)
class Parts:
    """The service's parts; one is None until it is started, or if observe mode has none."""

    pauses: PauseWatch | None = None
    lease: LeaseHolder | None = None
    rewriting: Rewriting | None = None
    ledger: DriverLedger | None = None
    sweep: InFlightSweep | None = None
    dispatcher: Dispatcher | None = None
    stream: EventStream | None = None


class Controls:
    """Reload, drain, and the usage that limits count. `path`: the settings file; None: there is none."""

    def __init__(self, settings: Settings, path: Path | None, parts: Parts) -> None:
        self.settings = CurrentSettings(settings)
        self.limits = Limits(settings.limits)
        self.usage = HourOfUsage()
        self.draining = False
        self._usage_file: UsageFile | None = None
        self.reload = SettingsReload(path, self.settings)
        self._parts = parts
        self._drain_requested = False

    def open_usage(self, checkpoint: str, confirm: Callable[[], None]) -> HourOfUsage:
        """Go on with the usage of the last hour. `confirm`: raises if another service is active.

        Raises:
            RetryError: the checkpoint's store does not answer.
        """
        self._usage_file = file = UsageFile(checkpoint, confirm)
        self.usage = HourOfUsage(file.load(time.time()))
        return self.usage

    def save_usage(self, *, at_once: bool = False) -> None:
        """Write the usage every few seconds, or `at_once`, while a cap is set."""
        if self._usage_file is not None and self.limits.cap_anything:
            self._usage_file.save(lambda: self.usage.recent(time.time()), at_once=at_once)

    def catch_up(self) -> None:
        """Read the settings file now, if it has changed since it was read last. Called before any work begins."""
        self._apply(self.reload.check(at_once=True))

    def drain(self) -> None:
        """Start no more runs, and end once the running ones have ended. Called by a signal handler."""
        self._drain_requested = True

    def check(self) -> bool:
        """Do what the operator requested; True: the service is drained and may end. Called every second.

        A standby that waits for the lease calls it too.
        """
        self.save_usage()
        self._apply(self.reload.check())
        dispatcher = self._parts.dispatcher
        if not self._drain_requested or dispatcher is None:
            return False
        if not self.draining:
            self.draining = True
            dispatcher.drain()
            LOG.info("draining: no run starts any more; the service ends with the last running one")
        return dispatcher.drained

    def _apply(self, change: Change | None) -> None:
        if change is None:
            return
        before, now = change
        change_level(before.logging.level, now.logging.level)
        self.limits = Limits(now.limits)
        if self._parts.dispatcher is not None:
            self._parts.dispatcher.limit(self.limits)
        if self._parts.ledger is not None:
            self._parts.ledger.driver.settings_changed()
