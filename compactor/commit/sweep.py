"""The sweep of in-flight records: delete what ended runs have written and no snapshot references.

The record lists all commits that were sent. Once the owner is dead, or has ended the run, and none of these can land
any more (sends.py), outputs go that no retained snapshot references; until then they stay, however long that takes. An
owner on another host is only known to be silent: it may be paused right before it sends. It is marked as dead first, so
that it sends nothing that it has not prepared by then, and all that it may have prepared counts as sent. The record is
removed when a second sweep finds no outputs; if an executor that was lost may still write (`late_until`), only after
that.

Only the table itself tells which outputs it references: the answers to a commit do not (one was lost, and the next says
that the table is gone, because it was renamed). So a table that is not under its name is looked for by its UUID. Its
outputs are then judged as always; if it is not found for certain, they stay, and the log names them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.snapshots import Operation

from compactor.commit.deletion import ENDED_RUN, OwnFiles, abort_uploads_to, decoded, delete_files, refuse
from compactor.commit.history import PART
from compactor.commit.in_flight import InFlightRecords, Record, own_name
from compactor.commit.sends import TableState, can_still_land, state_of, unknown_sends
from compactor.commit.table_search import TableSearch
from compactor.credentials.renewing_file_io import repeated
from compactor.errors import RetryError
from compactor.events import Listener, ignore
from compactor.iceberg.other_compactors import POLARIS_ROLLBACK, RUN_ID
from compactor.iceberg.tables import Catalogs, OtherNameError, TableMissingError, TableView, head_of
from compactor.locations import is_local, normal_location, plain_path
from compactor.manifests.cache import ManifestCache
from compactor.reasons import Reason
from compactor.table_names import TableName

LOG = logging.getLogger("firnline")
LOGGED = 10  # outputs that a log line names
GRACE_SECONDS = 2700.0
"""After the start of a run that has ended, until its table, if it is not under its name any more, is searched under
others: it may have been renamed. No time decides whether outputs are deleted."""
SETTLE_SECONDS = 600.0
"""Between a run's commit and the first look whether it was rolled back for a writer that was under way."""
MOST_SETTLE_SECONDS = 7 * 86_400.0
"""How long such looks are repeated while no writer has committed since: a writer may need hours."""
SEARCH_SECONDS = 86_400.0
"""How long a table that was renamed is searched while some tables of its catalog cannot be read."""


class Verdict(Enum):
    """The action of a sweep for a record."""

    LEAVE = "leave"
    MARK = "mark"
    CLEAN = "clean"


def judge(record: Record, *, owner_dead: bool | None, table: TableState, now: float) -> Verdict:
    """Decide whether the unreferenced outputs of `record` may be deleted. Pure."""
    if _under_way(record, owner_dead, now):
        return Verdict.LEAVE
    over = record.abandoned or owner_dead is True  # an owner that is only silent may be paused right before its commit
    if record.sends is None or (record.seen_at is None and not over):
        return Verdict.MARK
    return Verdict.LEAVE if any(can_still_land(send, table) for send in record.sends) else Verdict.CLEAN


def _under_way(record: Record, owner_dead: bool | None, now: float) -> bool:
    """Whether the owner lives and has not ended this run: then the table does not matter."""
    alive = record.lease_until > now if owner_dead is None else not owner_dead
    return alive and not record.abandoned


def _waits(record: Record, owner_dead: bool | None, now: float) -> bool:
    """Whether it is too early for a sweep. The last one comes when outputs can no longer be written or rolled back."""
    late = now < record.settles_at or (record.swept and now < record.late_until)
    return late or _under_way(record, owner_dead, now)


