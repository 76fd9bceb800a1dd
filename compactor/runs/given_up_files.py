"""Data files that could not be searched for deleted rows, or not be rewritten: they are left alone for an hour.

Also over restarts. Where the kernel kills a whole container for memory, nothing can be noted any more. So a process
notes which file groups it works on before it begins, in a file beside the checkpoint. If it dies, each of them is a
suspect. The next process works on one suspect at a time, which it notes before. Those that die twice are given up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from compactor.iceberg.tables import TableView
from compactor.rewrite.tasks.task_input import NAME_MAPPING
from compactor.spark.java_table import spark_has_ended
from compactor.storage.state_files import StateFile
from compactor.table_names import TableName

LOG = logging.getLogger("firnline")
AGAIN_SECONDS: Final = 3600.0
"""After which another attempt is made, although the data files are the same."""
NAME: Final = "given-up.json"
DEATHS: Final = 2
"""Of processes that worked on the same files, in a row: then they are given up. One may have had any other cause."""
LOST: Final = "files that could not be rewritten are tried again at once"
MOST_SHOWN: Final = 20
"""Data files by which a file group is known again: a run may rewrite a hundred thousand."""
DIED: Final = (
    "the service was killed twice while it rewrote these files, most likely because the container has too little "
    "memory for them: raise the memory of the container, or lower the target file size"
)


@dataclass(frozen=True)
class GivenUp:
    """Data files that were searched or rewritten together, by path, and why that failed."""

    paths: frozenset[str]
    why: str


@dataclass(frozen=True)
class _Noted:
    """`by`: what the work depends on besides its files; `at`: seconds since the epoch.

    `deaths`: how many processes have died at it, if this one does now; 0: it is not at fault; `DEATHS`: it is given up.
    """

    files: GivenUp
    by: tuple[object, ...]
    at: float
    deaths: int = DEATHS

    def holds(self, table: TableView, live: AbstractSet[str] | None, now: float) -> bool:
        """Our own merges replace some of the files, and not the one that cannot be read."""
        is_young = self.seconds_left(now) > 0
        is_live = live is None or not self.files.paths.isdisjoint(live)
        return is_young and self.by == _by(table) and is_live

    def seconds_left(self, now: float) -> float:
        since = now - self.at
        return AGAIN_SECONDS - since if since >= 0 else 0.0


class GivenUpFiles:
    """The given-up files of all tables. One thread at a time works on one table.

    `checkpoint`: the URI of the folder where they are kept for the next process; None: nowhere. `confirm`: as in
    `StateFile`.
    """

    def __init__(
        self,
        checkpoint: str | None = None,
        confirm: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._file = None if checkpoint is None else StateFile(checkpoint, NAME, confirm, LOST)
        self._clock = clock
        self._lock = threading.RLock()  # runs of several tables note at the same time
        self._alone = threading.Lock()  # held while a suspect is worked on
        self._noted: dict[TableName, tuple[_Noted, ...]] = {}
        self._suspects: dict[TableName, tuple[_Noted, ...]] = {}
        self._tried: dict[TableName, list[_Noted]] = {}

    def load(self) -> None:
        """Take over what the last process left.

        Raises:
            RetryError: the store does not answer.
        """
        now, rows = self._clock(), None
        if self._file is not None:
            rows = self._file.load(lambda tree: [_decoded(row) for row in tree["files"]])
        for table, noted in rows or ():
            if noted.deaths < DEATHS:
                self._suspects[table] = (*self._suspects.get(table, ()), replace(noted, at=now))
                continue
            self._noted[table] = (*self._noted.get(table, ()), replace(noted, at=min(noted.at, now)))
            if noted.files.why == DIED and noted.seconds_left(now) > 0:
                LOG.warning(
                    "%s: %d data files, e.g. %s, are left alone for an hour: %s",
                    table, len(noted.files.paths), min(noted.files.paths, default=""), DIED,
                )  # fmt: skip

    def note(self, table: TableView, given_up: Iterable[GivenUp], now: float) -> None:
        """The work on these files of `table` failed, and another attempt would fail too."""
        noted = tuple(_Noted(files, _by(table), now) for files in given_up)
        if not noted:
            return
        with self._lock:
            kept = {**self._noted, table.name: (*self._noted.get(table.name, ()), *noted)}
            self._noted = {name: each for name, each in kept.items() if any(one.seconds_left(now) > 0 for one in each)}
            self._save()

    def seconds_left(self, table: TableName, now: float) -> float | None:
        """After which another attempt may be made in the table; None: there is nothing to try."""
        left = [each.seconds_left(now) for each in self._noted.get(table, ())]
        return min((seconds for seconds in left if seconds > 0), default=None)

    def of(self, table: TableView, live: AbstractSet[str] | None, now: float) -> Mapping[str, str]:
        """Data files that need not be tried now, and why: nothing has changed that can help, and it is too early.

        `live`: the table's data files; None if they are not known yet.
        """
        with self._lock:
            holding = tuple(each for each in self._noted.pop(table.name, ()) if each.holds(table, live, now))
            if holding:
                self._noted[table.name] = holding
        return {path: each.files.why for each in holding for path in each.files.paths}

    @contextmanager
    def tried(self, table: TableView, groups: Sequence[Iterable[str]]) -> Iterator[None]:
        """While the block runs, these file groups are worked on: each is given by the paths of its data files."""
        now, by = self._clock(), _by(table)
        with self._lock:
            self._tried[table.name] = [_Noted(GivenUp(frozenset(paths), DIED), by, now, 1) for paths in groups]
            self._save()
        try:
            yield
        except BaseException as error:
            if spark_has_ended(error):
                raise  # this process ends too, and Spark's may have been killed for memory
            self._end(table.name)
            raise
        self._end(table.name)

    def _end(self, table: TableName) -> None:
        with self._lock:
            outlived = [each.files.paths for each in self._tried.pop(table, []) if not each.deaths]
            paths = frozenset[str]().union(*outlived)
            kept = self._suspects.get(table, ())
            self._suspects[table] = tuple(each for each in kept if each.files.paths.isdisjoint(paths))
            self._save()

    @contextmanager
    def attempt(self, table: TableView, numbers: Iterable[int], waits: Callable[[], bool]) -> Iterator[None]:
        """While the block runs, Spark works on the file groups with these numbers, of those that are `tried`.

        A suspect waits until no other one is worked on; `waits` is called meanwhile, each second, and says whether the
        run is over. It stays a suspect until the run ends that it outlives: a group may have several tasks.
        """
        suspects = sorted(self.suspects(table).intersection(numbers))
        if not suspects:
            yield
            return
        while not self._alone.acquire(timeout=1.0):
            if waits() or not self.suspects(table).intersection(numbers):
                yield
                return
        try:
            self._count(table, suspects, DEATHS)
            yield
        except BaseException as error:
            if not spark_has_ended(error):
                self._count(table, suspects, 0)
            raise
        else:
            self._count(table, suspects, 0)
        finally:
            self._alone.release()

    def suspects(self, table: TableView) -> frozenset[int]:
        """Numbers of the file groups that are `tried`, and during whose rewrite the last process has died."""
        tried, known, now = self._tried.get(table.name, ()), self._suspects.get(table.name, ()), self._clock()
        if not known:
            return frozenset()
        return frozenset(
            number
            for number, group in enumerate(tried)
            if any(each.holds(table, group.files.paths, now) for each in known)
        )

    def _count(self, table: TableView, numbers: Sequence[int], deaths: int) -> None:
        """Note what a death now would say of these file groups."""
        with self._lock:
            tried = self._tried.get(table.name, [])
            for number, noted in enumerate(tried):
                if number in numbers:
                    tried[number] = replace(noted, deaths=deaths, at=self._clock())
            self._save()

    def _save(self) -> None:
        if self._file is None:
            return
        now = self._clock()
        rows = [
            _encoded(table, each)
            for kept in (self._noted, self._suspects, self._tried)
            for table, noted in kept.items()
            for each in noted
            if each.deaths and (kept is self._tried or each.seconds_left(now) > 0)
        ]
        self._file.save({"files": rows})


def _encoded(table: TableName, noted: _Noted) -> dict[str, Any]:
    paths = sorted(noted.files.paths)
    return {
        "table": table.key,
        "by": noted.by,
        "at": noted.at,
        "deaths": noted.deaths,
        "why": noted.files.why,
        "paths": paths if noted.deaths >= DEATHS else paths[:MOST_SHOWN],
    }


def _decoded(row: Mapping[str, Any]) -> tuple[TableName, _Noted]:
    paths, texts = row["paths"], [row["why"], *row["paths"]]
    if not isinstance(paths, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"no data files: {row}")
    noted = _Noted(GivenUp(frozenset(paths), row["why"]), tuple(row["by"]), float(row["at"]), int(row["deaths"]))
    return TableName.of_key(row["table"]), noted


def _by(table: TableView) -> tuple[object, ...]:
    return table.uuid, table.metadata.current_schema_id, table.properties.get(NAME_MAPPING)
