"""Pauses: tables that must not be rewritten for now. Small documents in the checkpoint's folder, not on Kafka.

`firnline pause` writes a document and the service reads them every few seconds, so a pause also works while the broker
is down. Each document has a file of its own, whose name says which tables: two people who pause at the same moment do
not lose each other's pause, and a document that is damaged still pauses its tables. A pause that holds too long costs
time; one that is lost costs a rewrite that somebody has forbidden.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from compactor.errors import InputError, retried
from compactor.iceberg.other_compactors import DAY_SECONDS
from compactor.reasons import Reason
from compactor.storage.state_files import StateFolder
from compactor.table_names import TableName

LOG = logging.getLogger("firnline")
FOLDER: Final = "pauses"
SUFFIX: Final = ".json"
VERSION: Final = 1
DAMAGED: Final = "its document is damaged; it holds until `firnline resume`"
READ_SECONDS: Final = 5.0
"""Between two looks at the folder: with the second after which a run notices, well within 15 s."""
LATEST: Final = 253_402_300_799.0
"""The end of the year 9999, in seconds since the epoch: no date is later."""
SILENT_SECONDS: Final = 60.0
"""Without a look that succeeded, after which the pauses are reported as not readable."""
_LONGEST_NAME: Final = 200  # of a file; most file systems allow 255 bytes, and a temporary name is longer


@dataclass(frozen=True)
class Pause:
    """Tables that match `glob` are not rewritten. Times in seconds since the epoch; `until` None: until resumed."""

    glob: str
    since: float
    until: float | None = None
    reason: str = ""

    def holds(self, now: float) -> bool:
        """Whether the pause has not ended by itself."""
        return self.until is None or now < self.until


def pause_of(table: TableName, pauses: Sequence[Pause], now: float) -> Pause | None:
    """A pause that holds this table now; None: it is not paused."""
    return next((each for each in pauses if each.holds(now) and table.matches(each.glob)), None)


class PauseFolder:
    """The documents in the checkpoint's folder."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = StateFolder(checkpoint)
        self._folder = StateFolder(f"{checkpoint.rstrip('/')}/{FOLDER}")

    def check_place(self) -> None:
        """Check that this is where a service keeps its state.

        Raises:
            InputError: there is no checkpoint here.
            RetryError: the store does not answer.
        """
        with _asked(self._checkpoint):
            there = self._checkpoint.exists()
        if not there:
            raise InputError(
                f"there is no checkpoint at {self._checkpoint.path}, so no service would see a change of its pauses: "
                "run this command where the service runs, with its settings. If it never ran there, create the folder"
            )

    def load(self) -> tuple[Pause, ...]:
        """All pauses, also those that have ended by themselves, by glob.

        Raises:
            RetryError: the store does not answer.
        """
        with _asked(self._folder):
            return tuple(pause for pause in map(self._read, self._names()) if pause is not None)

    def add(self, pause: Pause) -> None:
        """Write a pause; it replaces one with the same glob.

        Raises:
            InputError: the glob is too long.
            RetryError: the store does not answer.
        """
        name = _file_name(pause.glob)
        if len(name) > _LONGEST_NAME:
            raise InputError(f"{pause.glob!r} is too long for a pause: write a shorter glob, e.g. db.*")
        document = {"version": VERSION, "since": pause.since, "until": pause.until, "reason": pause.reason}
        with _asked(self._folder):
            self._folder.write(name, json.dumps(document).encode())

    def remove(self, glob: str) -> None:
        """End the pause with exactly this glob; one that is gone already is no error.

        Raises:
            RetryError: the store does not answer.
        """
        with _asked(self._folder):
            for name in self._names():
                if _glob_of(name) == glob:  # a name that no `add` wrote may stand for the same glob, e.g. %FF.json
                    self._remove(name)

    def _names(self) -> list[str]:
        return sorted(name for name in self._folder.names() if name.endswith(SUFFIX))

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):  # another `resume` was faster
            self._folder.remove(name)

    def _read(self, name: str) -> Pause | None:
        glob = _glob_of(name)
        try:
            return _pause(glob, json.loads(self._folder.read(name)))
        except FileNotFoundError:  # ended since the folder was listed
            return None
        except (ValueError, TypeError, KeyError):
            return Pause(glob, 0.0, None, DAMAGED)


def _file_name(glob: str) -> str:
    return quote(glob, safe="").replace(".", "%2E") + SUFFIX


