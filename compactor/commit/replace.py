"""One `replace` commit: data files out, outputs in, covered delete files out, through Iceberg's own RewriteFiles.

The snapshot is made and validated by Iceberg (`apply`), looked at, and then sent once against the metadata it was made
for. Iceberg's `commit()` would make it anew, unseen, whenever another commit comes first: then nobody could say what
lands, nor when a commit of a dead process can no longer land.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from compactor.errors import CommitUnknownError, FirnlineError, ReplanError, RetryError
from compactor.iceberg.manifest_entries import FileEntry
from compactor.iceberg.other_compactors import RUN_ID
from compactor.reasons import Reason
from compactor.spark.java_table import (
    COMMIT_FAILED,
    VALIDATION,
    JavaTable,
    delete_file,
    exception_class,
    first_line,
)

LOG = logging.getLogger("firnline")
ENGINES = "firnline.engines"
PART = "firnline.part"
POLARIS_ROLLBACK = "polaris.internal.conflict-resolution.by-operation-type.replace"
SETTLE_ATTEMPTS = 5
FEWEST_ATTEMPTS = 10  # Iceberg's default of 4 retries is few beside a writer that commits every second
LONGEST_PAUSE_SECONDS = 10.0
FIRST_LOGGED_ATTEMPT = 3  # one or two lost races are usual beside a writer
CARRY_ATTEMPTS = 3
RETRIES = "commit.retry.num-retries"


@dataclass(frozen=True)
class Replacement:
    """One group's share ready to be committed: Java scan tasks of the inputs, Java `DataFile`s of the outputs."""

    tasks: Any
    outputs: tuple[Any, ...]
    files_in: int


@dataclass(frozen=True)
class Stamp:
    """What a commit says of itself in the snapshot's summary.

    `part`: "2/3" is the second of three commits, a long run makes several. `rollback_on_conflict`: Apache Polaris rolls
    our snapshot back when a writer's commit conflicts with it, instead of failing the writer.
    """

    run_id: str
    engines: tuple[str, ...] = ()
    part: str = "1/1"
    rollback_on_conflict: bool = False

    @property
    def summary(self) -> dict[str, str]:
        """The snapshot summary properties."""
        properties = {RUN_ID: self.run_id, ENGINES: ",".join(sorted(set(self.engines))), PART: self.part}
        if self.rollback_on_conflict:
            properties[POLARIS_ROLLBACK] = "rollback"
        return properties

    def marks(self, summary: Mapping[str, str]) -> bool:
        """Whether a snapshot with this summary is this very commit."""
        return summary.get(RUN_ID) == self.run_id and summary.get(PART) == self.part


