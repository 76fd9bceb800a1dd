"""In-flight records: every output is recorded before its first byte, so that a crash leaves no unknown files.

Each run has one record, a JSON file beside the stream's checkpoint. It is removed after the commit, or by the sweep.
When the owner is dead, the sweep first notes the table's head. Later it deletes outputs that no retained snapshot
references, once the head has moved (a commit sent before the crash can then no longer land, because its base is not the
head) or the grace period has passed. An owner on another host is only known to be silent: it may be paused, so its
outputs wait for the head however long that takes. The record is removed when a second sweep finds no outputs; if an
executor that was lost may still write (`late_until`), only after that.

Only the table itself tells which outputs it references: the answers to a commit do not (one was lost, and the next says
that the table is gone, because it was renamed). So a table that is not under its name is looked for by its UUID. Its
outputs are then judged as always; if it is not found for certain, they stay, and the log names them.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFileIO

from compactor.commit.snapshots import PART
from compactor.commit.table_search import TableSearch
from compactor.credentials.renewing_file_io import repeated, vended_of
from compactor.errors import RetryError, StoppedError
from compactor.iceberg.other_compactors import RUN_ID
from compactor.iceberg.tables import Catalogs, OtherNameError, TableMissingError, TableView, head_of
from compactor.lease.owner import Owner
from compactor.locations import attempt_location, is_local, plain_path
from compactor.manifests.cache import ManifestCache
from compactor.reasons import Reason
from compactor.storage.opening import abort_uploads
from compactor.storage.state_files import StateFolder
from compactor.table_names import MAIN, TableName

LOG = logging.getLogger("firnline")
SUFFIX = ".json"
LOGGED = 10  # outputs that a log line names
SEARCH_SECONDS = 86_400.0
"""How long a table that was renamed is searched while some tables of its catalog cannot be read."""
UNREAD_HEAD = -2  # the owner is marked as dead, and the table's head is not noted yet


@dataclass(frozen=True)
class Record:
    """The outputs of one run. Times are seconds since the epoch; `prefixes` are folders of this run only.

    `abandoned`: the owner has ended this run, although it may be alive. `seen_head`, `seen_at`: the table's head when a
    sweep first found the owner dead. `swept`: a sweep has already deleted outputs. `attempts`: how often an output may
    be tried; each attempt writes a file of its own beside the name in `files` (`attempt_location`). `committed`: own
    names (`own_name`) of outputs that a snapshot of an earlier part of the run holds. `late_until`: until then an
    executor that has lost the driver may finish an output. `settles_at`: the run has committed, and from then on it is
    certain whether its catalog has rolled that back for a writer; 0: its catalog never does.
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
    seen_head: int | None = None
    seen_at: float | None = None
    swept: bool = False
    attempts: int = 1
    committed: tuple[str, ...] = ()
    late_until: float = 0.0
    settles_at: float = 0.0

    @property
    def outputs(self) -> list[str]:
        """Locations of all files that any attempt may have written, without those in `prefixes`."""
        return [attempt_location(file, attempt) for file in self.files for attempt in range(self.attempts)]

    @property
    def table(self) -> TableName:
        """The rewritten table."""
        return TableName(self.catalog, self.namespace, self.name)


class Verdict(Enum):
    """The action of a sweep for a record."""

    LEAVE = "leave"
    NOTE_HEAD = "note_head"
    CLEAN = "clean"


def judge(record: Record, *, owner_dead: bool | None, head: int | None, now: float, grace_seconds: float) -> Verdict:
    """Decide whether the unreferenced outputs of `record` may be deleted. Pure."""
    if _under_way(record, owner_dead, now):
        return Verdict.LEAVE
    if record.seen_at is None or record.seen_head == UNREAD_HEAD:
        return Verdict.NOTE_HEAD
    over = record.abandoned or owner_dead is True  # one that was only silent may be paused right before its commit
    if head != record.seen_head or (over and now - record.seen_at > grace_seconds):
        return Verdict.CLEAN
    return Verdict.LEAVE


