"""One `replace` commit through Iceberg's RewriteFiles: remove input files and covered delete files, add outputs.

Iceberg makes and validates the snapshot (`apply`). The snapshot is then inspected and sent once, against the metadata
for which it was made. Iceberg's own `commit()` makes a new snapshot, not inspected, whenever another commit comes
first. Then it is unknown which snapshot lands, and until when the commit of a dead process can still land.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from py4j.protocol import Py4JError

from compactor.errors import CommitUnknownError, FirnlineError, ReplanError, RetryError
from compactor.iceberg.manifest_entries import FileEntry
from compactor.iceberg.other_compactors import DEPLOYMENT, POLARIS_ROLLBACK, RUN_ID
from compactor.patience.backoff import Backoff
from compactor.reasons import Reason
from compactor.spark.java_table import (
    COMMIT_FAILED,
    JAVA_ERRORS,
    NOT_AUTHORIZED,
    VALIDATION,
    JavaTable,
    delete_file,
    exception_class,
    expired_in_java,
    first_line,
)

LOG = logging.getLogger("firnline")
ENGINES = "firnline.engines"
PART = "firnline.part"
SETTLE_ATTEMPTS = 5
BACKOFF = Backoff(first_seconds=0.1, longest_seconds=10.0)  # between attempts to commit
SETTLE_BACKOFF = Backoff(first_seconds=0.25, longest_seconds=2.0)  # between looks for a commit
FEWEST_ATTEMPTS = 10  # Iceberg's default (4 retries) is too few beside a writer that commits every second
FIRST_LOGGED_ATTEMPT = 3  # one or two lost races are usual beside a writer
CARRY_ATTEMPTS = 3
RENEWALS = 4  # times that a credential may end while the commit is prepared; the next one ends the run
REFUSALS = frozenset({COMMIT_FAILED, NOT_AUTHORIZED})
"""Answers to a commit that the catalog did not carry out: another came first, or Java's login has expired."""
RETRIES = "commit.retry.num-retries"
CLOCK_SIGNS = ("Invalid update timestamp", "Invalid snapshot timestamp", "sorted snapshot log entries")
CLOCK_REMEDY = "; the clocks of this host, the catalog and the writers differ by more than a minute: set them (NTP)"
"""Iceberg refuses a snapshot that is more than a minute older than the one before, or newer than the catalog's time."""


@dataclass(frozen=True)
class Replacement:
    """One output task's files to commit: Java scan tasks of the inputs, Java `DataFile`s of the outputs."""

    scan_tasks: Any
    outputs: tuple[Any, ...]
    files_in: int


@dataclass(frozen=True)
class NewDeletes:
    """Delete files for rows of the outputs.

    Attributes:
        files: Their content-file JSON.
        rows: Rows that they delete.
        validated_at: The snapshot up to which commits were taken into account; Iceberg validates against later ones.
        only_on: The head that must be the commit's parent. Iceberg does not validate what others committed after it
            where no data file is replaced: deletes for files that are in the table already, or delete files that leave.
        company: A live delete file that stays, if the commit removes none. Iceberg's RewriteFiles adds delete files
            only if it removes some, so this one is removed and added again.
    """

    files: tuple[Mapping[str, Any], ...] = ()
    rows: int = 0
    validated_at: int | None = None
    only_on: int | None = None
    company: FileEntry | None = None


NO_DELETES = NewDeletes()


@dataclass(frozen=True)
class CommitSummary:
    """The properties that a commit adds to its snapshot's summary.

    `part`: "2/3" is the second of three commits; a long run makes several. `rollback_on_conflict`: when a writer's
    commit conflicts with this snapshot, Apache Polaris rolls the snapshot back instead of failing the writer.
    `deployment`: the id of the deployment; empty: none.
    """

    run_id: str
    engines: tuple[str, ...] = ()
    part: str = "1/1"
    rollback_on_conflict: bool = False
    deployment: str = ""

    @property
    def properties(self) -> dict[str, str]:
        """The summary properties."""
        properties = {RUN_ID: self.run_id, ENGINES: ",".join(sorted(set(self.engines))), PART: self.part}
        if self.deployment:
            properties[DEPLOYMENT] = self.deployment
        if self.rollback_on_conflict:
            properties[POLARIS_ROLLBACK] = "rollback"
        return properties

    def matches(self, summary: Mapping[str, str]) -> bool:
        """Whether the snapshot with this summary was made by this commit."""
        return summary.get(RUN_ID) == self.run_id and summary.get(PART) == self.part