def sweep(
    records: InFlightRecords,
    catalogs: Catalogs,
    cache: ManifestCache,
    *,
    now: float,
    grace_seconds: float,
    confirm: Callable[[], None] = lambda: None,
    may_ask: Callable[[TableName], bool] = lambda _table: True,
    search: TableSearch | None = None,
    listener: Listener = ignore,
) -> dict[TableName, int]:
    """Clean up after runs of dead or ended owners; returns the number of deleted files per table.

    An error for one record is logged and does not stop the others. `confirm`: called before the files of a record are
    deleted; an error from it leaves them. `may_ask`: whether the table's catalog may be asked now; if not, the record
    waits for a later sweep. `search`: of renamed tables; it remembers catalogs that could not be searched. `listener`:
    is told which files were deleted, and which were not.
    """
    removed: dict[TableName, int] = {}
    each = _Sweep(records, catalogs, cache, now, grace_seconds, confirm, search or TableSearch(catalogs), listener)
    for record in records.all():
        if not may_ask(record.table):
            continue
        try:
            count = each.sweep(record)
        except Exception as error:  # noqa: BLE001 - on any error of a catalog or a store the record stays
            LOG.warning("the sweep of run %s failed and is tried again later: %s", record.run_id, error)
            continue
        if count:
            removed[record.table] = removed.get(record.table, 0) + count
    return removed


@dataclass(frozen=True)
class _Sweep:
    """One look at all records."""

    records: InFlightRecords
    catalogs: Catalogs
    cache: ManifestCache
    now: float
    grace: float
    confirm: Callable[[], None]
    search: TableSearch
    listener: Listener

    def sweep(self, record: Record) -> int:
        """Take the next step with a record; returns the number of deleted files."""
        if record.catalog not in self.catalogs.names:
            return 0  # of other settings, or taken out of them for a while: its outputs may still have to be deleted
        owner_dead = record.owner.is_dead()
        if _waits(record, owner_dead, self.now):
            return 0  # without a call to the catalog: most records are of live runs
        table = table_of(record, self.catalogs)
        if table is None:
            self._look_elsewhere(record)
            return 0
        verdict = judge(record, owner_dead=owner_dead, table=state_of(table, record.ref), now=self.now)
        if verdict is Verdict.MARK:
            self._mark(record)
        if verdict is not Verdict.CLEAN:
            return 0
        return self._settle(record, table) if record.settles_at else self._settled(record, table)

    def _settled(self, record: Record, table: TableView) -> int:
        """Of a run that has ended, nothing can land any more. But its catalog may roll back what it has committed."""
        if record.late_seconds and not record.late_until:
            record = replace(record, late_until=self.now + record.late_seconds)
        parts = committed_parts(table, record.run_id)
        if parts.has_last and parts.may_be_rolled_back:
            self.records.save(replace(record, settles_at=max(record.late_until, self.now + SETTLE_SECONDS)))
            return 0
        return self._clean(record, table)

    def _mark(self, record: Record) -> None:
        """The mark first, then a look at the table: an owner that resumes in between has prepared its commit for this
        state of the table or an older one, or does not send it.
        """
        marked = replace(record, sends=None, seen_at=self.now)
        self.records.save(marked)
        table = table_of(record, self.catalogs)
        if table is not None:
            self.records.save(replace(marked, sends=unknown_sends(table)))

    def _clean(self, record: Record, table: TableView) -> int:
        if _may_be_hidden(record, table):
            self._leave(record, "its catalog shows one snapshot only, and a tag or a branch may hold them")
            return 0
        self.confirm()
        deleted = delete_unreferenced(record, table, self.cache, self.listener)
        if record.swept and not deleted and committed_parts(table, record.run_id).may_be_rolled_back:
            self.records.save(replace(record, settles_at=self.now + SETTLE_SECONDS))
        elif record.swept and not deleted:
            self.records.close(record)
        else:
            self.records.save(replace(record, swept=True))
        return deleted

    def _settle(self, record: Record, table: TableView) -> int:
        """Delete the outputs of commits that were rolled back, and remove the record.

        A table with one snapshot may hide others: Nessie shows the newest one of a branch, and another branch may have
        the outputs. Then nothing is deleted.
        """
        deleted = 0
        shows_history = _shows_history(table)
        whole = record.swept and committed_parts(table, record.run_id).are_all
        if shows_history and not whole:  # most runs are there as a whole: without a call to the store
            self.confirm()
            deleted = delete_unreferenced(replace(record, committed=()), table, self.cache, self.listener)
        age = self.now - record.created
        if age < MOST_SETTLE_SECONDS and _is_newest_work(table, record):
            self.records.save(replace(record, settles_at=self.now + max(SETTLE_SECONDS, age)))
        else:
            self.records.close(record)
        return deleted

    def _look_elsewhere(self, record: Record) -> None:
        """Give the record its table's new name, for the next sweep, or remove it and log its outputs, which stay.

        Raises:
            RetryError: some tables cannot be read now; after a day, that is an answer.
        """
        if record.settles_at:
            self.records.close(record)  # it has committed: the outputs are the table's, wherever that is
            return
        age = self.now - record.created
        if age <= self.grace or self.search.waits(record.catalog):  # a search is expensive
            return
        try:
            found = self.search.find(record.catalog, record.table_uuid)
        except RetryError as error:
            if error.reason == Reason.CATALOG_UNAVAILABLE or age < SEARCH_SECONDS:
                raise
            found = str(error)
        if isinstance(found, TableName):
            LOG.info("table %s is now %s: outputs of run %s are looked for there", record.table, found, record.run_id)
            self.records.save(replace(record, namespace=found.namespace, name=found.name))
            return
        self._leave(record, f"it is not there any more and {found}")

    def _leave(self, record: Record, why: str) -> None:
        """Remove the record, and log the outputs that stay because of that."""
        places = [file for file in record.files if own_name(file, record.run_id) not in record.committed]
        places += record.prefixes
        LOG.warning(
            "outputs of run %s on table %s are not deleted, because %s; if no table references them, remove them, by "
            "hand or by remove_orphan_files of the table that uses their folder now: %s%s",
            record.run_id,
            record.table,
            why,
            ", ".join(places[:LOGGED]),
            f" and {len(places) - LOGGED} more" if len(places) > LOGGED else "",
        )
        self.records.close(record)