def _under_way(record: Record, owner_dead: bool | None, now: float) -> bool:
    """Whether the owner lives and has not ended this run: then the table's head does not matter."""
    alive = record.lease_until > now if owner_dead is None else not owner_dead
    return alive and not record.abandoned


def _waits(record: Record, owner_dead: bool | None, now: float) -> bool:
    """Whether it is too early for a sweep. The last one comes when outputs can no longer be written or rolled back."""
    late = now < record.settles_at or (record.swept and now < record.late_until)
    return late or _under_way(record, owner_dead, now)


class InFlightRecords:
    """The folder of records. Writes are atomic: a temporary file is renamed."""

    def __init__(self, folder_uri: str, owner: Owner, lease_seconds: float, clock: Callable[[], float]) -> None:
        self._folder = StateFolder(folder_uri)
        self._owner = owner
        self._lease = lease_seconds
        self._clock = clock
        self._lock = threading.RLock()  # both a run's watch and its commit renew the lease
        self._unwritten: dict[str, Record] = {}  # ended runs whose end could not be written yet
        self._committed: dict[str, tuple[str, ...]] = {}  # by run, written with the next change of its record

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
        self, run_id: str, table: TableView, files: Sequence[str], prefixes: Sequence[str] = (), attempts: int = 1
    ) -> Record:
        """Record a run's outputs, before anything is written."""
        snapshot = table.snapshot
        record = Record(
            run_id=run_id,
            catalog=table.name.catalog,
            namespace=table.name.namespace,
            name=table.name.name,
            table_uuid=table.uuid,
            parent_snapshot_id=snapshot.snapshot_id if snapshot else -1,
            parent_sequence_number=(snapshot.sequence_number or 0) if snapshot else 0,
            owner=self._owner,
            lease_until=self._clock() + self._lease,
            created=self._clock(),
            files=tuple(files),
            prefixes=tuple(prefixes),
            ref=table.ref,
            attempts=attempts,
        )
        self.save(record)
        return record

    def renew(self, record: Record) -> Record:
        """Extend the lease. Called regularly during the run and before each attempt to commit.

        Raises:
            StoppedError: a sweep considers the run dead, because this process was suspended beyond its lease: its
                outputs may be deleted.
        """
        with self._lock:
            known = self._read(_name(record.run_id))
            if known is None or known.seen_at is not None:
                raise StoppedError(f"run {record.run_id} lost its lease on {record.table}; nothing was committed")
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

    def as_noted(self, record: Record) -> Record:
        """The record with all outputs that are known to be committed."""
        return replace(record, committed=self._committed.get(record.run_id, record.committed))

    def save(self, record: Record) -> None:
        """Write a record."""
        try:
            with self._lock:
                self._folder.write(_name(record.run_id), json.dumps(_tree(self.as_noted(record))).encode())
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

    def all(self) -> list[Record]:
        """All records, oldest first."""
        self._write_ends()
        records = []
        for name in self._folder.names():
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
            tree["committed"] = tuple(tree.get("committed", ()))  # records of earlier versions have none
            return Record(**{**tree, "owner": Owner(**tree["owner"])})
        except FileNotFoundError:
            return None  # another process has removed it
        except (ValueError, TypeError, KeyError) as error:
            LOG.warning(
                "%s is not a valid in-flight record; its outputs are not cleaned up: %s", self._folder.file(name), error
            )
            return None
        except OSError as error:
            raise RetryError(
                f"in-flight record {self._folder.file(name)} cannot be read: {error}; check state.checkpoint",
                reason=Reason.STATE_UNREADABLE,
            ) from error


def _tree(record: Record) -> dict[str, Any]:
    """Without newer fields that say nothing: the version before does not know them, and would sweep nothing."""
    newer = {"committed", "late_until", "settles_at"}
    return {key: value for key, value in asdict(record).items() if value or key not in newer}


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


