"""Iceberg's Java library as the product calls it through Py4J, over a `World`: only what it calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from compactor.commit.history import REPLACE
from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.partitions import PartitionKey
from compactor.spark.java_table import (
    COMMIT_FAILED,
    COMMIT_STATE_UNKNOWN,
    NO_SUCH_TABLE,
    NOT_AUTHORIZED,
    VALIDATION,
)
from tests.simulator.java_objects import Answers, JavaError, JavaSet, Package
from tests.simulator.merges import Action, Merge
from tests.simulator.world import INHERITED, LOCATION, Manifest, Parts, Request, Snapshot, State, World

ICEBERG: Final = "org.apache.iceberg.exceptions."
ANSWERS: Final = (
    COMMIT_FAILED,  # 409
    COMMIT_FAILED,
    COMMIT_STATE_UNKNOWN,  # 500, 503, a connection that is cut
    COMMIT_STATE_UNKNOWN,
    NOT_AUTHORIZED,
    f"{ICEBERG}BadRequestException",
    f"{ICEBERG}NoSuchTableException",
    "java.lang.IllegalArgumentException",
)
UNAVAILABLE: Final = f"{ICEBERG}ServiceUnavailableException"
Step = Callable[[str], None]
"""Called before each call of the catalog or the store with what it is; the history acts meanwhile, and may raise."""


class JavaFile:
    """A content file, as an entry. Equal by location and place within it, as in Iceberg's sets of files."""

    def __init__(self, entry: FileEntry) -> None:
        self.entry = entry

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JavaFile) and other.entry.identity == self.entry.identity

    def __hash__(self) -> int:
        return hash(self.entry.identity)

    def location(self) -> str:
        return self.entry.path

    path = location

    def content(self) -> Answers:
        return Answers(name=self.entry.content.name)

    def dataSequenceNumber(self) -> int:  # noqa: N802
        return self.entry.data_sequence_number

    def fileSizeInBytes(self) -> int:  # noqa: N802
        return self.entry.size

    def keyMetadata(self) -> None:  # noqa: N802
        return None

    def partition(self) -> PartitionKey:
        return self.entry.key

    def specId(self) -> int:  # noqa: N802
        return self.entry.key.spec_id

    def equalityFieldIds(self) -> tuple[int, ...]:  # noqa: N802
        return self.entry.equality_ids

    def copy(self) -> JavaFile:
        return self


class JavaManifest:
    """A manifest file, known by its path."""

    def __init__(self, made: Manifest) -> None:
        self.made = made

    def path(self) -> str:
        return self.made.path

    def snapshotId(self) -> int:  # noqa: N802
        return self.made.added_by

    def sequenceNumber(self) -> int:  # noqa: N802
        return self.made.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JavaManifest) and other.made.path == self.made.path

    def __hash__(self) -> int:
        return hash(self.made.path)


class JavaSnapshot:
    """A snapshot as Java shows it."""

    def __init__(self, made: Snapshot) -> None:
        self.made = made

    def __getattr__(self, name: str) -> Callable[..., Any]:
        made = self.made
        simple: Mapping[str, Any] = {
            "snapshotId": made.id,
            "parentId": made.parent or None,
            "sequenceNumber": made.number,
            "operation": made.operation,
            "summary": made.summary,
            "manifestListLocation": made.manifest_list,
            "firstRowId": 0 if made.format_version > 2 else None,
        }
        if name in simple:
            return lambda *_: simple[name]
        return self.__getattribute__(f"_{name}")  # type: ignore[no-any-return]

    def _allManifests(self, _io: Any) -> list[JavaManifest]:  # noqa: N802
        return [JavaManifest(each) for each in self.made.manifests]

    def _deleteManifests(self, _io: Any) -> list[JavaManifest]:  # noqa: N802
        return [JavaManifest(each) for each in self.made.manifests if not each.is_data]

    def _removedDeleteFiles(self, _io: Any) -> JavaSet:  # noqa: N802
        removed = self.made.changed(Status.DELETED)
        return JavaSet(JavaFile(each) for each in removed if each.content is not Content.DATA)


