"""In-flight records: every output is recorded before its first byte, so that a crash leaves no unknown files.

Each run has one record, a JSON file beside the stream's checkpoint. It is removed after the commit, or by the sweep
(sweep.py).
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from compactor.commit.sends import Sent
from compactor.errors import RetryError, StoppedError, retried
from compactor.iceberg.tables import TableView
from compactor.lease.owner import Owner
from compactor.locations import attempt_location, plain_path
from compactor.reasons import Reason
from compactor.storage.state_files import StateFolder
from compactor.table_names import MAIN, TableName

LOG = logging.getLogger("firnline")
SUFFIX = ".json"
ASIDE = ".unreadable"  # ends the names of records that were set aside
MOST_ATTEMPTS = 10_000  # of an output task; each has a file name


def new_run_id(table: TableView, nonce: str | None = None) -> str:
    """The id of a new run: 64 random bits, and 64 of a digest of them, the table and the snapshot that it starts from.

    Names of outputs carry it. So a forged record can name existing files only together with the table that they belong
    to, and the snapshot after which they were written (`Record.is_genuine`). `nonce`: these bits, as 16
    hexadecimal digits.
    """
    nonce = nonce or secrets.token_hex(8)
    return str(uuid.UUID(nonce + _digest(nonce, table.uuid, *_parent(table))))


@dataclass(frozen=True)
class Record:
    """The outputs of one run. Times are seconds since the epoch; `prefixes` are folders of this run only.

    `abandoned`: the owner has ended this run, although it may be alive. `seen_at`: when a sweep has taken the owner for
    dead; it sends nothing any more. `swept`: what may go has been deleted before. `attempts`: how often an output may
    be tried; each attempt writes a file of its own beside the name in `files` (`attempt_location`). `committed`: own
    names (`own_name`) of outputs that a snapshot of an earlier part of the run holds. `late_seconds`: for so long an
    executor that has lost the driver may write on; `late_until`: until when. `settles_at`: the run has committed, and
    from then on it is certain whether its catalog has rolled that back for a writer; 0: its catalog never does.
    `sends`: commits of these outputs that were sent, or are about to be, and can land; None: it is not known which.
    """

    run_id: str
    catalog: str
    namespace: tuple[str, ...]
    name: str
    table_uuid: str
    parent_snapshot_id: int
    parent_sequence_number: int
    owner: Owner
    lease_until: float
    created: float
    files: tuple[str, ...]
    prefixes: tuple[str, ...] = ()
    ref: str = MAIN
    abandoned: bool = False
    seen_at: float | None = None
    swept: bool = False
    attempts: int = 1
    committed: tuple[str, ...] = ()
    late_until: float = 0.0
    settles_at: float = 0.0
    sends: tuple[Sent, ...] | None = ()
    late_seconds: float = 0.0

    def __post_init__(self) -> None:
        texts = [self.run_id, self.catalog, *self.namespace, self.name, self.table_uuid, self.ref]
        texts += [*self.files, *self.prefixes, *self.committed]
        numbers = [self.created, self.lease_until, self.late_until, self.late_seconds, self.settles_at]
        numbers += [self.attempts, self.parent_snapshot_id, self.parent_sequence_number]
        well = all(isinstance(each, str) for each in texts) and all(isinstance(each, int | float) for each in numbers)
        if not well or self.attempts > MOST_ATTEMPTS:
            raise ValueError(f"a value of another type, or too many attempts ({self.attempts})")

    @property
    def outputs(self) -> list[str]:
        """Locations of all files that any attempt may have written, without those in `prefixes`."""
        return [attempt_location(file, attempt) for file in self.files for attempt in range(self.attempts)]

    @property
    def table(self) -> TableName:
        """The rewritten table."""
        return TableName(self.catalog, self.namespace, self.name)

    @property
    def is_genuine(self) -> bool:
        """Whether the table and the parent snapshot are those for which the run's id was made."""
        nonce, digest = self.run_id.replace("-", "")[:16], self.run_id.replace("-", "")[16:]
        return digest == _digest(nonce, self.table_uuid, self.parent_snapshot_id, self.parent_sequence_number)