def commit_replacements(
    table: JavaTable,
    replacements: Sequence[Replacement],
    dangling: Sequence[FileEntry],
    summary: CommitSummary,
    about_to_send: Callable[[], object] = lambda: None,
    sleep: Callable[[float], None] = time.sleep,
    new: NewDeletes = NO_DELETES,
) -> int:
    """Commit all replacements as one `replace` snapshot on the table's branch; returns its id.

    Args:
        table: Loaded at the planned snapshot.
        replacements: Files to remove and files to add.
        dangling: Delete files without any row left to delete; the same commit removes them.
        summary: Properties for the snapshot's summary.
        about_to_send: Called before each attempt is sent. If it raises, the commit ends and nothing is sent.
        sleep: Called between attempts with a number of seconds.
        new: Delete files for rows of the outputs.

    Raises:
        ReplanError: an input file was removed or added again, a delete was committed against it, or the table was
            replaced (`check_unchanged`); nothing was committed.
        RetryError: the catalog refused all attempts; nothing was committed.
        CommitUnknownError: the outcome is unknown; delete nothing.
    """
    attempts = max(FEWEST_ATTEMPTS, 1 + _retries(table))
    changes = _Changes(
        replacements, table.delete_files([delete_file(entry) for entry in dangling]), table.delete_files(new.files), new
    )
    for attempt in range(attempts):
        table.refresh()
        try:
            snapshot = _prepared(table, changes, summary)
        except RetryError as error:
            if error.reason != Reason.CREDENTIALS_EXPIRED or attempt >= RENEWALS:
                raise
            table.load_anew()
            continue
        try:
            table.check_unchanged()  # `_prepared` has refreshed the table: check the metadata that is sent against
            _check_parent(snapshot, changes, summary)
            _check_counts(snapshot, changes, summary)
            about_to_send()
        except BaseException:
            _discard(table, snapshot)
            raise
        if _sent(table, snapshot, summary, sleep):
            return _verified(table, changes, summary)
        pause = BACKOFF.seconds(attempt + 1)
        if attempt + 1 >= FIRST_LOGGED_ATTEMPT:
            message = "%s: another commit came first in attempt %d of %d to commit run %s; next attempt in %.1f s"
            LOG.info(message, table.view.name, attempt + 1, attempts, summary.run_id, pause)
        sleep(pause)
    raise RetryError(
        f"run {summary.run_id} was not committed: other commits came first in all {attempts} attempts",
        reason=Reason.COMMIT_REFUSED,
    )


def _retries(table: JavaTable) -> int:
    text = table.view.properties.get(RETRIES, "")
    return int(text) if text.isdigit() else 0


@dataclass(frozen=True)
class _Changes:
    """What the snapshot changes; `dangling`, `added`: Java lists of delete files."""

    replacements: Sequence[Replacement]
    dangling: Any
    added: Any
    new: NewDeletes

    @property
    def planned(self) -> tuple[int, int, int]:
        """Data files to remove, data files to add, rows that the added delete files delete by position."""
        files_in = sum(each.files_in for each in self.replacements)
        files_out = sum(len(each.outputs) for each in self.replacements)
        return files_in, files_out, self.new.rows + (self.new.company.records if self.new.company else 0)