class Rewrite:
    """Iceberg's RewriteFiles: it keeps its snapshot id, and the manifests that it has written for all attempts."""

    def __init__(self, table: Handle) -> None:
        self.table, self.parts = table, Parts()
        self.removed, self.added = dict[str, JavaFile](), list[FileEntry]()
        self.deletes = set[tuple[str, tuple[int, int] | None]]()
        self.summary: dict[str, str] = {}
        self.from_id: int | None = None
        self.number = INHERITED
        self.only_adds = False

    def validateFromSnapshot(self, snapshot_id: int) -> None:  # noqa: N802
        self.from_id = snapshot_id

    def dataSequenceNumber(self, number: int) -> None:  # noqa: N802
        self.number = number

    def rewriteFiles(self, data: Any, deletes: Any, added: Any, added_deletes: Any) -> None:  # noqa: N802
        self.removed |= {each.location(): each for each in data}
        self.deletes |= {each.entry.identity for each in deletes}
        self.added += [each.entry for each in added]
        self.added += [each.entry._replace(data_sequence_number=INHERITED) for each in added_deletes]

    def addFile(self, file: JavaFile, number: int = INHERITED) -> None:  # noqa: N802
        self.added.append(file.entry._replace(data_sequence_number=number))

    def set(self, name: str, value: str) -> None:
        self.summary[name] = value

    def toBranch(self, _ref: str) -> Rewrite:  # noqa: N802
        return self

    def deleteByRowFilter(self, _expression: Any) -> None:  # noqa: N802 - of the manager of delete filters
        self.only_adds = True

    def apply(self) -> JavaSnapshot:
        self.table.step("apply")
        self.table.reads()
        base = self.table.state
        self.table.meets("rewrite" if self.removed else "conversion")
        self._validate(base)
        removed, deletes = set(self.removed), self.deletes

        def leaves(entry: FileEntry) -> bool:
            return entry.path in removed if entry.content is Content.DATA else entry.identity in deletes

        added = [
            each._replace(data_sequence_number=self.number) if each.content is Content.DATA else each
            for each in self.added
        ]
        made = self.table.world.snapshot(base, REPLACE, added, leaves, self.summary, self.parts)
        self.table.step("applied")
        return JavaSnapshot(made)

    def _validate(self, base: State) -> None:
        head = base.newest
        live = head.live if head else ()
        paths, identities = {each.path for each in live}, {each.identity for each in live}
        if not (set(self.removed) <= paths and self.deletes <= identities):
            raise JavaError(VALIDATION, "Missing required files to delete")
        if any(each.content is not Content.DATA for each in self.added) and not self.deletes and not self.only_adds:
            raise JavaError("java.lang.IllegalArgumentException", "Delete files to add must be empty")
        if not self.removed:
            return
        for snapshot in self._since(base):
            if snapshot.operation == REPLACE:
                continue
            for each in snapshot.changed(Status.ADDED):
                if each.content is Content.POSITION_DELETES and self._may_hit(each):
                    raise JavaError(VALIDATION, f"Cannot commit, found new position delete {each.path}")

    def _since(self, base: State) -> list[Snapshot]:
        found = []
        for each in base.history():
            if each.id == self.from_id:
                return found
            found.append(each)
        if found and found[-1].parent == (self.from_id or 0):
            return found
        raise JavaError(VALIDATION, f"Cannot determine history between starting snapshot {self.from_id} and the last")

    def _may_hit(self, delete: FileEntry) -> bool:
        if delete.applies_to is not None:
            return delete.applies_to in self.removed
        return any(each.entry.key == delete.key for each in self.removed.values())

    def deleteWith(self, consumer: Callable[[str], object]) -> None:  # noqa: N802
        self.delete = consumer

    def cleanUncommitted(self, committed: Iterable[JavaManifest]) -> None:  # noqa: N802
        used = {each.path() for each in committed}
        for path in sorted(self.parts.written - used):
            self.delete(path)

    def getClass(self) -> Any:  # noqa: N802
        """For reflection: a class loader that finds methods by name."""

        def method(name: str, _types: Any) -> Any:
            return Answers(setAccessible=None, invoke=lambda owner, values: getattr(owner, name)(*values))

        field = Answers(setAccessible=None, get=lambda owner: owner)
        loaded = Answers(getDeclaredMethod=method, getDeclaredField=lambda _: field)
        return Answers(getClassLoader=Answers(loadClass=lambda _: loaded))


class FileGroup:
    """Iceberg's RewriteFileGroup."""

    def __init__(self, _info: Any, tasks: Any, *_: Any) -> None:
        self._tasks, self._outputs = tasks, JavaSet()

    def setOutputFiles(self, outputs: Any) -> None:  # noqa: N802
        self._outputs = outputs

    def danglingDVs(self) -> tuple[Any, ...]:  # noqa: N802 - the vectors leave with their files anyway
        return ()

    def rewrittenFiles(self) -> list[JavaFile]:  # noqa: N802
        return [task.file() for task in self._tasks]

    def addedFiles(self) -> Any:  # noqa: N802
        return self._outputs


class _Builder:
    def __getattr__(self, _name: str) -> Callable[..., Any]:
        return lambda *_: self


