"""The snapshots of one `replace` commit, made and validated by Iceberg's RewriteFiles, inspected, and not committed.

Iceberg makes and validates a snapshot (`apply`). It is then inspected and sent once, against the metadata for which it
was made (`runs/committing.py`). Iceberg's own `commit()` makes a new snapshot, not inspected, whenever another commit
comes first. Then it is unknown which snapshot lands, and until when the commit of a dead process can still land.

Iceberg's update is kept from attempt to attempt, as its own `commit()` does: it remembers the manifests that it has
read and written, so that the next attempt reads only those that other commits have added since. Beside a writer that
commits every few seconds the first attempt is often too slow. The second one is not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from py4j.protocol import Py4JError

from compactor.commit.deletion import delete_unused_metadata
from compactor.commit.history import REPLACE, CommitSummary, snapshots_between
from compactor.errors import FirnlineError, ReplanError, RetryError
from compactor.events import Listener, ignore
from compactor.iceberg.manifest_entries import FileEntry
from compactor.reasons import Reason
from compactor.spark.java_table import (
    JAVA_ERRORS,
    VALIDATION,
    JavaTable,
    delete_file,
    denial,
    exception_class,
    expired_in_java,
    first_line,
)
from compactor.storage.byte_store import PERMIT, checksum_remedy

ADDED_DELETES = "added-delete-files"

Counts = tuple[int, int, int]
"""Data files that a snapshot removes and adds, and rows that its new delete files delete by position."""

CopyFiles = Callable[[Collection[str]], Mapping[str, str]]
"""Copies files of the table; returns the location of each copy by that of the file."""


def copies_none(_locations: Collection[str]) -> Mapping[str, str]:
    """For commits without outputs, which need no copies."""
    raise ReplanError("equality deletes arrived while the commit was made", reason=Reason.CONFLICT)


@dataclass(frozen=True)
class Replacement:
    """One output task's files to commit: Java scan tasks of the inputs, Java `DataFile`s of the outputs."""

    scan_tasks: Any
    outputs: tuple[Any, ...]
    files_in: int


@dataclass(frozen=True)
class Changes:
    """What a commit changes, and what it may take for granted.

    Attributes:
        replacements: Files to remove and files to add.
        dangling: Delete files without any row left to delete, which leave.
        deletes: New delete files, as content-file JSON.
        rows: Rows that they delete.
        validated_at: The snapshot up to which commits were taken into account; Iceberg validates against later ones.
            None: the planned one.
        compared: The head that was compared. It must be the commit's parent where no data file is replaced (deletes for
            files that are in the table already, or delete files that leave): Iceberg does not validate what others
            committed after it. Elsewhere no `replace` may have added deletes since. None: nothing is checked.
        compared_number: The sequence number of that head; None: that of the planned snapshot counts. No position delete
            that is newer may leave.
        copied: Copies delete files that Iceberg removes although the outputs need them.
    """

    replacements: Sequence[Replacement] = ()
    dangling: Sequence[FileEntry] = ()
    deletes: Sequence[Mapping[str, Any]] = ()
    rows: int = 0
    validated_at: int | None = None
    compared: int | None = None
    compared_number: int | None = None
    copied: CopyFiles = copies_none


class Update(Protocol):
    """What is committed, attempt after attempt.

    `planned`: what each of its snapshots does; None: it is not counted.
    """

    @property
    def planned(self) -> Counts | None: ...

    def make(self) -> Any | None:
        """The snapshot to commit, validated and written for the newest head; None: call again.

        Raises:
            ReplanError: it conflicts with another commit.
            RetryError: it cannot be written, e.g. a manifest cannot be read.
        """

    def clean_up(self, used: Collection[Any], *, sent: bool) -> None:
        """Delete the metadata files that were written, but not those of the snapshots in `used`: nothing else can have
        them any more. `sent`: one of the snapshots was sent.
        """