def _head(table: TableView, record: Record) -> int | None:
    snapshot = head_of(table.metadata, record.ref)
    return snapshot.snapshot_id if snapshot else None


def _is_newest_work(table: TableView, record: Record) -> bool:
    """Whether a commit of the run may still be rolled back: by Polaris, while only `replace` snapshots follow it."""
    for snapshot in replace(table, ref=record.ref).history:
        summary = snapshot.summary
        if summary is not None and summary.additional_properties.get(RUN_ID) == record.run_id:
            return POLARIS_ROLLBACK in summary.additional_properties
        if summary is None or summary.operation is not Operation.REPLACE:
            return False
    return False


def _may_be_hidden(record: Record, table: TableView) -> bool:
    """Whether a snapshot that the catalog does not show may have these outputs: Nessie shows the newest of a branch.

    Not where all that was sent is settled, or the only snapshot is the one before the run.
    """
    return bool(record.sends) and not _shows_history(table) and _head(table, record) != record.parent_snapshot_id


def _shows_history(table: TableView) -> bool:
    return len(table.metadata.snapshots) > 1


def table_of(record: Record, catalogs: Catalogs) -> TableView | None:
    """The record's table; None if it is not under its name any more."""
    try:
        table = catalogs.load(record.table)
    except OtherNameError as error:
        table = catalogs.load(error.called)
    except TableMissingError:
        return None
    return table if table.uuid == record.table_uuid else None


