"""The snapshots of one `replace` commit, attempt after attempt: made and validated by Iceberg, not committed.

Iceberg's update is kept from attempt to attempt, as its own `commit()` does: it remembers the manifests that it has
read and written, so that the next attempt reads only those that other commits have added since. Beside a writer that
commits every few seconds the first attempt is often too slow. The second one is not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError

from compactor.commit.deletion import delete_unused_metadata
from compactor.commit.history import snapshots_between
from compactor.commit.sends import Sent, can_still_land, java_state_of
from compactor.errors import FirnlineError, ReplanError, RetryError
from compactor.events import Listener, ignore
from compactor.iceberg.other_compactors import DEPLOYMENT, POLARIS_ROLLBACK, RUN_ID
from compactor.reasons import Reason
from compactor.spark.java_table import (
    JAVA_ERRORS,
    VALIDATION,
    JavaTable,
    denial,
    exception_class,
    expired_in_java,
    first_line,
)
from compactor.storage.byte_store import PERMIT, checksum_remedy

ENGINES = "firnline.engines"
PART = "firnline.part"
CARRY_ATTEMPTS = 3

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
class NewDeletes:
    """Delete files for rows of the outputs, and what the commit may take for granted.

    Attributes:
        files: Their content-file JSON.
        rows: Rows that they delete.
        validated_at: The snapshot up to which commits were taken into account; Iceberg validates against later ones.
        compared: The head that was compared. It must be the commit's parent where no data file is replaced (deletes for
            files that are in the table already, or delete files that leave): Iceberg does not validate what others
            committed after it. Elsewhere no `replace` may have added deletes since. None: nothing is checked.
        compared_number: The sequence number of that head; None: that of the planned snapshot counts. No position delete
            that is newer may leave.
        copied: Copies delete files that Iceberg removes although the outputs need them.
    """

    files: tuple[Mapping[str, Any], ...] = ()
    rows: int = 0
    validated_at: int | None = None
    compared: int | None = None
    compared_number: int | None = None
    copied: CopyFiles = copies_none


NO_DELETES = NewDeletes()


@dataclass(frozen=True)
class CommitSummary:
    """The properties that a commit adds to its snapshot's summary.

    `part`: "2/3" is the second of three commits; a long run makes several. `rollback_on_conflict`: when a writer's
    commit conflicts with this snapshot, Apache Polaris rolls the snapshot back instead of failing the writer (not on
    tables of format version 3).
    `deployment`: the id of the deployment; empty: none. `own`: the user's properties.
    """

    run_id: str
    engines: tuple[str, ...] = ()
    part: str = "1/1"
    rollback_on_conflict: bool = False
    deployment: str = ""
    own: Mapping[str, str] = field(default_factory=dict)

    @property
    def properties(self) -> dict[str, str]:
        """The summary properties."""
        engines = ",".join(sorted(set(self.engines)))
        properties = {**self.own, RUN_ID: self.run_id, ENGINES: engines, PART: self.part}
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
        return files_in, files_out, self.new.rows


class Snapshots:
    """Makes the snapshots of one commit. What was written and can no longer be committed is deleted at its end."""

    def __init__(self, table: JavaTable, changes: Changes, summary: CommitSummary, listener: Listener = ignore) -> None:
        self._table = table
        self._changes = changes
        self._summary = summary
        self._listener = listener
        self._update: Any = None
        self._made_by: Any = None
        self._made_for: int | None = None
        self._carried: dict[str, tuple[Any, Any]] = {}
        self._updates: list[Any] = []
        self._made: list[Any] = []
        self._sends: list[Sent] = []

    def make(self) -> Any:
        """The snapshot to commit: validated and written by Iceberg for the newest head.

        Iceberg drops delete files that are older than every data file it sees. It does not see the outputs, which have
        the planned snapshot's sequence number: an equality delete committed since the plan would be lost and its rows
        would come back (apache/iceberg 10312). Put a copy in its place, with its sequence number. The file itself
        cannot be added again: Iceberg's `expireSnapshots` deletes what an expired snapshot has removed, even if it is
        live (apache/iceberg 17304).

        Raises:
            ReplanError: validation failed, or another commit came first.
            RetryError: the snapshot cannot be written, e.g. a manifest cannot be read; nothing was sent.
        """
        table = self._table
        for _ in range(CARRY_ATTEMPTS):
            try:
                if self._update is None or self._made_by is not table.handle:  # loaded again, with a new credential
                    self._begin()
                snapshot = self._update.apply()
                self._made.append(snapshot)
                follows, lost = self._follows(snapshot), self._lost(snapshot)
                if follows and not lost:
                    return snapshot
                self._update = None
                self._carry(lost)
            except JAVA_ERRORS as error:
                raise _not_sent(error, self._summary, table) from error
        raise ReplanError(
            f"new deletes or a rollback arrived in each attempt to commit run {self._summary.run_id}",
            reason=Reason.CONFLICT,
        )

    def _begin(self) -> None:
        self._made_by, self._made_for = self._table.handle, None
        self._update = _rewrite_files(self._table, self._changes, list(self._carried.values()), self._summary)
        self._updates.append(self._update)

    def _lost(self, snapshot: Any) -> set[str]:
        """Locations of equality deletes newer than the outputs that the snapshot would lose.

        Iceberg removes delete files by path: if a writer has committed one of them once more, as Flink may after a
        restart, the newer entry leaves too, although it applies to data files that came with it.

        Raises:
            ReplanError: a position delete that leaves is newer than the head that was compared.
        """
        lost: set[str] = set()
        planned, compared = self._table.sequence_number, self._changes.new.compared_number
        if self._changes.replacements and int(snapshot.summary().get("removed-delete-files") or 0):
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
        files, copies = _live_deletes(self._table, lost), self._changes.new.copied(lost)
        for location, file in files.items():
            self._carried[location] = file, _at(self._table, file, copies[location])

    def _follows(self, snapshot: Any) -> bool:
        """Whether the history only grew since the update's last snapshot.

        The update remembers which delete files it has dropped. After a rollback the table may need one of them again.
        """
        before, self._made_for = self._made_for, snapshot.parentId()
        return before is None or snapshots_between(self._table, snapshot.parentId(), before) is not None

    def sent(self, snapshot: Any) -> None:
        """The snapshot is sent now: the table may list its files from now on."""
        self._sends.append(Sent.of(snapshot))

    def can_still_land(self) -> bool:
        """Whether one of the snapshots that were sent can, as the table was read last."""
        state = java_state_of(self._table) if self._sends else None
        return state is not None and any(can_still_land(each, state) for each in self._sends)

    def clean_up(self, committed: Any = None) -> None:
        """Delete the metadata files that were written, except what the table lists, its head or `committed`.

        `committed` was just found in the table; None: none was. Snapshots share manifests: while one that was sent can
        still land, none is deleted. Manifests that were merged are not used either. Files that stay do no harm.
        """
        with suppress(Py4JError, *JAVA_ERRORS, FirnlineError):
            if committed is None and self._sends:
                self._table.refresh()
            if self.can_still_land():
                return
            used = self._used(committed)
            if used is None:
                return
            io, manifests = self._table.handle.io(), self._table.jvm.java.util.HashSet()
            kept = {str(snapshot.manifestListLocation()) for snapshot in used}
            for snapshot in used:
                manifests.addAll(snapshot.allManifests(io))
            kept |= {str(manifest.path()) for manifest in manifests}
            written = {str(each.manifestListLocation()) for each in self._made}
            for update in self._updates:
                with suppress(Py4JError, *JAVA_ERRORS):
                    written |= _unused_manifests(manifests, update, self._table)
            delete_unused_metadata(self._table.view, self._summary.run_id, written, kept, self._listener)

    def _used(self, committed: Any) -> list[Any] | None:
        """Snapshots that may list our files, also one of ours that was rolled back since; None if it is not known."""
        handle = self._table.handle
        head = handle.snapshot(self._table.view.ref)
        if head is None and self._sends:
            return None
        landed = (handle.snapshot(each.snapshotId()) for each in self._made)
        return [each for each in (head, committed, *landed) if each is not None]


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