def commit_replacements(
    table: JavaTable,
    replacements: Sequence[Replacement],
    dangling: Sequence[FileEntry],
    stamp: Stamp,
    about_to_send: Callable[[], None] = lambda: None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Commit all replacements as one `replace` snapshot on the table's branch, and return its id.

    Args:
        table: Loaded at the planned snapshot.
        replacements: What goes and what comes.
        dangling: Delete files that are covered entirely; they are removed by the same commit.
        stamp: The snapshot's summary.
        about_to_send: Called right before each attempt is sent; what it raises ends the commit, nothing is sent.
        sleep: Waits between attempts, in seconds.

    Raises:
        ReplanError: a file to be replaced is gone or was added again, a delete was committed against it, or the table
            is not what it was (`check_unchanged`); nothing was committed.
        RetryError: the catalog kept refusing; nothing was committed.
        CommitUnknownError: nobody can say yet whether it was committed; delete nothing.
    """
    attempts = max(FEWEST_ATTEMPTS, 1 + _retries(table))
    covered = table.delete_files([delete_file(entry) for entry in dangling])
    for attempt in range(attempts):
        table.refresh()
        snapshot = _prepared(table, replacements, covered, stamp)
        try:
            table.check_unchanged()  # preparing has refreshed the table: what is looked at here is what is sent against
            _check_counts(snapshot.summary(), replacements, stamp)
            about_to_send()
        except BaseException:
            _discard(table, snapshot)
            raise
        if _sent(table, snapshot, stamp, sleep):
            return _verified(table, replacements, stamp)
        _discard(table, snapshot)
        pause = min(LONGEST_PAUSE_SECONDS, 0.1 * 2**attempt)
        if attempt + 1 >= FIRST_LOGGED_ATTEMPT:
            lost = "%s: another commit came first in attempt %d of %d to commit run %s; next attempt in %.1f s"
            LOG.info(lost, table.view.name, attempt + 1, attempts, stamp.run_id, pause)
        sleep(pause)
    raise RetryError(
        f"other commits came first {attempts} times while run {stamp.run_id} tried to commit",
        reason=Reason.COMMIT_REFUSED,
    )


def _retries(table: JavaTable) -> int:
    text = table.view.properties.get(RETRIES, "")
    return int(text) if text.isdigit() else 0


def _prepared(table: JavaTable, replacements: Sequence[Replacement], dangling: Any, stamp: Stamp) -> Any:
    """The snapshot to commit, validated by Iceberg and written, but not committed.

    Iceberg drops delete files that are older than every data file it sees, without seeing the outputs, which carry the
    planned snapshot's number: an equality delete committed since would be lost and its rows come back (apache/iceberg
    10312). Such a delete is put in again, with the number it had.

    Raises:
        ReplanError: validation failed.
        RetryError: it cannot be written, e.g. a manifest cannot be read; nothing was sent.
    """
    carried: dict[str, Any] = {}
    for _ in range(CARRY_ATTEMPTS):
        try:
            snapshot = _rewrite_files(table, replacements, dangling, list(carried.values()), stamp).apply()
            lost = _still_needed(table, snapshot, carried)
        except Py4JJavaError as error:
            raise _not_sent(error, stamp) from error
        if not lost:
            return snapshot
        _discard(table, snapshot)
        carried.update(lost)
    raise ReplanError(f"deletes kept arriving while run {stamp.run_id} was to be committed", reason=Reason.CONFLICT)


def _not_sent(error: Py4JJavaError, stamp: Stamp) -> FirnlineError:
    kind, message = exception_class(error), first_line(error)
    if kind == VALIDATION:
        return ReplanError(f"another commit touched the files of run {stamp.run_id}: {message}", reason=Reason.CONFLICT)
    return RetryError(f"the commit of run {stamp.run_id} could not be prepared: {message}", reason=Reason.COMMIT_FAILED)


def _rewrite_files(
    table: JavaTable,
    replacements: Sequence[Replacement],
    dangling: Any,
    carried: Sequence[Any],
    stamp: Stamp,
) -> Any:
    jvm = table.jvm
    rewrite = table.handle.newRewrite().validateFromSnapshot(table.snapshot_id)
    rewrite.dataSequenceNumber(table.sequence_number)
    nothing = jvm.java.util.HashSet()
    removed = jvm.org.apache.iceberg.util.DeleteFileSet.create()
    removed.addAll(dangling)
    for replacement in replacements:
        group = _file_group(table, replacement)
        removed.addAll(group.danglingDVs())
        rewrite.rewriteFiles(group.rewrittenFiles(), nothing, group.addedFiles(), nothing)
    for file in carried:
        removed.add(file)
        rewrite.addFile(file, file.dataSequenceNumber())
    rewrite.rewriteFiles(nothing, removed, nothing, nothing)
    for name, value in stamp.summary.items():
        rewrite.set(name, value)
    return rewrite.toBranch(table.view.ref)


def _still_needed(table: JavaTable, snapshot: Any, carried: Mapping[str, Any]) -> dict[str, Any]:
    """Equality deletes newer than the outputs that the snapshot drops without putting them in again, by location."""
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
    """Remove the metadata files of a snapshot that was certainly not committed; what stays behind harms nobody."""
    with suppress(Py4JError):
        io = table.handle.io()
        for manifest in list(snapshot.allManifests(io)):
            if manifest.snapshotId() == snapshot.snapshotId():
                io.deleteFile(manifest.path())
        io.deleteFile(snapshot.manifestListLocation())


def _sent(table: JavaTable, snapshot: Any, stamp: Stamp, sleep: Callable[[float], None]) -> bool:
    """Send the snapshot once. True: it has landed; False: another commit came first, it certainly has not.

    Raises:
        ReplanError: it has landed and was rolled back.
        RetryError: it was refused.
        CommitUnknownError: nobody can say.
    """
    run_id = stamp.run_id
    try:
        operations = table.handle.operations()
        base = operations.current()
        builder = table.jvm.org.apache.iceberg.TableMetadata.buildFrom(base)
        operations.commit(base, builder.setBranchSnapshot(snapshot, table.view.ref).build())
    except Py4JJavaError as error:
        return _landed(table, snapshot, error, stamp, sleep)
    except BaseException as error:  # an interrupt, a lost JVM: the request may be on its way
        raise CommitUnknownError(
            f"the commit of run {run_id} was interrupted ({type(error).__name__}: {error}); nothing is deleted, the "
            "sweep settles it"
        ) from error
    return True


def _check_counts(summary: Mapping[str, str], replacements: Sequence[Replacement], stamp: Stamp) -> None:
    """Iceberg names files by path: one that is listed twice would go twice.

    Raises:
        ReplanError: the snapshot takes away or adds other files than planned; it was not sent.
    """
    found, planned = _counts(summary), _planned_counts(replacements)
    if found != planned:
        raise ReplanError(
            f"the commit of run {stamp.run_id} would replace {found[0]} files by {found[1]}, planned were {planned[0]} "
            f"by {planned[1]}: the table lists a file twice by now",
            reason=Reason.CONFLICT,
        )


def _counts(summary: Mapping[str, str]) -> tuple[int, int]:
    """Data files that a snapshot took away and added."""
    return int(summary.get("deleted-data-files") or 0), int(summary.get("added-data-files") or 0)


def _planned_counts(replacements: Sequence[Replacement]) -> tuple[int, int]:
    return sum(each.files_in for each in replacements), sum(len(each.outputs) for each in replacements)


def _landed(
    table: JavaTable, snapshot: Any, error: Py4JJavaError, stamp: Stamp, sleep: Callable[[float], None]
) -> bool:
    kind, message, run_id = exception_class(error), first_line(error), stamp.run_id
    if not _may_have_landed(kind):
        raise RetryError(f"run {run_id} could not be committed: {message}", reason=Reason.COMMIT_FAILED) from error
    unknown = CommitUnknownError(
        f"whether run {run_id} was committed is unknown ({message}); nothing is deleted, the sweep settles it"
    )
    try:
        # A conflict may be the answer to a retry of the HTTP client whose first request has landed: look once.
        found = find_commit(table, stamp, sleep, attempts=1 if kind == COMMIT_FAILED else SETTLE_ATTEMPTS)
    except BaseException as second:
        raise unknown from second
    if found is Search.UNANSWERED or (found is Search.MISSING and kind != COMMIT_FAILED):
        raise unknown from error
    if found is Search.MISSING and table.handle.snapshot(snapshot.snapshotId()) is not None:
        raise ReplanError(  # the table retains the snapshot: its metadata files must stay
            f"the commit of run {run_id} has landed and was rolled back at once by another", reason=Reason.CONFLICT
        )
    return found is Search.FOUND


def _may_have_landed(kind: str) -> bool:
    """Only errors raised before the catalog is asked are known failures."""
    return not kind.startswith(("java.lang.IllegalArgument", "org.apache.iceberg.exceptions.NoSuch"))


class Search(Enum):
    """What looking for a commit has shown."""

    FOUND = "found"
    MISSING = "missing"
    UNANSWERED = "unanswered"


def find_commit(
    table: JavaTable, stamp: Stamp, sleep: Callable[[float], None] = time.sleep, attempts: int = SETTLE_ATTEMPTS
) -> Search:
    """Look for the snapshot that carries the stamp, a few times: it may land yet, or the catalog be unwell."""
    seen = Search.UNANSWERED
    for attempt in range(attempts):
        try:
            table.refresh()
            if _snapshot_of(table, stamp) is not None:
                return Search.FOUND
            seen = Search.MISSING
        except (Py4JError, RetryError, ReplanError):
            seen = Search.UNANSWERED  # the catalog is still unwell, or the table is gone: ask again below
        if attempt + 1 < attempts:
            sleep(2**attempt / 4)
    return seen


def _file_group(table: JavaTable, replacement: Replacement) -> Any:
    """Iceberg's view of one replacement: it sorts out data files and deletion vectors without a call per file."""
    actions = table.jvm.org.apache.iceberg.actions
    first = replacement.tasks.get(0).file()
    info = (
        actions.ImmutableRewriteDataFiles.FileGroupInfo.builder()
        .globalIndex(0)
        .partitionIndex(0)
        .partition(first.partition())
        .build()
    )
    unbounded = 1 << 50  # sizes steer Iceberg's own runner, which is not used here
    group = actions.RewriteFileGroup(
        info, replacement.tasks, first.specId(), unbounded, unbounded, len(replacement.outputs)
    )
    outputs = table.jvm.java.util.HashSet()
    for output in replacement.outputs:
        outputs.add(output)
    group.setOutputFiles(outputs)
    return group