def _prepared(table: JavaTable, changes: _Changes, summary: CommitSummary) -> Any:
    """The snapshot to commit: validated and written by Iceberg, but not committed.

    Iceberg drops delete files that are older than every data file it sees. It does not see the outputs, which have the
    planned snapshot's sequence number: an equality delete committed since the plan would be lost and its rows would
    come back (apache/iceberg 10312). Add such a delete again, with its own sequence number.

    Raises:
        ReplanError: validation failed.
        RetryError: the snapshot cannot be written, e.g. a manifest cannot be read; nothing was sent.
    """
    carried: dict[str, Any] = {}
    for _ in range(CARRY_ATTEMPTS):
        try:
            if changes.new.company is not None and not carried:
                carried[changes.new.company.path] = _live_delete_file(table, changes.new.company)
            snapshot = _rewrite_files(table, changes, list(carried.values()), summary).apply()
            lost = _still_needed(table, snapshot, carried)
        except JAVA_ERRORS as error:
            raise _not_sent(error, summary, table) from error
        if not lost:
            return snapshot
        _discard(table, snapshot)
        carried.update(lost)
    raise ReplanError(f"new deletes arrived in each attempt to commit run {summary.run_id}", reason=Reason.CONFLICT)


def _not_sent(error: Exception, summary: CommitSummary, table: JavaTable) -> FirnlineError:
    kind, message = exception_class(error), first_line(error)
    if kind == VALIDATION:
        return ReplanError(
            f"another commit touched the files of run {summary.run_id}: {message}", reason=Reason.CONFLICT
        )
    return RetryError(
        f"the commit of run {summary.run_id} could not be prepared: {message}",
        reason=Reason.CREDENTIALS_EXPIRED if expired_in_java(error, table.view) else Reason.COMMIT_FAILED,
    )


def _live_delete_file(table: JavaTable, entry: FileEntry) -> Any:
    """The Java object of a live delete file, with its metrics.

    Raises:
        ReplanError: the table no longer lists it.
    """
    manifest_files = table.jvm.org.apache.iceberg.ManifestFiles
    io, specs = table.handle.io(), table.handle.specs()
    for manifest in table.handle.snapshot(table.view.ref).deleteManifests(io):
        reader = manifest_files.readDeleteManifest(manifest, io, specs)
        try:
            files = reader.iterator()  # of live files
            while files.hasNext():
                file = files.next()
                if str(file.location()) == entry.path:
                    return file.copy()
        finally:
            reader.close()
    raise ReplanError(f"delete file {entry.path} was removed by another commit", reason=Reason.CONFLICT)


def _rewrite_files(table: JavaTable, changes: _Changes, carried: Sequence[Any], summary: CommitSummary) -> Any:
    jvm = table.jvm
    validated_at = changes.new.validated_at
    rewrite = table.handle.newRewrite()
    rewrite.validateFromSnapshot(table.snapshot_id if validated_at is None else validated_at)
    rewrite.dataSequenceNumber(table.sequence_number)
    nothing = jvm.java.util.HashSet()
    removed, added = (jvm.org.apache.iceberg.util.DeleteFileSet.create() for _ in range(2))
    removed.addAll(changes.dangling)
    added.addAll(changes.added)
    for replacement in changes.replacements:
        group = _file_group(table, replacement)
        removed.addAll(group.danglingDVs())
        rewrite.rewriteFiles(group.rewrittenFiles(), nothing, group.addedFiles(), nothing)
    for file in carried:
        removed.add(file)
        rewrite.addFile(file, file.dataSequenceNumber())
    rewrite.rewriteFiles(nothing, removed, nothing, added)
    for name, value in summary.properties.items():
        rewrite.set(name, value)
    return rewrite.toBranch(table.view.ref)


def _still_needed(table: JavaTable, snapshot: Any, carried: Mapping[str, Any]) -> dict[str, Any]:
    """Equality deletes newer than the outputs that the snapshot would lose, by location."""
    found = {}
    if int(snapshot.summary().get("removed-delete-files") or 0):
        iterator = snapshot.removedDeleteFiles(table.handle.io()).iterator()
        while iterator.hasNext():
            file = iterator.next()
            newer = int(file.dataSequenceNumber()) > table.sequence_number
            if newer and str(file.content().name()) == "EQUALITY_DELETES" and str(file.location()) not in carried:
                found[str(file.location())] = file
    return found