def _glob_of(name: str) -> str:
    return unquote(name.removesuffix(SUFFIX))


def _pause(glob: str, document: Any) -> Pause:
    since, until, reason = document["since"], document["until"], document["reason"]
    numbers = [since] if until is None else [since, until]
    if not isinstance(reason, str) or any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
        raise ValueError(f"not a pause: {document}")
    if until is not None and until > LATEST:
        until = None
    if any(not abs(n) <= LATEST for n in (since, until or 0.0)):  # not a number, or no date
        raise ValueError(f"not a pause: {document}")
    return Pause(glob, float(since), None if until is None else float(until), reason)


def _asked(folder: StateFolder) -> AbstractContextManager[None]:
    what = f"pauses cannot be read or written in {folder.path}"
    return retried(what, Reason.STATE_UNREADABLE, "; check state.checkpoint")


class PauseWatch:
    """Reads the pauses every few seconds in a thread of its own: a store that hangs holds up no run.

    Pauses that were read last hold while the store does not answer. Clocks in seconds; `tables` are the known ones.
    """

    def __init__(
        self,
        folder: PauseFolder,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
        read_seconds: float = READ_SECONDS,
        tables: Callable[[], Collection[TableName]] = tuple,
    ) -> None:
        self._folder = folder
        self._tables = tables
        self._clock = clock
        self._ticks = ticks
        self._read_seconds = read_seconds
        self._read_at = ticks()
        self._known: tuple[Pause, ...] = ()
        self._held: dict[str, float] = {}  # when each glob held last, those of the last day
        self._failing = False
        self._stopping = threading.Event()

    def start(self) -> None:
        """Read the pauses, then go on reading them.

        Raises:
            RetryError: the store does not answer: it is not known what is paused.
        """
        self._take(self._folder.load())
        threading.Thread(target=self._serve, name="pauses", daemon=True).start()

    def stop(self) -> None:
        """Read no more. Does not wait for a store that hangs."""
        self._stopping.set()

    @property
    def current(self) -> tuple[Pause, ...]:
        """Pauses that hold now."""
        now = self._clock()
        return tuple(each for each in self._known if each.holds(now))

    def paused(self, table: TableName) -> bool:
        """Whether the table must not be rewritten now."""
        known = self._known
        return bool(known) and pause_of(table, known, self._clock()) is not None

    def held_until(self, table: TableName) -> float:
        """When a pause held the table last, in seconds since the epoch; 0 if none did within a day."""
        return max((at for glob, at in self._held.items() if table.matches(glob)), default=0.0)

    @property
    def trouble(self) -> str:
        """Why the pauses may be out of date; empty if they are not."""
        silent = self._ticks() - self._read_at
        if silent <= SILENT_SECONDS:
            return ""
        return f"not readable in state.checkpoint for {silent / 60:.0f} min; the pauses that were read last hold"

    def read(self) -> None:
        """Read the pauses once; a failure is logged, and the last ones hold."""
        try:
            self._take(self._folder.load())
        except Exception as error:  # noqa: BLE001 - stores raise errors of their own
            if not self._failing:
                LOG.warning("the pauses that were read last hold: %s", error)
            self._failing = True

    def _take(self, found: tuple[Pause, ...]) -> None:
        before = self._known
        self._known, self._read_at, self._failing = found, self._ticks(), False
        now = self._clock()
        kept = {glob: at for glob, at in self._held.items() if at > now - DAY_SECONDS}
        self._held = kept | {each.glob: now for each in found if each.holds(now)}
        for each in found:
            if each not in before and each.holds(now):
                LOG.info("paused: %s%s", each.glob, f" ({each.reason})" if each.reason else "")
                self._warn_of_no_table(each.glob)
        for each in before:
            if each.glob not in {other.glob for other in found}:
                LOG.info("resumed: %s", each.glob)

    def _warn_of_no_table(self, glob: str) -> None:
        """A glob with a typing error would pause nothing, and its author would not know."""
        tables = self._tables()
        if tables and not any(table.matches(glob) for table in tables):
            LOG.warning(
                "the pause of %s matches none of the %d tables that are known: if its name is wrong, end it with "
                "`firnline resume` and write it again",
                glob,
                len(tables),
            )

    def _serve(self) -> None:
        while not self._stopping.wait(self._read_seconds):
            self.read()
