"""Reload the settings file: on SIGHUP, and when it has changed.

A file that changed by itself is read once it has stayed the same for one look: an editor may have written half of it,
and half a file can be valid and mean something else. A pipe is read once, at the start.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Final

from compactor.errors import InputError
from compactor.settings.current import CurrentSettings
from compactor.settings.pipe import is_pipe
from compactor.settings.tree import Settings, load_settings
from streaming.logs.events import LOG

LOOK_SECONDS: Final = 5.0
MOST_KEYS: Final = 10  # named on the health page
Change = tuple[Settings, Settings]
"""The settings before and after a reload that is to be applied; both are the same after a signal without a change."""


class SettingsReload:
    """Puts changes of the file into force.

    `path` None: there is no file, only the environment, which cannot change.

    Attributes:
        refused: Whether the file cannot be used as it is now, so that the old settings hold.
        kept: Keys that have another value in the file that was read last, and hold until a restart.
        ticks: A steady clock in seconds.
    """

    def __init__(self, path: Path | None, current: CurrentSettings) -> None:
        self.refused = False
        self.kept: tuple[str, ...] = ()
        self.ticks = time.monotonic
        self._path = path
        self._is_pipe = is_pipe(path)
        self._current = current
        self._asked = False
        self._read = self._seen = self._digest()
        self._looked_at = self.ticks()
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

    def check(self, *, at_once: bool = False) -> Change | None:
        """Reload if it was requested, or if the file has changed and stayed the same since the last look.

        Returns what is to be applied. Called every second by the main loop, or by a standby that polls. `at_once`: a
        change need not stay.
        """
        now, asked, before = self.ticks(), self._asked, self._seen
        if not (asked or at_once or now - self._looked_at >= LOOK_SECONDS):
            return None
        self._asked, self._looked_at, self._seen = False, now, self._digest()
        if not asked and (self._seen == self._read or not (at_once or self._seen == before)):
            return None
        self._read = self._seen
        return self._reload(requested=asked)

    def _reload(self, *, requested: bool) -> Change | None:
        before = self._current.now
        if self._is_pipe:
            LOG.warning("settings not reloaded: they came from a pipe, which can be read only once; restart firnline")
            return before, before
        try:
            found = self._current.take(load_settings(self._path))
        except Exception as error:  # noqa: BLE001 - no file may end the service
            self.refused = True
            said = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
            LOG.error("settings not reloaded: the old ones hold", extra={"error": said})
            return None
        LOG.info("settings reloaded", extra={"changed": list(found.changed)})
        self.refused, self.kept = False, found.kept
        if found.kept:
            LOG.warning("settings that need a restart keep their old values", extra={"keys": list(found.kept)})
        return (before, found.settings) if found.changed or requested else None

    def _digest(self) -> str:
        if self._path is None or self._is_pipe:
            return ""
        try:
            return hashlib.sha256(self._path.read_bytes()).hexdigest()
        except OSError:
            return "not readable"