class _DeleteFileBuilder:
    """Of Iceberg's FileMetadata."""

    def __init__(self, _spec: Any) -> None:
        self.entry: Any = None

    def copy(self, file: JavaFile) -> _DeleteFileBuilder:
        self.entry = file.entry
        return self

    def ofEqualityDeletes(self, ids: Any) -> _DeleteFileBuilder:  # noqa: N802
        self.entry = self.entry._replace(equality_ids=tuple(ids))
        return self

    def withPath(self, path: str) -> _DeleteFileBuilder:  # noqa: N802
        self.entry = self.entry._replace(path=path)
        return self

    def build(self) -> JavaFile:
        return JavaFile(self.entry)


class Handle:
    """`org.apache.iceberg.Table`, as read last."""

    def __init__(self, world: World, uuid: str, step: Step) -> None:
        self.world, self.step, self._uuid, self.state = world, step, uuid, world.state
        self._theirs, self._met = world.landed["theirs"], False

    def reads(self) -> None:
        self.state = self.world.state

    def meets(self, what: str) -> None:
        """Note if others have committed since this was loaded."""
        if self.world.landed["theirs"] > self._theirs and not self._met:
            self._met = True
            self.world.met[f"{what} that met a commit"] += 1

    def refresh(self) -> None:
        self.step("refresh")
        self.reads()

    def uuid(self) -> Answers:
        return Answers(toString=self._uuid)

    def operations(self) -> Handle:
        return self

    def current(self) -> Answers:
        state = self.state
        return Answers(
            formatVersion=state.format_version,
            lastSequenceNumber=state.last_number,
            ref=lambda name: name if name == "main" or name in state.branches else None,
            snapshot=self.snapshot,
            snapshots=lambda: JavaSet(state.snapshots),
        )

    def snapshot(self, which: int | str) -> JavaSnapshot | None:
        found = self.state.snapshots.get(which if isinstance(which, int) else self.state.head)
        return None if found is None else JavaSnapshot(found)

    def currentSnapshot(self) -> JavaSnapshot | None:  # noqa: N802
        return self.snapshot(self.state.head)

    def newRewrite(self) -> Rewrite:  # noqa: N802
        return Rewrite(self)

    def rewriteManifests(self) -> Merge:  # noqa: N802
        return Merge(self, JavaSnapshot)

    def expireSnapshots(self) -> Answers:  # noqa: N802
        self.world.violated("snapshots are expired, which writers may need")
        return Answers(expireOlderThan=Answers(cleanExpiredFiles=Answers(commit=None)))

    def newTransaction(self) -> Answers:  # noqa: N802
        return Answers(table=Staged(self))

    def io(self) -> None:
        return None

    def specs(self) -> dict[int, Answers]:
        return {0: Answers(isPartitioned=True), 1: Answers(isPartitioned=False)}

    def schema(self) -> Answers:
        return Answers(columns=lambda: JavaSet([Answers(name="number")]))

    def statisticsFiles(self) -> tuple[Any, ...]:  # noqa: N802
        return ()

    def locationProvider(self) -> Answers:  # noqa: N802
        return Answers(newDataLocation=lambda *given: f"{LOCATION}/data/{given[-1]}")

    def commit(self, _current: Any, made: JavaSnapshot) -> None:
        """The request is on its way: it may arrive now, later, twice or never, and the answer says nothing of it."""
        self.step("send")
        world, chance, profile = self.world, self.world.chance, self.world.profile
        faults = world.faults
        request = Request(made.made, self.state.version, lambda rows: rows, ours=True)
        fate = "now"
        if chance.random() < faults:
            request.copies = chance.choice((1, 1, 2))
            now = 1.0 - profile.late - profile.never
            fate = chance.choices(["now", "later", "never"], [now, profile.late, profile.never])[0]
        landed = fate == "now" and world.arrives(request)
        if landed:
            world.at_once.add(made.made.id)
        request.copies -= fate == "now"
        if fate != "never" and request.copies:
            world.pending.append(request)
        refused = fate == "now" and not landed
        answer = COMMIT_FAILED if refused and chance.random() < 0.8 else chance.choice(ANSWERS)
        fine = landed and chance.random() >= 0.3 * bool(faults)
        if fate == "never" and chance.random() < profile.lies:
            fine = True  # a catalog has reported success without a commit (apache/iceberg 17202)
        what = f"{fate}, it lands" if landed else fate
        world.tell(f"{made.made.name} is sent ({what}): {'200' if fine else answer}")
        self.step("answer")
        if fine:
            return
        if made.made.changed(Status.ADDED) and chance.random() < 0.05 * bool(faults):
            raise KeyboardInterrupt
        raise JavaError(answer, f"answered by {answer}")


