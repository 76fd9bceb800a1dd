"""What the code that commits sees of Iceberg's Java library, over a `World`: only what it calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Final

from pyspark.errors.exceptions.captured import CapturedException

from compactor.commit.history import REPLACE
from compactor.spark.java_table import COMMIT_FAILED, COMMIT_STATE_UNKNOWN, NOT_AUTHORIZED, VALIDATION, JavaTable
from tests.late_commits.world import Request, Snapshot, World

ICEBERG: Final = "org.apache.iceberg.exceptions."
ANSWERS: Final = (
    COMMIT_FAILED,  # 409
    COMMIT_FAILED,
    COMMIT_STATE_UNKNOWN,  # 500, 503, a connection that is cut
    NOT_AUTHORIZED,
    f"{ICEBERG}BadRequestException",
    f"{ICEBERG}NoSuchTableException",
    "java.lang.IllegalArgumentException",
)


class JavaError(CapturedException):
    """An exception of Java of this class."""

    def __init__(self, kind: str, message: str) -> None:
        self._desc, self._origin = message, SimpleNamespace(getClass=lambda: SimpleNamespace(getName=lambda: kind))  # type: ignore[assignment]

    def __str__(self) -> str:
        return str(self._desc)


class JavaSet(set[Any]):
    """A set or list of Java."""

    addAll = set.update  # noqa: N815 - as Java calls it

    def toArray(self) -> list[Any]:  # noqa: N802
        return list(self)

    def isEmpty(self) -> bool:  # noqa: N802
        return not self

    def size(self) -> int:
        return len(self)


class JavaSnapshot:
    """A snapshot as Java shows it."""

    def __init__(self, made: Snapshot) -> None:
        self.made = made

    def __getattr__(self, name: str) -> Callable[..., Any]:
        made = self.made
        values: Mapping[str, Any] = {
            "snapshotId": made.id,
            "parentId": made.parent or None,
            "sequenceNumber": made.number,
            "operation": made.operation,
            "summary": made.summary,
            "manifestListLocation": made.manifest_list,
            "allManifests": [JavaManifest(path, made.added_by[path]) for path in made.manifests],
            "firstRowId": None,
        }
        return lambda *_: values[name]


class JavaManifest:
    """A manifest file, known by its path."""

    def __init__(self, path: str, snapshot_id: int) -> None:
        self._path, self._snapshot_id = path, snapshot_id

    def path(self) -> str:
        return self._path

    def snapshotId(self) -> int:  # noqa: N802
        return self._snapshot_id

    def __hash__(self) -> int:
        return hash(self._path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JavaManifest) and other._path == self._path


class Rewrite:
    """Iceberg's RewriteFiles: it keeps its snapshot id, and the manifest of what it adds, from attempt to attempt."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.removed, self.added, self.deletes = set[str](), set[str](), set[str]()
        self.summary: dict[str, str] = {}
        self.own: str | None = None
        self.snapshot_id: int | None = None
        self.written: set[str] = set()

    def rewriteFiles(self, *files: Iterable[Any]) -> None:  # noqa: N802
        removed, _, added, deletes = files
        self.removed |= set(removed)
        self.added |= set(added)
        self.deletes |= set(deletes)

    def set(self, name: str, value: str) -> None:
        self.summary[name] = value

    def toBranch(self, _ref: str) -> Rewrite:  # noqa: N802
        return self

    validateFromSnapshot = dataSequenceNumber = deleteByRowFilter = lambda *_: None  # noqa: N815

    def apply(self) -> JavaSnapshot:
        self.table.meanwhile()
        world = self.table.world
        self.table.state = world.state  # Iceberg reads the table again
        if not self.removed <= world.state.snapshots[world.state.head].files:
            raise JavaError(VALIDATION, "Missing required files to delete")
        counts = {
            "deleted-data-files": str(len(self.removed)),
            "added-data-files": str(len(self.added)),
            "added-position-deletes": str(len(self.deletes)),
        }
        self.own = self.own or world.metadata_file("own")
        before = set(world.metadata_files)
        removed, added = frozenset(self.removed), frozenset(self.added | self.deletes)
        made = world.snapshot(REPLACE, added, removed, self.summary | counts, self.own, self.snapshot_id)
        self.snapshot_id = made.id
        self.written |= {self.own, *(world.metadata_files - before)}
        return JavaSnapshot(made)

    def deleteWith(self, consumer: Callable[[str], object]) -> None:  # noqa: N802
        self.delete = consumer

    def cleanUncommitted(self, committed: Iterable[JavaManifest]) -> None:  # noqa: N802
        self.table.meanwhile()
        used = {each.path() for each in committed}
        for path in sorted(self.written - used):
            if "/list-" not in path:
                self.delete(path)

    def getClass(self) -> Any:  # noqa: N802
        """For reflection: a class loader that finds methods by name."""

        def method(name: str, _types: Any) -> Any:
            return SimpleNamespace(
                setAccessible=lambda _: None, invoke=lambda owner, values: getattr(owner, name)(*values)
            )

        field = SimpleNamespace(setAccessible=lambda _: None, get=lambda owner: owner)
        loaded = SimpleNamespace(getDeclaredMethod=method, getDeclaredField=lambda _: field)
        return SimpleNamespace(getClassLoader=lambda: SimpleNamespace(loadClass=lambda _: loaded))