def delete_unreferenced(
    record: Record, table: TableView, cache: ManifestCache, listener: Listener = ignore, reason: str = ENDED_RUN
) -> int:
    """Delete the record's outputs that no retained snapshot references; returns the number of deleted files.

    What is not the run's own is reported and left alone, as if the record did not name it (`OwnFiles`).

    Raises:
        RetryError: the references cannot be read, or another table has this name now; nothing was deleted.
    """
    if table.uuid != record.table_uuid:
        raise RetryError(f"{record.table} is another table now", reason=Reason.TABLE_REPLACED)
    io, own = table.io, OwnFiles.of(record, table)
    files, folders = (refuse(own, record, named, listener) for named in (record.outputs, record.prefixes))
    abort_uploads_to(table, [*files, *(f"{folder.rstrip('/')}/" for folder in folders)])
    candidates = set(files)
    for folder in folders:
        below = repeated(io, partial(_files_below, io, folder))
        candidates.update(path for path in below if not own.refusal(path))  # a store may have read the name otherwise
    if not candidates:
        return 0
    referenced = (*referenced_paths(table, record, cache), *record.committed)
    kept = {name for path in referenced for name in _own_names(path, record.run_id)}
    unreferenced = [path for path in sorted(candidates) if kept.isdisjoint(_own_names(path, record.run_id))]
    return delete_files(table, record.run_id, unreferenced, reason, listener)


def _own_names(path: str, run_id: str) -> set[str]:
    """The names that a file of the run has below its folder, however its location is spelled, escaped and read.

    `a%2Fb/../c` is `c` where `..` is followed before escapes are read, else `a/c`.
    """
    place = normal_location(path)
    readings = {place, *(normal_location(decoded(each)) for each in (path, place) if "%" in each)}
    return {own_name(each, run_id) for each in readings}


def referenced_paths(table: TableView, record: Record, cache: ManifestCache) -> set[str]:
    """Data files of all retained snapshots that may list the run's outputs: from manifests newer than its parent.

    If the parent is not listed any more, the table may have gone back to an older state, whose numbers start again
    below that of the parent (a restored catalog, a branch that was reset). Then all manifests are read.
    """
    listed = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    known = record.parent_sequence_number if record.parent_snapshot_id in listed else 0
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in table.metadata.snapshots
        if not snapshot.sequence_number or snapshot.sequence_number > known
        for manifest in table.manifests(snapshot)
        if not manifest.sequence_number or manifest.sequence_number > known
    }
    return {entry.path for entries in cache.read(table, list(manifests.values())) for entry in entries}


@dataclass(frozen=True)
class CommittedParts:
    """Which parts of a run retained snapshots are. That one is missing is no proof: its snapshot may have expired.

    `numbers`: from 1; `of`: how many the run makes at most, 0 if no snapshot tells. `may_be_rolled_back`: one of them
    asks its catalog to roll it back for a writer.
    """

    numbers: frozenset[int]
    of: int
    may_be_rolled_back: bool

    @property
    def has_last(self) -> bool:
        """Whether the run's last commit is there."""
        return self.of in self.numbers

    @property
    def are_all(self) -> bool:
        """Whether all commits that the run can have made are there."""
        return self.of > 0 and len(self.numbers) == self.of


def committed_parts(table: TableView, run_id: str) -> CommittedParts:
    """The parts of a run that retained snapshots are."""
    summaries = (snapshot.summary for snapshot in table.metadata.snapshots)
    found = [
        each.additional_properties for each in summaries if each and each.additional_properties.get(RUN_ID) == run_id
    ]
    parts = [summary.get(PART, "1/1").partition("/") for summary in found]
    return CommittedParts(
        numbers=frozenset(int(number) for number, _, _ in parts),
        of=max((int(of) for _, _, of in parts), default=0),
        may_be_rolled_back=any(POLARIS_ROLLBACK in summary for summary in found),
    )


def _files_below(io: Any, prefix: str) -> list[str]:
    file_system, path, scheme = _table_file_system(io, prefix)
    found = file_system.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    return [f"{scheme}{info.path}" for info in found if info.type == fs.FileType.File]


def _table_file_system(io: Any, location: str) -> tuple[fs.FileSystem, str, str]:
    if is_local(location):
        return fs.LocalFileSystem(), plain_path(location), ""
    scheme, authority, path = PyArrowFileIO.parse_location(location)
    arrow = io if isinstance(io, PyArrowFileIO) else PyArrowFileIO(io.properties)
    prefix = f"{scheme}://" if path.startswith(authority) and authority else f"{scheme}://{authority}"
    return arrow.fs_by_scheme(scheme, authority), path, prefix