def _snapshot_of(table: JavaTable, stamp: Stamp) -> int | None:
    snapshot = table.handle.snapshot(table.view.ref)
    while snapshot is not None and snapshot.snapshotId() != table.snapshot_id:
        if stamp.marks(dict(snapshot.summary())):
            return int(snapshot.snapshotId())
        parent = snapshot.parentId()
        snapshot = table.handle.snapshot(parent) if parent is not None else None
    return None


def _verified(table: JavaTable, replacements: Sequence[Replacement], stamp: Stamp) -> int:
    """The committed snapshot must hold the run whole: "success" without a commit was seen (apache/iceberg 17202)."""
    run_id = stamp.run_id
    try:
        table.refresh()
        snapshot_id = _snapshot_of(table, stamp)
    except (Py4JError, RetryError, ReplanError) as error:
        raise CommitUnknownError(f"run {run_id} was sent, reading it back failed: {first_line(error)}") from error
    if snapshot_id is None:
        raise CommitUnknownError(f"run {run_id} reported success, yet no snapshot carries it")
    found, planned = _counts(table.handle.snapshot(snapshot_id).summary()), _planned_counts(replacements)
    if found != planned:
        raise FirnlineError(
            f"snapshot {snapshot_id} of run {run_id} replaced {found[0]} files by {found[1]}, planned were "
            f"{planned[0]} by {planned[1]}; roll the table back to {table.snapshot_id} and report this",
            reason=Reason.COMMIT_DIFFERS,
        )
    return snapshot_id
