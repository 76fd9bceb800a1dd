"""What an operator changes while the service works: its settings, its limits, its end after the running rewrites."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from compactor.runs.usage import HourOfUsage
from compactor.runs.usage_file import UsageFile
from compactor.runs.work_order import Limits
from compactor.settings.current import CurrentSettings
from compactor.settings.tree import Settings
from streaming.logs.events import LOG
from streaming.logs.set_up import change_level
from streaming.service.pages import ServiceState
from streaming.service.settings_reload import SettingsReload


class Controls:
    """Reload, drain, and the usage that limits count.

    `check` is called every second by the main loop, and every two seconds by a standby that waits for the lease.

    `path`: the settings file; None: there is none. `clock` returns seconds since the epoch.
    """

    def __init__(self, settings: Settings, path: Path | None, state: ServiceState, clock: Callable[[], float]) -> None:
        self.settings = CurrentSettings(settings)
        self.usage = HourOfUsage()
        self._usage_file: UsageFile | None = None
        self._state = state
        self._clock = clock
        self._reload = SettingsReload(path, self.settings, self._settings_changed)
        self._drain_requested = False
        state.limits, state.reload = Limits(settings.limits), self._reload

    def open_usage(self, checkpoint: str, confirm: Callable[[], None]) -> HourOfUsage:
        """Go on with the usage of the last hour. `confirm`: raises if another service is active.

        Raises:
            RetryError: the checkpoint's store does not answer.
        """
        self._usage_file = file = UsageFile(checkpoint, confirm)
        self.usage = HourOfUsage(file.load(self._clock()))
        return self.usage

    def save_usage(self, *, at_once: bool = False) -> None:
        """Write the usage every few seconds, or `at_once`, while a cap is set."""
        if self._usage_file is not None and self._state.limits.cap_anything:
            self._usage_file.save(lambda: self.usage.recent(self._clock()), at_once=at_once)

    def catch_up(self) -> None:
        """Read the settings file now, if it has changed since it was read last. Called before any work begins."""
        self._reload.catch_up()

    def reload(self) -> None:
        """Read the settings file within a second. Called by a signal handler."""
        self._reload.ask()

    def drain(self) -> None:
        """Start no more runs, and end once the running ones have ended. Called by a signal handler."""
        self._drain_requested = True

    def check(self) -> bool:
        """Do what the operator requested; True: the service is drained and may end."""
        self.save_usage()
        self._reload.check()
        dispatcher = self._state.dispatcher
        if not self._drain_requested or dispatcher is None:
            return False
        if not self._state.draining:
            self._state.draining = True
            dispatcher.drain()
            LOG.info("draining: no run starts any more; the service ends with the last running one")
        return dispatcher.drained

    def _settings_changed(self, before: Settings, now: Settings) -> None:
        change_level(before.logging.level, now.logging.level)
        state = self._state
        state.limits = Limits(now.limits)
        if state.dispatcher is not None:
            state.dispatcher.limit(state.limits)
        if state.ledger is not None:
            state.ledger.driver.settings_changed()
