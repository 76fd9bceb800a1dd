"""The snapshots of one `replace` commit, attempt after attempt: made and validated by Iceberg, not committed.

Iceberg's update is kept from attempt to attempt, as its own `commit()` does: it remembers the manifests that it has
read and written, so that the next attempt reads only those that other commits have added since. Beside a writer that
commits every few seconds the first attempt is often too slow. The second one is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError

from compactor.commit.history import snapshots_between
from compactor.errors import FirnlineError, ReplanError, RetryError
from compactor.iceberg.manifest_entries import FileEntry
from compactor.iceberg.other_compactors import DEPLOYMENT, POLARIS_ROLLBACK, RUN_ID
from compactor.reasons import Reason
from compactor.spark.java_table import (
    JAVA_ERRORS,
    VALIDATION,
    JavaTable,
    exception_class,
    expired_in_java,
    first_line,
)

ENGINES = "firnline.engines"
PART = "firnline.part"
CARRY_ATTEMPTS = 3


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
        compared: The head that was compared. It must be the commit's parent where no data file is replaced (deletes for
            files that are in the table already, or delete files that leave): Iceberg does not validate what others
            committed after it. Elsewhere no `replace` may have added deletes since. None: nothing is checked.
        company: A live delete file that stays, if the commit removes none. Iceberg's RewriteFiles adds delete files
            only if it removes some, so this one is removed and added again.
    """

    files: tuple[Mapping[str, Any], ...] = ()
    rows: int = 0
    validated_at: int | None = None
    compared: int | None = None
    company: FileEntry | None = None


NO_DELETES = NewDeletes()


@dataclass(frozen=True)
class CommitSummary:
    """The properties that a commit adds to its snapshot's summary.

    `part`: "2/3" is the second of three commits; a long run makes several. `rollback_on_conflict`: when a writer's
    commit conflicts with this snapshot, Apache Polaris rolls the snapshot back instead of failing the writer (not on
    tables of format version 3).
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


@dataclass(frozen=True)
class Changes:
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


class Snapshots:
    """Makes the snapshots of one commit. What was written and is certainly not committed is deleted at its end."""

    def __init__(self, table: JavaTable, changes: Changes, summary: CommitSummary) -> None:
        self._table = table
        self._changes = changes
        self._summary = summary
        self._update: Any = None
        self._made_by: Any = None
        self._made_for: int | None = None
        self._carried: dict[str, Any] = {}
        self._updates: list[Any] = []
        self._made: list[Any] = []
        self._sent = False
        self._keeps_all = False

    def make(self) -> Any:
        """The snapshot to commit: validated and written by Iceberg for the newest head.

        Iceberg drops delete files that are older than every data file it sees. It does not see the outputs, which have
        the planned snapshot's sequence number: an equality delete committed since the plan would be lost and its rows
        would come back (apache/iceberg 10312). Add such a delete again, with its own sequence number.

        Raises:
            ReplanError: validation failed.
            RetryError: the snapshot cannot be written, e.g. a manifest cannot be read; nothing was sent.
        """
        table, carried = self._table, self._carried
        for _ in range(CARRY_ATTEMPTS):
            try:
                company = self._changes.new.company
                if company is not None and company.path not in carried:
                    carried[company.path] = _live_delete_file(table, company)
                if self._update is None or self._made_by is not table.handle:  # loaded again, with a new credential
                    self._begin()
                snapshot = self._update.apply()
                self._made.append(snapshot)
                follows = self._follows(snapshot)
                lost = _still_needed(table, snapshot, carried)
            except JAVA_ERRORS as error:
                raise _not_sent(error, self._summary, table) from error
            if follows and not lost:
                return snapshot
            self._update = None
            carried.update(lost)
        raise ReplanError(
            f"new deletes or a rollback arrived in each attempt to commit run {self._summary.run_id}",
            reason=Reason.CONFLICT,
        )

    def _begin(self) -> None:
        self._made_by, self._made_for = self._table.handle, None
        self._update = _rewrite_files(self._table, self._changes, list(self._carried.values()), self._summary)
        self._updates.append(self._update)

    def _follows(self, snapshot: Any) -> bool:
        """Whether the history only grew since the update's last snapshot.

        The update remembers which delete files it has dropped. After a rollback the table may need one of them again.
        """
        before, self._made_for = self._made_for, snapshot.parentId()
        return before is None or snapshots_between(self._table, snapshot.parentId(), before) is not None

    def sent(self) -> None:
        """The last snapshot is sent now: the table may list its files from now on."""
        self._sent = True

    def may_be_committed(self) -> None:
        """It is not certain of the last one: later ones share its manifests, so that none is deleted."""
        self._keeps_all = True

    def clean_up(self, committed: Any = None) -> None:
        """Delete the metadata files that were written and are not used, except what `committed` or the head lists.

        `committed` was just found in the table; None: certainly no snapshot was committed. Manifests that were merged
        are not used either. Files that stay do no harm.
        """
        if self._keeps_all:
            return
        with suppress(Py4JError, *JAVA_ERRORS, FirnlineError):
            used = self._used(committed)
            if used is None:
                return
            io, manifests = self._table.handle.io(), self._table.jvm.java.util.HashSet()
            for snapshot in used:
                manifests.addAll(snapshot.allManifests(io))
            for update in self._updates:
                with suppress(Py4JError, *JAVA_ERRORS):
                    _delete_manifests_except(manifests, update, self._table)
            lists = {snapshot.manifestListLocation() for snapshot in self._made}
            for path in lists - {snapshot.manifestListLocation() for snapshot in used}:
                io.deleteFile(path)

    def _used(self, committed: Any) -> list[Any] | None:
        """Snapshots that may list our files; None if it is not known."""
        table = self._table
        if committed is None and self._sent:
            table.refresh()
            if any(table.handle.snapshot(each.snapshotId()) is not None for each in self._made):
                return None  # it was committed after all, e.g. and then rolled back
        head = table.handle.snapshot(table.view.ref)
        if head is None and self._sent:
            return None
        return [each for each in (head, committed) if each is not None]


def _delete_manifests_except(committed: Any, update: Any, table: JavaTable) -> None:
    """Iceberg's own `cleanUncommitted`, which its `commit()` calls, by reflection: it is not public."""
    lang, gateway = table.jvm.java.lang, table.session.sparkContext._gateway  # noqa: SLF001
    types, arguments = gateway.new_array(lang.Class, 1), gateway.new_array(lang.Object, 1)
    types[0], arguments[0] = lang.Class.forName("java.util.Set"), committed
    producer = update.getClass().getClassLoader().loadClass("org.apache.iceberg.SnapshotProducer")
    method = producer.getDeclaredMethod("cleanUncommitted", types)
    method.setAccessible(True)
    method.invoke(update, arguments)


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


def _rewrite_files(table: JavaTable, changes: Changes, carried: Sequence[Any], summary: CommitSummary) -> Any:
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