def _discard(table: JavaTable, snapshot: Any) -> None:
    """Remove the metadata files of a snapshot that was certainly not committed; files that stay do no harm."""
    with suppress(Py4JError):
        io = table.handle.io()
        for manifest in list(snapshot.allManifests(io)):
            if manifest.snapshotId() == snapshot.snapshotId():
                io.deleteFile(manifest.path())
        io.deleteFile(snapshot.manifestListLocation())


def _sent(table: JavaTable, snapshot: Any, summary: CommitSummary, sleep: Callable[[float], None]) -> bool:
    """Send the snapshot once. True: committed; False: another commit came first, or the login had expired.

    Raises:
        ReplanError: it was committed and then rolled back.
        RetryError: it was refused.
        CommitUnknownError: the outcome is unknown.
    """
    try:
        return _answered(table, snapshot, summary, sleep)
    except FirnlineError:
        raise
    except BaseException as error:  # an interrupt, or the JVM is lost, also while its answer is judged
        raise CommitUnknownError(
            f"the commit of run {summary.run_id} was interrupted ({type(error).__name__}: {error}); nothing is deleted "
            "until the sweep finds out"
        ) from error


def _answered(table: JavaTable, snapshot: Any, summary: CommitSummary, sleep: Callable[[float], None]) -> bool:
    try:
        operations = table.handle.operations()
        base = operations.current()
        builder = table.jvm.org.apache.iceberg.TableMetadata.buildFrom(base)
        operations.commit(base, builder.setBranchSnapshot(snapshot, table.view.ref).build())
    except JAVA_ERRORS as error:
        return _landed(table, snapshot, error, summary, sleep)
    return True


def _check_parent(snapshot: Any, changes: _Changes, summary: CommitSummary) -> None:
    """Check that the snapshot follows the head that was compared, where Iceberg does not validate what came after it.

    Iceberg makes the snapshot for the newest head, which may be another one.

    Raises:
        ReplanError: another commit came in between; it was not sent.
    """
    if changes.new.only_on not in (None, snapshot.parentId()):
        raise ReplanError(f"another commit came before that of run {summary.run_id}", reason=Reason.CONFLICT)


def _check_counts(snapshot: Any, changes: _Changes, summary: CommitSummary) -> None:
    """Check that the snapshot replaces the planned number of files, and deletes the planned rows of the outputs.

    Iceberg removes by path: a path listed twice in the table would be removed twice.

    Raises:
        ReplanError: the numbers differ; it was not sent.
    """
    if _counts(snapshot.summary()) != changes.planned:
        raise ReplanError(
            f"the commit of run {summary.run_id} would {_told(_counts(snapshot.summary()))}, but the plan would "
            f"{_told(changes.planned)}: the table now lists a file twice",
            reason=Reason.CONFLICT,
        )


def _counts(summary: Mapping[str, str]) -> tuple[int, int, int]:
    """Data files that a snapshot removed and added, and rows that its new delete files delete by position."""
    names = ("deleted-data-files", "added-data-files", "added-position-deletes")
    removed, added, rows = (int(summary.get(name) or 0) for name in names)
    return removed, added, rows


def _told(counts: tuple[int, int, int]) -> str:
    removed, added, rows = counts
    return f"replace {removed} files by {added}" + (f" and delete {rows} of their rows" if rows else "")


def _landed(
    table: JavaTable, snapshot: Any, error: Exception, summary: CommitSummary, sleep: Callable[[float], None]
) -> bool:
    kind, message, run_id = exception_class(error), first_line(error), summary.run_id
    if not _may_have_landed(kind):
        remedy = CLOCK_REMEDY if any(sign in message for sign in CLOCK_SIGNS) else ""
        raise RetryError(
            f"run {run_id} could not be committed: {message}{remedy}", reason=Reason.COMMIT_FAILED
        ) from error
    unknown = CommitUnknownError(
        f"whether run {run_id} was committed is unknown ({message}); nothing is deleted until the sweep finds out"
    )
    try:
        # A refusal may answer a retry of the HTTP client. Its first request was then committed before another commit
        # came first, but may still be under way before a login was refused.
        found = find_commit(table, summary, sleep, attempts=1 if kind == COMMIT_FAILED else SETTLE_ATTEMPTS)
    except BaseException as second:
        raise unknown from second
    if found is Search.UNANSWERED or (found is Search.MISSING and kind not in REFUSALS):
        raise unknown from error
    if found is Search.MISSING and table.handle.snapshot(snapshot.snapshotId()) is not None:
        raise ReplanError(  # the table retains the snapshot: its metadata files must stay
            f"run {run_id} was committed, and another commit rolled it back at once", reason=Reason.CONFLICT
        )
    if found is Search.MISSING and kind == COMMIT_FAILED:
        _discard(table, snapshot)
    return found is Search.FOUND