class InFlightRecords:
    """The folder of records. Writes are atomic: a temporary file is renamed."""

    def __init__(self, folder_uri: str, owner: Owner, lease_seconds: float, clock: Callable[[], float]) -> None:
        self._folder = StateFolder(folder_uri)
        self._owner = owner
        self._lease = lease_seconds
        self._clock = clock
        self.unreadable = 0
        """Records that were set aside, when `all` looked last: their outputs are not deleted."""
        self._lock = threading.RLock()  # both a run's watch and its commit renew the lease
        self._unwritten: dict[str, Record] = {}  # ended runs whose end could not be written yet
        self._committed: dict[str, tuple[str, ...]] = {}  # by run, written with the next change of its record
        self._sends: dict[str, tuple[Sent, ...]] = {}  # by run, as `Record.sends`

    @property
    def location(self) -> str:
        """The folder."""
        return self._folder.path

    @property
    def now(self) -> float:
        """Seconds since the epoch."""
        return self._clock()

    def probe(self) -> None:
        """Write, move, read and remove a test file, so that a problem shows before the first run.

        Raises:
            OSError: one of these operations failed.
        """
        name = f"probe-{uuid.uuid4().hex}"
        self._folder.write(name, b"{}")
        self._folder.read(name)
        self._folder.remove(name)

    def open(
        self,
        run_id: str,
        table: TableView,
        files: Sequence[str],
        prefixes: Sequence[str] = (),
        attempts: int = 1,
        late_seconds: float = 0.0,
    ) -> Record:
        """Record a run's outputs, before anything is written."""
        parent_snapshot_id, parent_sequence_number = _parent(table)
        record = Record(
            run_id=run_id,
            catalog=table.name.catalog,
            namespace=table.name.namespace,
            name=table.name.name,
            table_uuid=table.uuid,
            parent_snapshot_id=parent_snapshot_id,
            parent_sequence_number=parent_sequence_number,
            owner=self._owner,
            lease_until=self._clock() + self._lease,
            created=self._clock(),
            files=tuple(files),
            prefixes=tuple(prefixes),
            ref=table.ref,
            attempts=attempts,
            late_seconds=late_seconds,
        )
        self.save(record)
        return record

    def renew(self, record: Record, *, sending: Sent | None = None) -> Record:
        """Extend the lease. Called regularly during the run, and before each attempt to commit: then with `sending`.

        What is sent was made before: a sweep that takes the run for dead just then looks at the table after that.

        Raises:
            StoppedError: a sweep considers the run dead, because this process was suspended beyond its lease: its
                outputs may be deleted.
        """
        with self._lock:
            known = self._read(_name(record.run_id))
            if known is None or known.seen_at is not None:
                raise StoppedError(f"run {record.run_id} lost its lease on {record.table}; nothing was committed")
            if sending:
                self._sends[record.run_id] = (*self._sends.get(record.run_id, ()), sending)
            renewed = replace(record, lease_until=self._clock() + self._lease)
            self.save(renewed)
        return renewed

    def note_committed(self, run_id: str, locations: Iterable[str]) -> None:
        """These outputs are in a snapshot: from now on they are the table's, and only an expiry may delete them.

        Not every catalog shows all snapshots that hold a file (branches of Nessie).
        """
        with self._lock:
            names = [own_name(location, run_id) for location in locations]
            self._committed[run_id] = (*self._committed.get(run_id, ()), *names)

    def note_unsent(self, run_id: str, sending: Sent) -> None:
        """This one was not sent after all; the record says so with its next change."""
        with self._lock:
            self._sends[run_id] = tuple(each for each in self._sends[run_id] if each != sending)

    def note_open(self, run_id: str, sends: Iterable[Sent]) -> None:
        """Of all commits that the run has sent, only these can still land."""
        with self._lock:
            self._sends[run_id] = tuple(sends)

    def as_noted(self, record: Record) -> Record:
        """The record with all outputs that are known to be committed, and all commits that were sent."""
        committed = self._committed.get(record.run_id, record.committed)
        return replace(record, committed=committed, sends=self._sends.get(record.run_id, record.sends))

    def save(self, record: Record) -> None:
        """Write a record."""
        try:
            with self._lock:
                self._folder.write(_name(record.run_id), json.dumps(asdict(self.as_noted(record))).encode())
        except OSError as error:
            raise RetryError(
                f"in-flight record of run {record.run_id} cannot be written to {self._folder.path}: {error}; "
                "check state.checkpoint",
                reason=Reason.STATE_UNWRITABLE,
            ) from error

    def abandon(self, record: Record) -> None:
        """Write that the owner has ended this run. If the folder cannot be written, `all` tries again."""
        with self._lock:
            self._unwritten[record.run_id] = replace(record, abandoned=True)
        self._write_ends()

    def close(self, record: Record) -> None:
        """Remove the record of a run that is committed or cleaned up. If that fails, a later sweep removes it."""
        try:
            with suppress(FileNotFoundError):  # a sweep was first
                self._folder.remove(_name(record.run_id))
        except OSError:
            self.abandon(record)
        else:
            self._committed.pop(record.run_id, None)
            self._sends.pop(record.run_id, None)

    def all(self) -> list[Record]:
        """All records, oldest first.

        Raises:
            RetryError: the folder cannot be read.
        """
        self._write_ends()
        records = []
        what = f"the records of runs in {self._folder.path} cannot be read"
        with retried(what, Reason.STATE_UNREADABLE, "; check state.checkpoint"):
            names = self._folder.names()
        self.unreadable = sum(name.endswith(ASIDE) for name in names)
        for name in names:
            with suppress(RetryError):  # the next sweep reads it
                records.append(self._read(name) if name.endswith(SUFFIX) else None)
        return sorted((record for record in records if record), key=lambda record: record.created)

    def _write_ends(self) -> None:
        with self._lock:
            for run_id, record in list(self._unwritten.items()):
                with suppress(RetryError):  # a full or unreachable folder: the next sweep writes it
                    self.save(record)
                    del self._unwritten[run_id]

    def _read(self, name: str) -> Record | None:
        try:
            tree: dict[str, Any] = json.loads(self._folder.read(name))
            for key in ("namespace", "files", "prefixes"):
                tree[key] = tuple(tree[key])
            tree["committed"] = tuple(tree.get("committed", ()))
            sends = tree["sends"]
            tree["sends"] = None if sends is None else tuple(Sent(*each) for each in sends)
            return Record(**{**tree, "owner": Owner(**tree["owner"])})
        except FileNotFoundError:
            return None  # another process has removed it
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            self._set_aside(name, error)
            return None
        except OSError as error:
            raise RetryError(
                f"in-flight record {self._folder.file(name)} cannot be read: {error}; check state.checkpoint",
                reason=Reason.STATE_UNREADABLE,
            ) from error

    def _set_aside(self, name: str, error: Exception) -> None:
        """Rename a record that is none. If the folder cannot be written, the next sweep tries again."""
        LOG.warning(
            "%s is not a valid in-flight record, and is set aside as %s%s: %s; its outputs are not deleted. If a "
            "version of firnline after this one has written it, give it back its name once that one runs; else remove "
            "it, and the files with its name by remove_orphan_files of its table",
            self._folder.file(name), name, ASIDE, error,
        )  # fmt: skip
        with suppress(OSError):
            self._folder.rename(name, name + ASIDE)
            self.unreadable += 1


def _parent(table: TableView) -> tuple[int, int]:
    """Id and sequence number of the snapshot that a run starts from."""
    snapshot = table.snapshot
    return (snapshot.snapshot_id, snapshot.sequence_number or 0) if snapshot else (-1, 0)


def _digest(nonce: str, table_uuid: str, parent_snapshot_id: int, parent_sequence_number: int) -> str:
    text = f"{nonce} {table_uuid} {parent_snapshot_id} {parent_sequence_number}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def own_name(location: str, run_id: str) -> str:
    """What tells a run's outputs apart however their location is spelled: from the folder or file with its id on.

    Hadoop writes `file:///a//b` as `file:/a/b` into manifests. A location without the id stays whole.
    """
    at = location.find(run_id)
    if at < 0:
        return plain_path(location)
    return re.sub("/+", "/", location[location.rfind("/", 0, at) + 1 :])


def _name(run_id: str) -> str:
    return f"{run_id}{SUFFIX}"