class ReplaceUpdate:
    """Replaces data files, or delete files."""

    def __init__(self, table: JavaTable, changes: Changes, summary: CommitSummary, listener: Listener = ignore) -> None:
        self._table = table
        self.changes = changes
        self._summary = summary
        self._listener = listener
        self._made_by: Any = None
        self._made_for: int | None = None
        self._carried: dict[str, tuple[Any, Any]] = {}
        self._updates: list[Any] = []
        self._made: list[Any] = []

    @property
    def planned(self) -> Counts:
        """As of `Update`."""
        replacements = self.changes.replacements
        return sum(each.files_in for each in replacements), _outputs(replacements), self.changes.rows

    def make(self) -> Any | None:
        """As of `Update`.

        Iceberg drops delete files that are older than every data file it sees. It does not see the outputs, which have
        the planned snapshot's sequence number: an equality delete committed since the plan would be lost and its rows
        would come back (apache/iceberg 10312). Put a copy in its place, with its sequence number. The file itself
        cannot be added again: Iceberg's `expireSnapshots` deletes what an expired snapshot has removed, even if it is
        live (apache/iceberg 17304).
        """
        table = self._table
        try:
            if self._made_by is not table.handle:  # the first time, or loaded again with a new credential
                carried = list(self._carried.values())
                self._updates.append(_rewrite_files(table, self.changes, carried, self._summary))
                self._made_by, self._made_for = table.handle, None
            snapshot = self._updates[-1].apply()
            self._made.append(snapshot)
            follows, lost = self._follows(snapshot), self._lost(snapshot)
            if lost or not follows:
                self._made_by = None
                self._carry(lost)
                return None
        except JAVA_ERRORS as error:
            raise _not_sent(error, self._summary, table) from error
        _check_parent(table, snapshot, self.changes, self._summary)
        _check_counts(snapshot, self.planned, self._summary)
        return snapshot

    def _follows(self, snapshot: Any) -> bool:
        """Whether the history only grew since the update's last snapshot.

        The update remembers which delete files it has dropped. After a rollback the table may need one of them again.
        """
        before, self._made_for = self._made_for, snapshot.parentId()
        return before is None or snapshots_between(self._table, snapshot.parentId(), before) is not None

    def _lost(self, snapshot: Any) -> set[str]:
        """Locations of equality deletes newer than the outputs that the snapshot would lose.

        Iceberg removes delete files by path: if a writer has committed one of them once more, as Flink may after a
        restart, the newer entry leaves too, although it applies to data files that came with it.

        Raises:
            ReplanError: a position delete that leaves is newer than the head that was compared.
        """
        lost: set[str] = set()
        planned, compared = self._table.sequence_number, self.changes.compared_number
        if self.changes.replacements and int(snapshot.summary().get("removed-delete-files") or 0):
            iterator = snapshot.removedDeleteFiles(self._table.handle.io()).iterator()
            while iterator.hasNext():
                file = iterator.next()
                number = int(file.dataSequenceNumber())
                if number <= planned:
                    continue
                if str(file.content().name()) == "EQUALITY_DELETES":
                    lost.add(str(file.location()))
                elif compared is None or number > compared:
                    raise ReplanError(
                        f"delete file {file.location()} was committed before the commit of run {self._summary.run_id}, "
                        "which would remove it",
                        reason=Reason.CONFLICT,
                    )
        return lost - self._carried.keys()

    def _carry(self, lost: AbstractSet[str]) -> None:
        """Let copies take the place of these delete files.

        Raises:
            ReplanError: one of them is not live any more.
            RetryError: the store does not answer.
        """
        if not lost:
            return
        files, copies = _live_deletes(self._table, lost), self.changes.copied(lost)
        for location, file in files.items():
            self._carried[location] = file, _at(self._table, file, copies[location])

    def clean_up(self, used: Collection[Any], *, sent: bool) -> None:
        """As of `Update`. Manifests that were merged are not used either. Files that stay do no harm."""
        handle = self._table.handle
        if sent and handle.snapshot(self._table.view.ref) is None:
            return  # what the table lists is not known
        landed = (handle.snapshot(each.snapshotId()) for each in self._made)  # also if it was rolled back since
        kept, manifests = set[str](), self._table.jvm.java.util.HashSet()
        for snapshot in (*used, *(each for each in landed if each is not None)):
            kept.add(str(snapshot.manifestListLocation()))
            manifests.addAll(snapshot.allManifests(handle.io()))
        kept |= {str(manifest.path()) for manifest in manifests}
        written = {str(each.manifestListLocation()) for each in self._made}
        for update in self._updates:
            with suppress(Py4JError, *JAVA_ERRORS):
                written |= _unused_manifests(manifests, update, self._table)
        delete_unused_metadata(self._table.view, self._summary.run_id, written, kept, self._listener)