def sweep(
    records: InFlightRecords,
    catalogs: Catalogs,
    cache: ManifestCache,
    *,
    now: float,
    grace_seconds: float,
    confirm: Callable[[], None] = lambda: None,
    may_ask: Callable[[TableName], bool] = lambda _table: True,
) -> dict[TableName, int]:
    """Clean up after runs of dead or ended owners; returns the number of deleted files per table.

    An error for one record is logged and does not stop the others. `confirm`: called before the files of a record are
    deleted; an error from it leaves them. `may_ask`: whether the table's catalog may be asked now; if not, the record
    waits for a later sweep.
    """
    removed: dict[TableName, int] = {}
    search = TableSearch(catalogs)
    for record in records.all():
        if not may_ask(record.table):
            continue
        try:
            count = _sweep_one(records, record, catalogs, search, cache, now, grace_seconds, confirm)
        except Exception as error:  # noqa: BLE001 - on any error of a catalog or a store the record stays
            LOG.warning("the sweep of run %s failed and is tried again later: %s", record.run_id, error)
            continue
        if count:
            removed[record.table] = removed.get(record.table, 0) + count
    return removed


def _sweep_one(
    records: InFlightRecords,
    record: Record,
    catalogs: Catalogs,
    search: TableSearch,
    cache: ManifestCache,
    now: float,
    grace: float,
    confirm: Callable[[], None],
) -> int:
    if record.catalog not in catalogs.names:
        return 0  # of other settings, or taken out of them for a while: its outputs may still have to be deleted
    owner_dead = record.owner.is_dead()
    if _waits(record, owner_dead, now):
        return 0  # without a call to the catalog: most records are of live runs
    table = _table_of(record, catalogs)
    if table is None:
        _look_elsewhere(records, record, search, now, grace)
        return 0
    if record.settles_at:
        return _settle(records, record, table, cache, confirm)
    snapshot = head_of(table.metadata, record.ref)
    head = snapshot.snapshot_id if snapshot else None
    if was_committed(table, record.run_id) and owner_dead:
        verdict = Verdict.CLEAN  # committed, and cannot be committed again: unreferenced files stay unreferenced
    else:
        verdict = judge(record, owner_dead=owner_dead, head=head, now=now, grace_seconds=grace)
    if verdict is Verdict.NOTE_HEAD:
        # The mark first, then the head: an owner that resumes in between has prepared its commit for this head or an
        # older one, or does not commit.
        records.save(replace(record, seen_head=UNREAD_HEAD, seen_at=now))
        current = head_of(catalogs.load(record.table).metadata, record.ref)
        seen_at = max(now, records.now)  # a sweep may take long, and the grace period begins here
        records.save(replace(record, seen_head=current.snapshot_id if current else None, seen_at=seen_at))
    if verdict is not Verdict.CLEAN:
        return 0
    confirm()
    deleted = delete_unreferenced(record, table, cache)
    if record.swept and not deleted:
        records.close(record)
    else:
        records.save(replace(record, swept=True))
    return deleted


def _settle(
    records: InFlightRecords, record: Record, table: TableView, cache: ManifestCache, confirm: Callable[[], None]
) -> int:
    """Delete the outputs of a commit that was rolled back, and remove the record.

    A table with one snapshot may hide others: Nessie shows the newest one of a branch, and another branch may have the
    outputs. Then nothing is deleted.
    """
    deleted = 0
    shows_history = len(table.metadata.snapshots) > 1
    if shows_history and not was_committed(table, record.run_id):  # most are: without a call to the store
        confirm()
        deleted = delete_unreferenced(replace(record, committed=()), table, cache)
    records.close(record)
    return deleted


def _table_of(record: Record, catalogs: Catalogs) -> TableView | None:
    """The record's table; None if it is not under its name any more."""
    try:
        table = catalogs.load(record.table)
    except OtherNameError as error:
        table = catalogs.load(error.called)
    except TableMissingError:
        return None
    return table if table.uuid == record.table_uuid else None


