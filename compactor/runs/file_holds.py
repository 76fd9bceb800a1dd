"""Data files that are left out for a while, because their rewrite or search failed or has killed the process.

What fails for a reason of the files is left out for an hour; what got no answer of the store, for its back-off. Where
the kernel kills a whole container for memory, nothing can be noted any more. So a file beside the checkpoint says at
each moment what is to be held if the process dies now: the file groups that it works on are suspects then. The next
process works on one suspect at a time. Those that die twice are left alone for an hour.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from compactor.errors import FirnlineError, GiveUpError
from compactor.iceberg.tables import TableView
from compactor.patience.backoff import LATER
from compactor.patience.holds import Hold, Holds, Key, What
from compactor.rewrite.tasks.task_input import NAME_MAPPING
from compactor.runs.usage import HOUR
from compactor.spark.java_table import spark_has_ended
from compactor.storage.state_files import StateFile, StateFolder
from compactor.table_names import TableName

LOG = logging.getLogger("firnline")
UNANSWERED: Final = replace(LATER, first_seconds=60.0, longest_seconds=600.0)
"""Of files without an answer: each attempt takes minutes. Shorter than `HOUR`, which is of files that were given up."""
NAME: Final = "holds.json"
LOST: Final = "files that could not be rewritten are tried again at once"
MOST_SHOWN: Final = 20
"""Data files by which a suspect is known again: a run may rewrite a hundred thousand."""
MOST_WAITS: Final = 1000
"""Waits that the file tells people of."""
DIED: Final = (
    "the service was killed twice while it rewrote these files, most likely because the container has too little "
    "memory for them: raise the memory of the container, or lower the target file size"
)
DIED_ONCE: Final = "the service was killed while it rewrote these files; they are rewritten alone"


Wait = dict[str, Any]
"""A hold as the pages, `debt --why` and the file tell it: `what`, `of`, `part`, `why` (texts), `until`."""


class FileHolds:
    """The holds of data files, of all tables. One thread at a time works on one table.

    `checkpoint`: the URI of the folder where they are kept for the next process; None: nowhere. `confirm`: as in
    `StateFile`.
    """

    def __init__(
        self, holds: Holds | None = None, checkpoint: str | None = None, confirm: Callable[[], None] = lambda: None
    ) -> None:
        self.holds = holds or Holds()
        self._file = None if checkpoint is None else StateFile(checkpoint, NAME, confirm, LOST)
        self._lock = threading.RLock()  # runs of several tables note at the same time
        self._alone = threading.Lock()  # held while a suspect is worked on
        self._if_it_dies: dict[TableName, list[Hold | None]] = {}
        self._told: list[Wait] = []

    def load(self) -> None:
        """Take over what the last process left.

        Raises:
            RetryError: the store does not answer.
        """
        rows = None if self._file is None else self._file.load(lambda tree: [*map(_decoded, tree["files"])])
        now = self.holds.clock()
        for left in rows or ():
            hold = replace(left, since=min(left.since, now), until=min(left.until, now + HOUR))
            if hold.key.what is What.SUSPECT:
                hold = replace(left, since=now, until=now + HOUR)
            if hold.lasts(now):
                self.holds.put(hold.key.what, hold.key.of, [hold])
            if hold.lasts(now) and hold.why == DIED:
                LOG.warning("%s: %s: %s", hold.key.of, _part(hold.key), DIED)

    def note(self, table: TableView, failed: Iterable[tuple[Iterable[str], FirnlineError]], what: What) -> None:
        """The rewrite (`files`) or search of these data files has failed: the next run leaves them out."""
        noted = [self._failed(table, frozenset(paths), error, what) for paths, error in failed]
        if noted:
            self.holds.put(what, table.name, noted)
            self.save()

    def _failed(self, table: TableView, paths: frozenset[str], error: FirnlineError, what: What) -> Hold:
        tries, now = 1 + self.failures(table.name, paths, what), self.holds.clock()
        seconds = HOUR if isinstance(error, GiveUpError) else UNANSWERED.seconds(tries)
        return Hold(Key(what, table.name, paths), str(error), now, now + seconds, _basis(table), tries)

    def failures(self, table: TableName, paths: frozenset[str], what: What = What.FILES) -> int:
        """How often the work on some of these files has failed in a row."""
        return max((each.tries for part, each in self.holds.known(what, table).items() if part & paths), default=0)

    def left_out(self, table: TableView, what: What = What.FILES, *, given_up: bool = False) -> Mapping[str, str]:
        """Data files that need not be tried now, and why: nothing has changed that can help, and it is too early.

        `given_up`: without the files that got no answer of the store.
        """
        basis, least_seconds = _basis(table), HOUR if given_up else 0.0
        holds = self.holds.of(what, table.name).values()
        lasting = [each for each in holds if each.basis == basis and each.until - each.since >= least_seconds]
        return {path: each.why for each in lasting for path in each.key.part}

    def until(self, table: TableName, *whats: What) -> float | None:
        """When another attempt may be made, in seconds since the epoch; None: there is nothing to try."""
        return min((each.until for what in whats for each in self.holds.of(what, table).values()), default=None)

    @contextmanager
    def under_way(self, table: TableView, groups: Sequence[Iterable[str]]) -> Iterator[None]:
        """While the block runs, these file groups are rewritten: each is given by the paths of its data files."""
        now, basis = self.holds.clock(), _basis(table)
        keys = [Key(What.SUSPECT, table.name, frozenset(sorted(paths)[:MOST_SHOWN])) for paths in groups]
        with self._lock:
            self._if_it_dies[table.name] = [Hold(key, DIED_ONCE, now, now + HOUR, basis) for key in keys]
            self.save()
        try:
            yield
        except BaseException as error:
            if spark_has_ended(error):
                raise  # this process ends too, and Spark's may have been killed for memory
            self._outlived(table.name, keys)
            raise
        self._outlived(table.name, keys)

    def _outlived(self, table: TableName, keys: Sequence[Key]) -> None:
        with self._lock:
            left = self._if_it_dies.pop(table)
            done = frozenset[str]().union(*(key.part for key, hold in zip(keys, left, strict=True) if hold is None))
            known = self.holds.known(What.SUSPECT, table)
            self.holds.release(What.SUSPECT, table, [part for part in known if part & done])
            self.save()

    def suspects(self, table: TableName, groups: Sequence[Iterable[str]]) -> frozenset[int]:
        """Numbers of the file groups during whose rewrite the last process has died."""
        known = frozenset[str]().union(*self.holds.of(What.SUSPECT, table))
        return frozenset(number for number, paths in enumerate(groups) if not known.isdisjoint(paths))

    @contextmanager
    def alone(
        self, table: TableView, suspects: Mapping[int, Collection[str]], waits: Callable[[], bool]
    ) -> Iterator[None]:
        """While the block runs, Spark works on these suspects, by their numbers among the groups that are under way.

        It waits until no other one is worked on; until then `waits` is called each second, and says whether the run is
        over. A suspect stays one until the run ends that it outlives: a group may have several tasks.
        """
        while suspects and not self._alone.acquire(timeout=1.0):
            if waits():
                suspects = {}
        if not suspects:
            yield
            return
        now = self.holds.clock()
        try:
            self._leave(table.name, {
                number: Hold(Key(What.FILES, table.name, frozenset(paths)), DIED, now, now + HOUR, _basis(table))
                for number, paths in suspects.items()
            })  # fmt: skip
            yield
        except BaseException as error:
            if not spark_has_ended(error):
                self._leave(table.name, dict.fromkeys(suspects))
            raise
        else:
            self._leave(table.name, dict.fromkeys(suspects))
        finally:
            self._alone.release()

    def _leave(self, table: TableName, left: Mapping[int, Hold | None]) -> None:
        """Note what a death now would leave of these file groups."""
        with self._lock:
            for number, hold in left.items():
                self._if_it_dies[table][number] = hold
            self.save()

    def tell(self) -> None:
        """Write the file if the waits that it tells people of have changed."""
        if waits_of(self.holds.waits) != self._told:
            self.save()

    def save(self) -> None:
        """Write the file."""
        if self._file is None:
            return
        with self._lock:
            waits = self.holds.waits
            kept = [each for each in waits if each.key.what in {What.FILES, What.SUSPECT}]
            kept += [each for left in self._if_it_dies.values() for each in left if each is not None]
            told = waits_of(waits)
            if self._file.save({"files": [*map(_encoded, kept)], "waits": told}):
                self._told = told


def told_waits(checkpoint: str) -> list[Wait]:
    """What waits, as the service on this checkpoint wrote last.

    Raises:
        OSError: the store does not answer.
        ValueError: the file is damaged.
    """
    try:
        tree = json.loads(StateFolder(checkpoint).read(NAME))
        return [each for each in tree.get("waits", ()) if each["of"] and each["until"] > time.time()]
    except FileNotFoundError:
        return []
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{NAME} is damaged: {error}") from error


def waits_of(holds: Sequence[Hold]) -> list[Wait]:
    """Holds for people, the next to end first."""
    return [
        {"what": each.key.what, "of": str(each.key.of), "part": _part(each.key), "why": each.why,
         "until": each.until}
        for each in holds[:MOST_WAITS]
    ]  # fmt: skip


def _part(key: Key) -> str:
    """The part of the table that is held, for people; empty: all of it."""
    if isinstance(key.part, frozenset):
        return f"{len(key.part)} data files, e.g. {min(key.part, default='')}"
    return "" if key.part is None else str(key.part)


def _encoded(hold: Hold) -> dict[str, Any]:
    return {
        "what": hold.key.what, "table": hold.key.of.key, "paths": sorted(hold.key.part), "why": hold.why,  # type: ignore[attr-defined]
        "since": hold.since, "until": hold.until, "basis": hold.basis, "tries": hold.tries,
    }  # fmt: skip


def _decoded(row: Mapping[str, Any]) -> Hold:
    paths, texts = row["paths"], [row["why"], *row["paths"]]
    if not isinstance(paths, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"no data files: {row}")
    key = Key(What(row["what"]), TableName.of_key(row["table"]), frozenset(paths))
    return Hold(key, row["why"], float(row["since"]), float(row["until"]), tuple(row["basis"]), int(row["tries"]))


def _basis(table: TableView) -> tuple[object, ...]:
    """What the work depends on besides the files."""
    return table.uuid, table.metadata.current_schema_id, table.properties.get(NAME_MAPPING)