class FileGroup:
    """Iceberg's RewriteFileGroup."""

    def __init__(self, _info: Any, tasks: Any, *_: Any) -> None:
        self._tasks = tasks

    def setOutputFiles(self, outputs: Any) -> None:  # noqa: N802
        self._outputs = outputs

    danglingDVs = staticmethod(tuple)  # noqa: N815

    def rewrittenFiles(self) -> list[str]:  # noqa: N802
        return list(self._tasks.paths)

    def addedFiles(self) -> Any:  # noqa: N802
        return self._outputs


class ScanTasks:
    """Input files of a replacement."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = tuple(paths)

    def get(self, _index: int) -> Any:
        return SimpleNamespace(file=lambda: SimpleNamespace(partition=lambda: None, specId=lambda: 0))


class _Builder:
    def __getattr__(self, _name: str) -> Callable[..., Any]:
        return lambda *_: self


class Table(JavaTable):
    """The table as Java has read it last. `meanwhile`: what happens in the world between two steps of a run."""

    def __init__(self, world: World, view: Any, meanwhile: Callable[[], None]) -> None:
        self.world, self.meanwhile, self.state = world, meanwhile, world.state
        gateway = SimpleNamespace(new_array=lambda _type, length: [None] * length)
        session: Any = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway))
        super().__init__(session, None, view, view.snapshot.snapshot_id)
        self.handle = SimpleNamespace(
            newRewrite=lambda: Rewrite(self),
            snapshot=self._snapshot,
            operations=lambda: SimpleNamespace(current=lambda: self.metadata),
            io=lambda: None,
            schema=_Builder,
        )

    @property
    def metadata(self) -> Any:
        state, version = self.state, self.world.format_version
        return SimpleNamespace(
            formatVersion=lambda: version,
            lastSequenceNumber=lambda: state.last_number,
            snapshot=self._snapshot,
            snapshots=lambda: JavaSet(state.snapshots),
        )

    def _snapshot(self, which: int | str) -> JavaSnapshot | None:
        found = self.state.snapshots.get(which if isinstance(which, int) else self.state.head)
        return None if found is None else JavaSnapshot(found)

    @property
    def jvm(self) -> Any:
        iceberg = SimpleNamespace(
            util=SimpleNamespace(DeleteFileSet=SimpleNamespace(create=JavaSet)),
            actions=SimpleNamespace(
                ImmutableRewriteDataFiles=SimpleNamespace(FileGroupInfo=SimpleNamespace(builder=_Builder)),
                RewriteFileGroup=FileGroup,
            ),
            expressions=SimpleNamespace(Expressions=_Builder()),
        )
        handles = SimpleNamespace(
            MethodType=SimpleNamespace(methodType=lambda *_: None),
            MethodHandles=SimpleNamespace(
                publicLookup=lambda: SimpleNamespace(bind=lambda owner, name, _type: getattr(owner, name))
            ),
            MethodHandleProxies=SimpleNamespace(asInterfaceInstance=lambda _interface, method: method),
        )
        lang = SimpleNamespace(
            Class=SimpleNamespace(forName=lambda _: None),
            Object=None,
            Boolean=SimpleNamespace(TYPE=None),
            invoke=handles,
        )
        util = SimpleNamespace(
            HashSet=JavaSet, ArrayList=JavaSet, concurrent=SimpleNamespace(ConcurrentLinkedQueue=JavaSet)
        )
        java = SimpleNamespace(lang=lang, util=util)
        return SimpleNamespace(java=java, org=SimpleNamespace(apache=SimpleNamespace(iceberg=iceberg)))

    def refresh(self) -> None:
        self.meanwhile()
        self.state = self.world.state

    def check_unchanged(self) -> None:
        """It is the same table."""

    def with_snapshot(self, snapshot: JavaSnapshot) -> None:
        """It fits."""

    def delete_files(self, delete_files: Iterable[Mapping[str, Any]]) -> Any:
        return JavaSet(str(file["file-path"]) for file in delete_files)

    def send(self, snapshot: JavaSnapshot) -> None:
        """The request is on its way: it may arrive now, later, twice or never, and the answer says nothing of it."""
        world, chance = self.world, self.world.chance
        request = Request(snapshot.made, self.state.version, copies=chance.choice((1, 1, 2)))
        fate = chance.choices(["now", "later", "never"], [55, 35, 10])[0]
        landed = fate == "now" and world.arrives(request)
        request.copies -= fate == "now"
        if fate != "never" and request.copies:
            world.pending.append(request)
        refused = fate == "now" and not landed
        answer = COMMIT_FAILED if refused and chance.random() < 0.8 else chance.choice(ANSWERS)
        fine = landed and chance.random() < 0.7
        what = f"{fate}, it lands" if landed else fate
        world.tell(f"{snapshot.made.name} is sent ({what}): {'200' if fine else answer}")
        self.meanwhile()
        if fine:
            return
        if chance.random() < 0.05:
            raise KeyboardInterrupt
        raise JavaError(answer, f"answered by {answer}")
