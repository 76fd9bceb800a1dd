"""The ledger's state on local disk: one SQLite database with the head and the packed counts of every table.

It is a cache. A lost or damaged database costs one count of each table, no more. A look at a table reads what it needs,
keeps its changes in memory, and saves them in one transaction, so that the state of a table is always that of a
completed step.
"""

from __future__ import annotations

import logging
import re
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from compactor.errors import RetryError
from compactor.reasons import Reason

LOG = logging.getLogger("firnline")
TABLES = """
CREATE TABLE IF NOT EXISTS heads (name TEXT PRIMARY KEY, head TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS slots (
  name TEXT NOT NULL, number INTEGER NOT NULL, packed BLOB NOT NULL, PRIMARY KEY (name, number)
) WITHOUT ROWID;
"""
# A crash of the machine may lose the last transactions, never a part of one. PASSIVE checkpoints keep the log short.
PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL", "cache_size=-8192", "temp_store=MEMORY")


class LedgerDatabase:
    """All tables' state. Thread-safe: one connection, used by one thread at a time for less than a millisecond.

    `file`: where it lies. `generation`: grows when the database is set aside. What was read before is not continued in
    the empty one.
    `began_empty`: whether no table was counted when it was opened, and no earlier state was lost then.
    """

    def __init__(self, file: Path, *, lost: bool = False) -> None:
        """Open or create the database; a damaged one is set aside. `lost`: an earlier one could not be copied.

        Raises:
            OSError: the folder cannot be written, or another process uses the database.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        self.file = file
        self._lock = threading.Lock()
        self._reopens = False
        self.generation = 0
        try:
            self._connection, set_aside = _opened_or_anew(file)
            is_empty = self._connection.execute("SELECT 1 FROM heads LIMIT 1").fetchone() is None
            self.began_empty = is_empty and not (set_aside or lost)
        except sqlite3.OperationalError as error:
            raise OSError(f"the ledger's state {file} cannot be opened: {error}") from error

    def state(self, name: str) -> TableState:
        """The state of one table, as a `LedgerStore`. Use it in one thread, then `save` it."""
        return TableState(self, name)

    def close(self) -> None:
        """Write everything and close."""
        with self._lock:
            self._reopens = False
            self._connection.close()

    def forget(self, name: str) -> None:
        """Delete the state of one table."""
        self.save(name, head=None, cleared=True, slots={})

    def names(self) -> list[str]:
        """The tables that have a state."""
        with self._using("read") as connection:
            return [str(name) for (name,) in connection.execute("SELECT name FROM heads")]

    def head(self, name: str, generation: int | None = None) -> str | None:
        with self._using("read", generation) as connection:
            found = connection.execute("SELECT head FROM heads WHERE name = ?", (name,)).fetchone()
        return None if found is None else str(found[0])

    def slot(self, name: str, number: int, generation: int | None = None) -> bytes | None:
        with self._using("read", generation) as connection:
            found = connection.execute(
                "SELECT packed FROM slots WHERE name = ? AND number = ?", (name, number)
            ).fetchone()
        packed: bytes | None = None if found is None else found[0]
        return packed

    def slots(self, name: str, generation: int | None = None) -> dict[int, bytes]:
        """All packed values of one table: about 40 bytes for each partition."""
        with self._using("read", generation) as connection:
            return dict(connection.execute("SELECT number, packed FROM slots WHERE name = ?", (name,)).fetchall())

    def save(
        self,
        name: str,
        *,
        head: str | None,
        cleared: bool,
        slots: Mapping[int, bytes | None],
        generation: int | None = None,
    ) -> None:
        """Save the changes of one look. `cleared`: delete the table's earlier state first. `head`: None keeps it.

        `generation`: of the database that the look began with.

        Raises:
            RetryError: the disk is full or does not answer, or the database was set aside; nothing was saved.
        """
        with self._using("saved", generation) as connection:
            if cleared:
                connection.execute("DELETE FROM slots WHERE name = ?", (name,))
                connection.execute("DELETE FROM heads WHERE name = ?", (name,))
            gone = [(name, number) for number, packed in slots.items() if packed is None]
            kept = [(name, number, packed) for number, packed in slots.items() if packed is not None]
            connection.executemany("DELETE FROM slots WHERE name = ? AND number = ?", gone)
            connection.executemany("INSERT OR REPLACE INTO slots VALUES (?, ?, ?)", kept)
            if head is not None:
                connection.execute("INSERT OR REPLACE INTO heads VALUES (?, ?)", (name, head))

    @contextmanager
    def _using(self, done: str, generation: int | None = None) -> Iterator[sqlite3.Connection]:
        used = self.generation
        try:
            with self._lock:
                used = self.generation
                if generation not in {None, used}:
                    raise RetryError(
                        f"the ledger's state in {self.file} was damaged, and set aside during a look: its table is "
                        "counted again; check the disk if this happens often",
                        reason=Reason.STATE_UNREADABLE,
                    )
                if self._reopens:
                    (self._connection, _), self._reopens = _opened_or_anew(self.file), False
                with self._connection as connection:
                    yield connection
        except (sqlite3.Error, OSError) as error:
            if type(error) is sqlite3.DatabaseError:  # its subclasses are other errors, e.g. a closed connection
                self._set_aside(error, used)
            raise RetryError(
                f"the ledger's state in {self.file} cannot be {done}: {error}; check the disk",
                reason=Reason.NO_SPACE if "full" in str(error) else Reason.UNAVAILABLE,
            ) from error

    def _set_aside(self, damage: sqlite3.Error, generation: int) -> None:
        """The database was damaged after it was opened: go on with an empty one, as soon as the disk lets us.

        `generation`: in which the damage was found. Another thread may have found it too, and was faster.
        """
        with self._lock, suppress(OSError, sqlite3.Error):
            if generation != self.generation:
                return
            self.generation += 1
            self._reopens = True  # by the next use, if it fails here
            self._connection.close()
            self._connection, self._reopens = _opened_anew(self.file, damage), False


def _opened_or_anew(file: Path) -> tuple[sqlite3.Connection, bool]:
    """Open the database; one that is damaged is set aside for an empty one, with True.

    Raises:
        sqlite3.OperationalError: locked, not readable, disk full: nothing is damaged.
        OSError: the damaged one cannot be renamed.
    """
    try:
        return _opened(file), False
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        return _opened_anew(file, error), True


def _opened_anew(file: Path, damage: sqlite3.Error) -> sqlite3.Connection:
    """Keep a damaged database under another name, and create an empty one."""
    aside = file.with_name(f"{file.name}.damaged-{int(time.time())}")
    LOG.warning("the ledger's state %s is damaged (%s); it is kept as %s, and all tables are counted again",
                file, damage, aside.name)  # fmt: skip
    for each in (file, _beside(file, "wal"), _beside(file, "shm")):
        if each.exists():
            each.rename(str(each).replace(file.name, aside.name))
    return _opened(file)


def opened_by(file: Path, token: int) -> LedgerDatabase:
    """Open the database of the lease holder with this token: a copy of its predecessor's, whose file is removed.

    A predecessor may be paused, not dead: it may hold a lock on its file, and its later changes must not mix with ours
    (on a network file system that would damage the database). It goes on with a file that has no name any more. If
    there is no room for a copy, all tables are counted again.

    Raises:
        OSError: as of `LedgerDatabase`.
    """
    own, copy = file.with_name(f"{file.stem}.{token}{file.suffix}"), file.with_suffix(".copy")
    name = re.compile(rf"({re.escape(file.stem)}(?:\.(\d+))?{re.escape(file.suffix)})(?:-wal|-shm)?")
    matches = [match for path in file.parent.glob("*") if (match := name.fullmatch(path.name))]
    found = {int(match[2] or 0): file.with_name(match[1]) for match in matches if match[0] == match[1]}
    found.pop(token, None)  # of a lease whose document was lost: tokens began anew
    lost = False
    _remove(own)
    if found:
        try:
            _copy(found[max(found)], own, copy)
        except OSError as error:
            LOG.warning("the ledger's state %s cannot be copied (%s): all tables are counted again", file, error)
            _remove(own)
            lost = True
    copy.unlink(missing_ok=True)
    for rest in {match[1] for match in matches} - {own.name}:  # also what start-ups without room have left
        _remove(file.with_name(rest))
    return LedgerDatabase(own, lost=lost)


def _copy(before: Path, own: Path, copy: Path) -> None:
    if _beside(before, "wal").exists():
        shutil.copyfile(_beside(before, "wal"), _beside(own, "wal"))
    shutil.copyfile(before, copy)
    copy.replace(own)  # last: a copy that was cut short is never taken for a database


def _remove(file: Path) -> None:
    for path in (file, _beside(file, "wal"), _beside(file, "shm")):
        path.unlink(missing_ok=True)


def _beside(file: Path, what: str) -> Path:
    return Path(f"{file}-{what}")


def _opened(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, check_same_thread=False)
    connection.text_factory = _text
    try:
        for pragma in PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        connection.executescript(TABLES)
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError:
        connection.close()
        raise
    if found != "ok":
        connection.close()
        raise sqlite3.DatabaseError(found)
    return connection


def _text(found: bytes) -> str:
    """Text as it was saved. Damaged text is read too: who decodes it finds the damage, and counts the table again."""
    return found.decode(errors="replace")


class TableState:
    """A `LedgerStore` over the database: reads through, keeps changes in memory until `save`.

    Each call raises a `RetryError` once the database was set aside.
    """

    def __init__(self, database: LedgerDatabase, name: str) -> None:
        self.generation = database.generation
        self._database = database
        self._name = name
        self._head: str | None = None
        self._cleared = False
        self._changed: dict[int, bytes | None] = {}

    def head(self) -> str | None:
        if self._head is not None or self._cleared:
            return self._head
        return self._database.head(self._name, self.generation)

    def put_head(self, text: str) -> None:
        self._head = text

    def slot(self, number: int) -> bytes | None:
        if number in self._changed or self._cleared:
            return self._changed.get(number)
        return self._database.slot(self._name, number, self.generation)

    def put_slot(self, number: int, packed: bytes | None) -> None:
        self._changed[number] = packed

    def slots(self) -> Iterator[tuple[int, bytes]]:
        saved = {} if self._cleared else self._database.slots(self._name, self.generation)
        merged: dict[int, bytes | None] = {**saved, **self._changed}
        return ((number, packed) for number, packed in merged.items() if packed is not None)

    def clear(self) -> None:
        self._head, self._cleared, self._changed = None, True, {}

    def save(self) -> bool:
        """Save all changes at once; returns whether there were any.

        Raises:
            RetryError: the disk is full or does not answer; nothing was saved.
        """
        is_changed = self._cleared or bool(self._changed) or self._head is not None
        if is_changed:
            self._database.save(
                self._name,
                head=self._head,
                cleared=self._cleared,
                slots=self._changed,
                generation=self.generation,
            )
        self._head, self._cleared, self._changed = None, False, {}
        return is_changed
