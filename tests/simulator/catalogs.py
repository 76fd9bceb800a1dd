"""The catalog as the product's `Catalogs`, tables as its `TableView`, and its cache of manifests, over a `World`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotLogEntry, Summary

from compactor.errors import RetryError
from compactor.events import Listener, ignore
from compactor.iceberg.manifest_entries import FileEntry, Status
from compactor.iceberg.tables import Catalogs, KnownVersion, TableView, Unchanged
from compactor.manifests.cache import ManifestCache
from compactor.manifests.columns import EntryColumns
from compactor.partitions import PartitionLayout
from compactor.reasons import Reason
from compactor.table_names import TableName
from tests.simulator.java import Step
from tests.simulator.store import SimulatedIO
from tests.simulator.world import LOCATION, Manifest, State, World
from tests.simulator.world import Snapshot as Made

NAME = TableName("lake", ("db",), "t")
UUID = "9c12d441-03fe-4693-9a96-a0705ddf69c1"


@dataclass(frozen=True)
class SimulatedView(TableView):
    """The table as PyIceberg reads it. `world`: what is in its manifests; `made`: its snapshots, by id."""

    world: Any = None
    made: Any = None

    def layout(self, spec_id: int) -> PartitionLayout:
        return _layout(self.metadata.format_version, spec_id)

    def manifests(self, snapshot: Snapshot | None = None) -> tuple[ManifestFile, ...]:
        chosen = snapshot or self.snapshot
        if chosen is None:
            return ()
        made = self.made[chosen.snapshot_id]
        if made.manifest_list not in self.world.store.files:
            raise RetryError(f"{made.manifest_list} cannot be read", reason=Reason.MANIFEST_UNREADABLE)
        return _listed(made)


@cache
def _listed(made: Made) -> tuple[ManifestFile, ...]:
    return tuple(map(_manifest_file, made.manifests))


class Listed(ManifestFile):
    """A manifest as its list has it. `made`: what is in it."""

    made: Manifest


def _manifest_file(manifest: Manifest) -> ManifestFile:
    statuses = [each.status for each in manifest.entries]
    found: Listed = Listed.from_args(  # type: ignore[assignment]
        manifest_path=manifest.path,
        manifest_length=1000,
        partition_spec_id=manifest.spec_id,
        content=ManifestContent.DATA if manifest.is_data else ManifestContent.DELETES,
        sequence_number=manifest.number,
        min_sequence_number=min([each.data_sequence_number for each in manifest.live], default=manifest.number),
        added_snapshot_id=manifest.added_by,
        added_files_count=statuses.count(Status.ADDED),
        existing_files_count=statuses.count(Status.EXISTING),
        deleted_files_count=statuses.count(Status.DELETED),
        partitions=[],
    )
    found.made = manifest
    return found


class SimulatedCache(ManifestCache):
    """Decodes no manifest: the world knows what is in it."""

    def __init__(self, world: World) -> None:
        super().__init__(1 << 20)
        self._world = world

    def read(
        self,
        table: TableView,
        manifests: Sequence[ManifestFile],
        *,
        listener: Listener = ignore,  # noqa: ARG002 - as the cache's
    ) -> list[EntryColumns]:
        found = []
        for each in manifests:
            made: Manifest = each.made  # type: ignore[attr-defined]
            if made.path not in self._world.store.files:
                raise RetryError(f"manifest {made.path} cannot be read", reason=Reason.MANIFEST_UNREADABLE)
            found.append(_columns(made, table.layout(made.spec_id)))
        return found


class _Known(EntryColumns):
    """Columns whose entries exist as objects, and which are made when they are needed."""

    def __init__(self, manifest: Manifest, layout: PartitionLayout) -> None:
        self._made, self._layout, self._columns = manifest, layout, None

    def __getattr__(self, name: str) -> Any:
        if self._columns is None:
            self._columns = EntryColumns.of(self._made.path, self._layout, self._made.entries)
        return getattr(self._columns, name)

    def entries(self, rows: Any = None) -> list[FileEntry]:
        return list(self._made.entries) if rows is None else [self._made.entries[row] for row in rows.tolist()]


for _name in ("manifest_path", "rows", "partitions", "runs", "prefix", "nbytes", "_numbers"):
    setattr(_Known, _name, property(lambda self, name=_name: self.__getattr__(name)))


@cache
def _columns(manifest: Manifest, layout: PartitionLayout) -> EntryColumns:
    return _Known(manifest, layout)


@cache
def _layout(format_version: int, spec_id: int) -> PartitionLayout:
    metadata = _empty(format_version)
    return TableView(NAME, metadata, "", SimulatedIO()).layout(spec_id)


def forget() -> None:
    """A history is over: its manifests are needed no more."""
    _listed.cache_clear()
    _columns.cache_clear()
    _snapshot.cache_clear()


@cache
def _empty(format_version: int) -> TableMetadata:
    fields = [
        {"id": number, "name": name, "type": kind, "required": False}
        for number, (name, kind) in enumerate((("number", "long"), ("key", "int"), ("p", "int")), 1)
    ]
    schema = {"type": "struct", "schema-id": 0, "fields": fields}
    by_p = [{"name": "p", "transform": "identity", "source-id": 3, "field-id": 1000}]
    return TableMetadataUtil.parse_obj(
        {
            "format-version": format_version,
            "table-uuid": UUID,
            "location": LOCATION,
            "last-sequence-number": 0,
            "last-updated-ms": 0,
            "last-column-id": 3,
            "schema": schema,
            "schemas": [schema],
            "current-schema-id": 0,
            "partition-spec": by_p,
            "partition-specs": [{"spec-id": 0, "fields": by_p}, {"spec-id": 1, "fields": []}],
            "default-spec-id": 0,
            "last-partition-id": 1000,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "next-row-id": 1000000,
        }
    )


@cache
def _snapshot(made: Made) -> Snapshot:
    more: dict[str, Any] = {"first_row_id": 0, "added_rows": 0} if made.format_version > 2 else {}
    return Snapshot(
        snapshot_id=made.id,
        parent_snapshot_id=made.parent or None,
        sequence_number=made.number,
        timestamp_ms=int(made.timestamp * 1000),
        manifest_list=made.manifest_list,
        summary=Summary(Operation(made.operation), **made.summary),
        schema_id=0,
        **more,
    )


def view_of(world: World) -> SimulatedView:
    """What a catalog answers now: the same as long as nothing changes."""
    if world.shown is None or world.shown[0] is not world.state:
        world.shown = world.state, _view_of(world, world.state)
    view: SimulatedView = world.shown[1]
    return view


def _view_of(world: World, state: State) -> SimulatedView:
    refs = {"main": SnapshotRef(snapshot_id=state.head, snapshot_ref_type=SnapshotRefType.BRANCH)} if state.head else {}
    for name, head in state.branches.items():
        refs[name] = SnapshotRef(snapshot_id=head, snapshot_ref_type=SnapshotRefType.BRANCH)
    changed: dict[str, Any] = {
        "snapshots": [_snapshot(each) for each in state.snapshots.values()],
        "current_snapshot_id": state.head or None,
        "refs": refs,
        "last_updated_ms": int(state.updated * 1000),
        "snapshot_log": [SnapshotLogEntry(snapshot_id=state.head, timestamp_ms=int(state.newest.timestamp * 1000))]
        if state.newest
        else [],
    }
    if state.format_version > 1:
        changed["last_sequence_number"] = state.last_number
    metadata = _empty(state.format_version).model_copy(update=changed)
    return SimulatedView(NAME, metadata, f"v{state.version}", SimulatedIO(), world=world, made=state.snapshots)


class SimulatedCatalogs(Catalogs):
    """One catalog with one table. `step`: as in `java.py`; its errors are those of the catalog."""

    def __init__(self, world: World, step: Step) -> None:
        uri = "http://catalog/api/catalog" if world.kind == "polaris" else "http://catalog"
        super().__init__({"lake": {"type": "rest", "uri": uri}})
        self._world, self._step = world, step

    def load(self, name: TableName, ref: str = "main") -> TableView:  # noqa: ARG002 - there is one table
        self._step("load")
        return view_of(self._world)

    def load_if_changed(self, name: TableName, known: KnownVersion | None, now: float) -> TableView | Unchanged:  # noqa: ARG002
        return self.load(name)

    def list_tables(
        self,
        catalog_name: str,  # noqa: ARG002 - there is one catalog
        skipped: Any = None,  # noqa: ARG002 - all can be listed
        between: Callable[[], None] = lambda: None,
    ) -> Iterator[TableName]:
        between()
        yield NAME