def _look_elsewhere(records: InFlightRecords, record: Record, search: TableSearch, now: float, grace: float) -> None:
    """Give the record its table's new name, for the next sweep, or remove it and log its outputs, which stay.

    Raises:
        RetryError: some tables cannot be read now; after a day, that is an answer.
    """
    if record.settles_at:
        records.close(record)  # it has committed: the outputs are the table's, wherever that is
        return
    if now - record.created <= grace:  # a search is expensive
        return
    try:
        found = search.find(record.catalog, record.table_uuid)
    except RetryError as error:
        if error.reason == Reason.CATALOG_UNAVAILABLE or now - record.created < SEARCH_SECONDS:
            raise
        found = str(error)
    if isinstance(found, TableName):
        LOG.info("table %s is now %s: outputs of run %s are looked for there", record.table, found, record.run_id)
        records.save(replace(record, namespace=found.namespace, name=found.name))
        return
    places = [file for file in record.files if own_name(file, record.run_id) not in record.committed]
    places += record.prefixes
    LOG.warning(
        "outputs of run %s are not deleted, because its table %s is not there any more and %s; if no table references "
        "them, remove them, by hand or by remove_orphan_files of the table that uses their folder now: %s%s",
        record.run_id,
        record.table,
        found,
        ", ".join(places[:LOGGED]),
        f" and {len(places) - LOGGED} more" if len(places) > LOGGED else "",
    )
    records.close(record)


def delete_unreferenced(record: Record, table: TableView, cache: ManifestCache) -> int:
    """Delete the record's outputs that no retained snapshot references; returns the number of deleted files.

    Raises:
        RetryError: the references cannot be read, or another table has this name now; nothing was deleted.
    """
    if table.uuid != record.table_uuid:
        raise RetryError(f"{record.table} is another table now", reason=Reason.TABLE_REPLACED)
    io = table.io
    candidates = set(record.outputs)
    for location in (*record.outputs, *(f"{prefix.rstrip('/')}/" for prefix in record.prefixes)):
        abort_uploads(location, io.properties, vended_of(io))
    for prefix in record.prefixes:
        candidates.update(repeated(io, partial(_files_below, io, prefix)))
    if not candidates:
        return 0
    kept = {own_name(path, record.run_id) for path in referenced_paths(table, record, cache)} | set(record.committed)
    deleted = 0
    for path in sorted(candidates):
        if own_name(path, record.run_id) not in kept and repeated(io, partial(_delete, io, path)):
            deleted += 1
    return deleted


def referenced_paths(table: TableView, record: Record, cache: ManifestCache) -> set[str]:
    """Data files of all retained snapshots that may list the run's outputs, from manifests newer than its parent."""
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in table.metadata.snapshots
        if not snapshot.sequence_number or snapshot.sequence_number > record.parent_sequence_number
        for manifest in table.manifests(snapshot)
        if not manifest.sequence_number or manifest.sequence_number > record.parent_sequence_number
    }
    return {entry.path for entries in cache.read(table, list(manifests.values())) for entry in entries}


def was_committed(table: TableView, run_id: str) -> bool:
    """Whether a retained snapshot is the run's last commit. False is no proof: the snapshot may have expired."""
    for snapshot in table.metadata.snapshots:
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        number, _, parts = summary.get(PART, "1/1").partition("/")
        if summary.get(RUN_ID) == run_id and number == parts:
            return True
    return False


def _files_below(io: Any, prefix: str) -> list[str]:
    file_system, path, scheme = _table_file_system(io, prefix)
    found = file_system.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    return [f"{scheme}{info.path}" for info in found if info.type == fs.FileType.File]


def _delete(io: Any, location: str) -> bool:
    file_system, path, _ = _table_file_system(io, location)
    if file_system.get_file_info(path).type == fs.FileType.NotFound:
        return False
    file_system.delete_file(path)
    return True


def _table_file_system(io: Any, location: str) -> tuple[fs.FileSystem, str, str]:
    if is_local(location):
        return fs.LocalFileSystem(), plain_path(location), ""
    scheme, authority, path = PyArrowFileIO.parse_location(location)
    arrow = io if isinstance(io, PyArrowFileIO) else PyArrowFileIO(io.properties)
    prefix = f"{scheme}://" if path.startswith(authority) and authority else f"{scheme}://{authority}"
    return arrow.fs_by_scheme(scheme, authority), path, prefix
