"""Reload the settings file: on SIGHUP, and when it has changed.

A file that changed by itself is read once it has stayed the same for one look: an editor may have written half of it,
and half a file can be valid and mean something else. A pipe is read once, at the start.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from compactor.errors import InputError
from compactor.settings.current import CurrentSettings, Reloaded
from compactor.settings.pipe import is_pipe
from compactor.settings.tree import Settings, load_settings
from streaming.logs.events import LOG

LOOK_SECONDS: Final = 5.0
MOST_KEYS: Final = 10  # named on the health page


class SettingsReload:
    """Puts changes of the file into force. `check` is called every second by the main loop, or by a standby that polls.

    `applied`: called with the settings before and after a change, and after a signal: it looks at all tables.

    `path` None: there is no file, only the environment, which cannot change. `ticks`: a steady clock in seconds.
    """

    def __init__(
        self,
        path: Path | None,
        current: CurrentSettings,
        applied: Callable[[Settings, Settings], object],
        ticks: Callable[[], float] = time.monotonic,
        load: Callable[[Path | None], Settings] = load_settings,
    ) -> None:
        self.refused = False
        """Whether the file cannot be used as it is now, so that the old settings hold."""
        self.kept: tuple[str, ...] = ()
        """Keys that have another value in the file that was read last, and hold until a restart."""
        self._path = path
        self._is_pipe = is_pipe(path)
        self._current = current
        self._applied = applied
        self._ticks = ticks
        self._load = load
        self._asked = False
        self._read = self._seen = self._digest()
        self._next_look = ticks() + LOOK_SECONDS
        if self._is_pipe:
            LOG.info("settings come from a pipe: a change needs a restart", extra={"file": str(path)})

    @property
    def trouble(self) -> str:
        """Why the file is not in force, or which of its keys are not; empty if all is."""
        if self.refused:
            return "the settings file is not valid: the old settings hold; see the log"
        more = f" and {len(self.kept) - MOST_KEYS} more" if len(self.kept) > MOST_KEYS else ""
        return f"need a restart: {', '.join(self.kept[:MOST_KEYS])}{more}" if self.kept else ""

    def ask(self) -> None:
        """Reload at the next check. Called by a signal handler, so it takes no lock."""
        self._asked = True

    def catch_up(self) -> None:
        """Reload at once if the file has changed since it was read last: a standby becomes active."""
        found = self._digest()
        if found != self._read:
            self._read = self._seen = found
            self._reload(requested=False)

    def check(self) -> None:
        """Reload if it was requested, or if the file has changed and stayed the same since the last look."""
        if self._asked:
            self._asked = False
            self._read = self._seen = self._digest()
            self._reload(requested=True)
        elif self._ticks() >= self._next_look:
            self._next_look = self._ticks() + LOOK_SECONDS
            before, self._seen = self._seen, self._digest()
            if self._seen == before != self._read:
                self._read = self._seen
                self._reload(requested=False)

    def _reload(self, *, requested: bool) -> None:
        before = self._current.now
        if self._is_pipe:
            LOG.warning("settings not reloaded: they came from a pipe, which can be read only once; restart firnline")
            self._applied(before, before)
            return
        try:
            found = self._current.take(self._load(self._path))
        except Exception as error:  # noqa: BLE001 - no file may end the service
            self.refused = True
            said = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
            LOG.error("settings not reloaded: the old ones hold", extra={"error": said})
            return
        self._report(found)
        if found.changed or requested:
            self._applied(before, found.settings)

    def _report(self, found: Reloaded) -> None:
        LOG.info("settings reloaded", extra={"changed": list(found.changed)})
        self.refused, self.kept = False, found.kept
        if found.kept:
            LOG.warning("settings that need a restart keep their old values", extra={"keys": list(found.kept)})

    def _digest(self) -> str:
        if self._path is None or self._is_pipe:
            return ""
        try:
            return hashlib.sha256(self._path.read_bytes()).hexdigest()
        except OSError:
            return "not readable"