class Staged:
    """A table in a transaction. `made`: what was committed in it."""

    def __init__(self, table: Handle) -> None:
        self.table, self.made, self.manifest = table, table.state.newest, JavaManifest

    def currentSnapshot(self) -> JavaSnapshot | None:  # noqa: N802
        return JavaSnapshot(self.made) if self.made else None


def _content(tree: Mapping[str, Any]) -> JavaFile:
    """A content file from its JSON (REST spec)."""
    key = PartitionKey(tree["spec-id"], json.dumps(tree["partition"], separators=(",", ":")))
    blob = (tree["content-offset"], tree["content-size-in-bytes"]) if "content-offset" in tree else None
    fixed = (key, tuple(tree["partition"]), tree["record-count"], tree["file-size-in-bytes"], None, False)
    ids, applies_to = tuple(tree.get("equality-ids", ())), tree.get("referenced-data-file")
    kind, content = tree["file-format"], Content(tree["content"])
    return JavaFile(
        FileEntry(
            "", Status.ADDED, None, INHERITED, content, tree["file-path"], kind, *fixed, ids, applies_to, None, blob
        )
    )


def _scan_tasks(tree: Mapping[str, Any], _specs: Any, _sensitive: bool) -> Answers:
    files = [_content(each["data-file"]) for each in tree["file-scan-tasks"]]
    return Answers(fileScanTasks=lambda: JavaSet(Answers(file=lambda file=file: file) for file in files))


def _with_branch(snapshot: JavaSnapshot) -> Answers:
    return Answers(build=lambda: snapshot)


_REFLECTION: Final = {
    "java.lang.Class": Answers(forName=None),
    "java.lang.Object": None,
    "java.lang.Boolean.TYPE": None,
    "java.lang.invoke.MethodType": Answers(methodType=None),
    "java.lang.invoke.MethodHandles": Answers(
        publicLookup=lambda: Answers(bind=lambda owner, name, _type: getattr(owner, name))
    ),
    "java.lang.invoke.MethodHandleProxies": Answers(asInterfaceInstance=lambda _interface, method: method),
}


class JavaSession:
    """The parts of a SparkSession that lead to Java. `load`: loads the table."""

    def __init__(self, load: Callable[[], Handle]) -> None:
        iceberg = "org.apache.iceberg."
        self._jsparkSession = Answers(
            sessionState=Answers(catalogManager=Answers(catalog=None, reset=None)),
        )
        self._jvm = Package(
            {
                **_REFLECTION,
                "int": int,
                "java.util.HashSet": JavaSet,
                "java.util.ArrayList": JavaSet,
                "java.util.concurrent.ConcurrentLinkedQueue": JavaSet,
                f"{iceberg}spark.Spark3Util": Answers(loadIcebergTable=lambda *_: load()),
                f"{iceberg}util.DeleteFileSet": Answers(create=JavaSet),
                f"{iceberg}util.JsonUtil": Answers(mapper=lambda: Answers(readTree=json.loads)),
                f"{iceberg}rest.responses.FetchScanTasksResponseParser": Answers(fromJson=_scan_tasks),
                f"{iceberg}rest.TableScanResponseParser": Answers(
                    parseDeleteFiles=lambda tree, _specs: JavaSet(map(_content, tree["delete-files"]))
                ),
                f"{iceberg}TableMetadata": Answers(
                    buildFrom=lambda _current: Answers(setBranchSnapshot=lambda made, _ref: _with_branch(made))
                ),
                f"{iceberg}ManifestFiles": Answers(readDeleteManifest=_read_manifest),
                f"{iceberg}FileMetadata": Answers(deleteFileBuilder=_DeleteFileBuilder),
                f"{iceberg}actions.ImmutableRewriteDataFiles": _Builders,
                f"{iceberg}actions.RewriteFileGroup": FileGroup,
                f"{iceberg}expressions.Expressions": _Builder(),
                f"{iceberg}spark.actions.SparkActions": Answers(
                    get=Answers(rewriteManifests=lambda staged: Action(staged, JavaSnapshot))
                ),
                "com.google.common.base.Functions": Answers(constant=None),
                "org.apache.spark.sql.classic.SparkSession": Answers(setActiveSession=None),
            }
        )


class _Builders:
    FileGroupInfo = Answers(builder=_Builder)


def _read_manifest(manifest: JavaManifest, _io: Any, _specs: Any) -> Answers:
    files = JavaSet(JavaFile(each) for each in manifest.made.live)
    return Answers(iterator=files.iterator, close=None)


__all__ = ["NO_SUCH_TABLE", "UNAVAILABLE", "Handle", "JavaError", "JavaSession"]