def _check_parent(table: JavaTable, snapshot: Any, changes: Changes, summary: CommitSummary) -> None:
    """Check the commits between the head that was compared and the snapshot's parent, where Iceberg does not.

    Iceberg makes the snapshot for the newest head, which may be another one. It validates nothing where no data file is
    replaced, and never looks for deletes in `replace` snapshots. Conversions of equality deletes are such snapshots.

    Raises:
        ReplanError: another commit came in between; it was not sent.
    """
    compared, parent, run_id = changes.compared, snapshot.parentId(), summary.run_id
    if compared is None:
        return
    if not changes.replacements:
        if parent != compared:
            raise ReplanError(f"another commit came before that of run {run_id}", reason=Reason.CONFLICT)
        return
    between = snapshots_between(table, parent, compared)
    if between is None:
        what = f"commits that came before that of run {run_id} are not listed by the table"
        raise ReplanError(what, reason=Reason.CONFLICT)
    if any(each.operation() == REPLACE and int(each.summary().get(ADDED_DELETES) or 0) for each in between):
        what = f"another process added deletes before the commit of run {run_id}"
        raise ReplanError(what, reason=Reason.CONFLICT)


def _check_counts(snapshot: Any, planned: Counts, summary: CommitSummary) -> None:
    """Check that the snapshot replaces the planned number of files, and deletes the planned rows of the outputs.

    Iceberg removes by path: a path listed twice in the table would be removed twice.

    Raises:
        ReplanError: the numbers differ; it was not sent.
    """
    made = counts_of(snapshot)
    if made != planned:
        raise ReplanError(
            f"the commit of run {summary.run_id} would {told(made)}, but the plan would {told(planned)}: the table now "
            "lists a file twice",
            reason=Reason.CONFLICT,
        )


def counts_of(snapshot: Any) -> Counts:
    """What a snapshot of Java does."""
    names, summary = ("deleted-data-files", "added-data-files", "added-position-deletes"), snapshot.summary()
    removed, added, rows = (int(summary.get(name) or 0) for name in names)
    return removed, added, rows


def told(counts: Counts) -> str:
    """For people."""
    removed, added, rows = counts
    return f"replace {removed} files by {added}" + (f" and delete {rows} of their rows" if rows else "")


def _outputs(replacements: Sequence[Replacement]) -> int:
    return sum(len(each.outputs) for each in replacements)


def _unused_manifests(committed: Any, update: Any, table: JavaTable) -> set[str]:
    """Manifests of the update that were not committed, as Iceberg's own `cleanUncommitted` names them.

    Iceberg's `commit()` calls it, and deletes them. Here a queue takes the names: they are deleted with a trail.
    """
    invoke, lang = table.jvm.java.lang.invoke, table.jvm.java.lang
    queue = table.jvm.java.util.concurrent.ConcurrentLinkedQueue()
    takes = invoke.MethodType.methodType(lang.Boolean.TYPE, lang.Class.forName("java.lang.Object"))
    add = invoke.MethodHandles.publicLookup().bind(queue, "add", takes)
    consumer = lang.Class.forName("java.util.function.Consumer")
    update.deleteWith(invoke.MethodHandleProxies.asInterfaceInstance(consumer, add))
    _call(table, update, "SnapshotProducer.cleanUncommitted", "java.util.Set", committed)
    return set(map(str, queue.toArray()))


def _let_it_only_add_deletes(update: Any, table: JavaTable) -> None:
    """Make Iceberg's RewriteFiles add delete files although it removes none, which it refuses.

    A filter counts as a removal. This one matches no file: no row has one of no values. Without it, a delete file that
    stays would have to be removed and added again, and Iceberg would delete it when the snapshot expires.
    """
    class_loader = update.getClass().getClassLoader()
    field = class_loader.loadClass("org.apache.iceberg.MergingSnapshotProducer").getDeclaredField("deleteFilterManager")
    field.setAccessible(True)
    column = table.handle.schema().columns().get(0).name()
    expressions = table.jvm.org.apache.iceberg.expressions.Expressions
    nothing = getattr(expressions, "in")(column, table.jvm.java.util.ArrayList())
    parameter = "org.apache.iceberg.expressions.Expression"
    _call(table, field.get(update), "ManifestFilterManager.deleteByRowFilter", parameter, nothing)