def _may_have_landed(kind: str) -> bool:
    """False only for errors that are raised before the request is sent, or by a catalog that has refused it."""
    return not kind.startswith(("java.lang.IllegalArgument", "org.apache.iceberg.exceptions.NoSuch"))


class Search(Enum):
    """Outcome of the search for a commit."""

    FOUND = "found"
    MISSING = "missing"
    UNANSWERED = "unanswered"


def find_commit(
    table: JavaTable,
    summary: CommitSummary,
    sleep: Callable[[float], None] = time.sleep,
    attempts: int = SETTLE_ATTEMPTS,
) -> Search:
    """Look for the snapshot with this summary, several times: it may land late, or the catalog may not answer."""
    seen = Search.UNANSWERED
    for attempt in range(attempts):
        try:
            table.refresh()
            if _snapshot_of(table, summary) is not None:
                return Search.FOUND
            seen = Search.MISSING
        except (Py4JError, RetryError, ReplanError):
            seen = Search.UNANSWERED  # the catalog does not answer, or the table is gone: try again
        if attempt + 1 < attempts:
            sleep(SETTLE_BACKOFF.seconds(attempt + 1))
    return seen


def _file_group(table: JavaTable, replacement: Replacement) -> Any:
    """Iceberg's object for one replacement: it separates data files and deletion vectors without a call per file."""
    actions = table.jvm.org.apache.iceberg.actions
    first = replacement.scan_tasks.get(0).file()
    builder = actions.ImmutableRewriteDataFiles.FileGroupInfo.builder().globalIndex(0).partitionIndex(0)
    info = builder.partition(first.partition()).build()
    unbounded = 1 << 50  # sizes matter only to Iceberg's own runner
    group = actions.RewriteFileGroup(
        info, replacement.scan_tasks, first.specId(), unbounded, unbounded, len(replacement.outputs)
    )
    outputs = table.jvm.java.util.HashSet()
    for output in replacement.outputs:
        outputs.add(output)
    group.setOutputFiles(outputs)
    return group


def _snapshot_of(table: JavaTable, summary: CommitSummary) -> int | None:
    snapshot = table.handle.snapshot(table.view.ref)
    while snapshot is not None and snapshot.snapshotId() != table.snapshot_id:
        if summary.matches(dict(snapshot.summary())):
            return int(snapshot.snapshotId())
        parent = snapshot.parentId()
        snapshot = table.handle.snapshot(parent) if parent is not None else None
    return None


def _verified(table: JavaTable, changes: _Changes, summary: CommitSummary) -> int:
    """Read the table again and check that a snapshot holds the whole run: a catalog has reported success without a
    commit (apache/iceberg 17202).
    """
    run_id = summary.run_id
    try:
        table.refresh()
        snapshot_id = _snapshot_of(table, summary)
    except (Py4JError, RetryError, ReplanError) as error:
        raise CommitUnknownError(
            f"run {run_id} was sent, but the table cannot be read again: {first_line(error)}"
        ) from error
    if snapshot_id is None:
        raise CommitUnknownError(f"the catalog reported success for run {run_id}, but no snapshot has its id")
    found = table.handle.snapshot(snapshot_id).summary()
    if _counts(found) != changes.planned:
        raise FirnlineError(
            f"snapshot {snapshot_id} of run {run_id} did {_told(_counts(found))}, but the plan would "
            f"{_told(changes.planned)}; roll the table back to snapshot {table.snapshot_id} and report this",
            reason=Reason.COMMIT_DIFFERS,
        )
    return snapshot_id