def _call(table: JavaTable, owner: Any, method: str, parameter: str, argument: Any) -> None:
    """Call a method of Iceberg by reflection: it is not public. `method`: its class and its name."""
    lang, gateway = table.jvm.java.lang, table.session.sparkContext._gateway  # noqa: SLF001
    class_loader, (class_name, name) = owner.getClass().getClassLoader(), method.split(".")
    types, arguments = gateway.new_array(lang.Class, 1), gateway.new_array(lang.Object, 1)
    types[0], arguments[0] = class_loader.loadClass(parameter), argument
    found = class_loader.loadClass(f"org.apache.iceberg.{class_name}").getDeclaredMethod(name, types)
    found.setAccessible(True)
    found.invoke(owner, arguments)


def _not_sent(error: Exception, summary: CommitSummary, table: JavaTable) -> FirnlineError:
    kind, message = exception_class(error), first_line(error)
    if kind == VALIDATION:
        return ReplanError(
            f"another commit touched the files of run {summary.run_id}: {message}", reason=Reason.CONFLICT
        )
    what, denied = f"the commit of run {summary.run_id} could not be prepared", denial(error)
    if expired_in_java(error, table.view):
        return RetryError(f"{what}: {message}", reason=Reason.CREDENTIALS_EXPIRED)
    if denied is not None:
        return RetryError(f"{what}: {denied}; {PERMIT}", reason=Reason.ACCESS_DENIED)
    return RetryError(f"{what}: {message}{checksum_remedy(message)}", reason=Reason.COMMIT_FAILED)


def _live_deletes(table: JavaTable, locations: AbstractSet[str]) -> dict[str, Any]:
    """The Java objects of live delete files newer than the plan, by location, with their metrics.

    Raises:
        ReplanError: the table no longer lists one of them.
    """
    found: dict[str, Any] = {}
    io, specs = table.handle.io(), table.handle.specs()
    for manifest in table.handle.snapshot(table.view.ref).deleteManifests(io):
        if manifest.sequenceNumber() <= table.sequence_number or len(found) == len(locations):
            continue
        reader = table.jvm.org.apache.iceberg.ManifestFiles.readDeleteManifest(manifest, io, specs)
        try:
            files = reader.iterator()  # of live files
            while files.hasNext():
                file = files.next()
                if str(file.location()) in locations:
                    found[str(file.location())] = file.copy()
        finally:
            reader.close()
    gone = locations - found.keys()
    if gone:
        raise ReplanError(f"delete file {min(gone)} was removed by another commit", reason=Reason.CONFLICT)
    return found


def _at(table: JavaTable, file: Any, location: str) -> Any:
    """The Java object of an equality delete at another location."""
    spec, ids = table.handle.specs()[file.specId()], file.equalityFieldIds()
    numbers = table.session.sparkContext._gateway.new_array(table.jvm.int, len(ids))  # noqa: SLF001
    for position, number in enumerate(ids):
        numbers[position] = number
    builder = table.jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(spec).copy(file)
    return builder.ofEqualityDeletes(numbers).withPath(location).build()


def _rewrite_files(
    table: JavaTable, changes: Changes, carried: Sequence[tuple[Any, Any]], summary: CommitSummary
) -> Any:
    """`carried`: delete files to remove, each with the copy to add."""
    jvm, validated_at = table.jvm, changes.validated_at
    rewrite = table.handle.newRewrite()
    rewrite.validateFromSnapshot(table.snapshot_id if validated_at is None else validated_at)
    rewrite.dataSequenceNumber(table.sequence_number)
    nothing = jvm.java.util.HashSet()
    removed, added = (jvm.org.apache.iceberg.util.DeleteFileSet.create() for _ in range(2))
    removed.addAll(table.delete_files([delete_file(entry) for entry in changes.dangling]))
    added.addAll(table.delete_files(changes.deletes))
    for replacement in changes.replacements:
        group = _file_group(table, replacement)
        removed.addAll(group.danglingDVs())
        rewrite.rewriteFiles(group.rewrittenFiles(), nothing, group.addedFiles(), nothing)
    for file, copy in carried:
        removed.add(file)
        rewrite.addFile(copy, file.dataSequenceNumber())
    rewrite.rewriteFiles(nothing, removed, nothing, added)
    if removed.isEmpty() and not added.isEmpty():
        _let_it_only_add_deletes(rewrite, table)
    for name, value in summary.properties.items():
        rewrite.set(name, value)
    return rewrite.toBranch(table.view.ref)


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
