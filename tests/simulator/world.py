"""One table in a catalog that answers as it likes, with real manifest entries. What happens by chance is the seed's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from typing import Any, Final

from compactor.commit.history import REPLACE
from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.iceberg.other_compactors import POLARIS_ROLLBACK, RUN_ID
from compactor.partitions import PartitionKey
from tests.simulator.profiles import Profile
from tests.simulator.rows import Row, data_bytes, data_rows, visible
from tests.simulator.schedule import HangsError, Schedule
from tests.simulator.store import Store

LOCATION: Final = "mem://lake/db/t"
FIRST_WITH_VECTORS: Final = 3
MOST_FILES: Final = 20_000
"""Of one history, and snapshots: one that makes more does not end."""
INHERITED: Final = 0
"""The sequence number of an entry that has that of its manifest."""


@dataclass(frozen=True, eq=False)
class Manifest:
    """A manifest as its list shows it. `number`: which entries inherit."""

    path: str
    is_data: bool
    spec_id: int
    number: int
    added_by: int
    entries: tuple[FileEntry, ...]

    @cached_property
    def live(self) -> tuple[FileEntry, ...]:
        return tuple(each for each in self.entries if each.is_live)

    @property
    def with_ids(self) -> Manifest:
        """Once it is listed by a snapshot of version 3, all its rows have ids."""
        if not self.is_data or all(each.first_row_id is not None for each in self.entries):
            return self
        entries = tuple(
            each if each.first_row_id is not None else each._replace(first_row_id=0) for each in self.entries
        )
        return replace(self, entries=entries)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """`removed`: the entries that this snapshot removed."""

    id: int
    parent: int
    number: int
    operation: str
    summary: Mapping[str, str]
    manifest_list: str
    manifests: tuple[Manifest, ...]
    timestamp: float
    format_version: int

    @property
    def name(self) -> str:
        """In stories: Iceberg gives all attempts of an update one id."""
        return f"{self.id} ({self.manifest_list.rpartition('/')[2]})"

    @cached_property
    def live(self) -> tuple[FileEntry, ...]:
        """All live content files."""
        return tuple(entry for manifest in self.manifests for entry in manifest.live)

    @cached_property
    def data(self) -> dict[str, FileEntry]:
        return {each.path: each for each in self.live if each.content is Content.DATA}

    @cached_property
    def twice(self) -> frozenset[str]:
        """Data files that are listed more than once."""
        paths = Counter(each.path for each in self.live if each.content is Content.DATA)
        return frozenset(path for path, times in paths.items() if times > 1)

    @cached_property
    def files(self) -> frozenset[str]:
        """All that a reader needs."""
        paths = {each.path for each in self.live}
        return frozenset(paths | {self.manifest_list} | {each.path for each in self.manifests})

    def changed(self, status: Status) -> list[FileEntry]:
        """The files that this snapshot added, or removed."""
        own = (manifest for manifest in self.manifests if manifest.added_by == self.id)
        return [
            entry
            for manifest in own
            for entry in manifest.entries
            if entry.status is status and entry.snapshot_id == self.id
        ]

    @property
    def may_be_taken_back(self) -> bool:
        """Whether Apache Polaris may take it back for a commit that was sent for the snapshot before it."""
        return self.operation == REPLACE and POLARIS_ROLLBACK in self.summary


@dataclass(frozen=True)
class State:
    """The table's metadata. `version`: which metadata file this is; `branches`: heads beside main's."""

    version: int
    snapshots: Mapping[int, Snapshot]
    head: int
    last_number: int
    format_version: int = 2
    branches: Mapping[str, int] = field(default_factory=dict)
    updated: float = 0.0

    @property
    def newest(self) -> Snapshot | None:
        return self.snapshots.get(self.head)

    @property
    def next_number(self) -> int:
        """The sequence number of the next snapshot; version 1 has none."""
        return self.last_number + 1 if self.format_version > 1 else 0

    def history(self, of: int | None = None) -> list[Snapshot]:
        """From a snapshot (default: the head) on, the newest first."""
        found, at = [], self.head if of is None else of
        while at in self.snapshots:
            found.append(self.snapshots[at])
            if len(found) > len(self.snapshots):
                raise ViolationError(f"snapshot {at} comes before itself")
            at = found[-1].parent
        return found


@dataclass
class Request:
    """A commit on its way; `copies`: how often it may still arrive. `expect`: the rows after it, by those before."""

    snapshot: Snapshot
    base: int
    expect: Callable[[Counter[Row]], Counter[Row]]
    copies: int = 1
    ours: bool = False


class ViolationError(AssertionError):
    """What must never happen has happened."""


@dataclass
class World:
    """The table, its files, and the requests that have not arrived yet.

    `kind`: `location` compares metadata locations, `rest` the head's id, `polaris` does that and takes rewrites back.
    `faults`: how often; `cluster`: whether Spark's executors are on other hosts. `planned`: when runs were. `met`: of
    our jobs, those before whose commit another one came. `with_ids`: outputs that keep the ids of rows (V3). `at_once`:
    our snapshots that landed before an answer; `left`: snapshots that were the branch's, and are not any more.
    `shown`: a state as the catalog shows it.
    """

    chance: Random
    kind: str
    first_version: int
    plan: Schedule
    profile: Profile
    store: Store = field(default_factory=Store)
    state: State = field(init=False)
    pending: list[Request] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    violation: str = ""
    made: int = 0
    faults: float = 0.0
    cluster: bool = False
    planned: dict[str, float] = field(default_factory=dict)
    landed: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    with_ids: set[str] = field(default_factory=set)
    at_once: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)
    shown: tuple[State, Any] | None = None
    rows_by_list: dict[str, Counter[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = State(0, {}, 0, 0, self.first_version)
        self.store.deleted = self.was_deleted

    # --- files --------------------------------------------------------------------------------------------------------

    def new_name(self, what: str) -> str:
        self.made += 1
        if self.made > MOST_FILES:
            raise HangsError("the history does not end: it makes more and more files")
        return f"{LOCATION}/{what}-{self.made}"

    def new_file(self, what: str, content: bytes = b"", suffix: str = "") -> str:
        path = self.new_name(what) + suffix
        self.store.files[path] = content
        return path

    def was_deleted(self, path: str) -> None:
        """A retained snapshot must not need what is deleted."""
        for snapshot in self.state.snapshots.values():
            if path in snapshot.files:
                self.violated(f"{path} was deleted, and snapshot {snapshot.id} needs it")

    def violated(self, what: str) -> None:
        """Note it. No error: the code under test would catch it."""
        self.tell(f"VIOLATION: {what}")
        self.violation = self.violation or what

    def data_file(self, rows: Iterable[Row], key: PartitionKey) -> FileEntry:
        rows = list(rows)
        content = data_bytes(rows)
        path = self.new_file("data/w", content, ".parquet")
        return self.entry(Content.DATA, path, "parquet", key, len(rows))

    def entry(
        self, content: Content, path: str, kind: str, key: PartitionKey, records: int, **more: object
    ) -> FileEntry:
        """An entry as a commit adds it."""
        values = {"applies_to": None, "equality_ids": (), "blob": None, "first_row_id": None, **more}
        size = len(self.store.files[path])
        partition = tuple(key.tuple_json)
        fixed = (key, partition, records, size, None, False)
        return FileEntry("", Status.ADDED, None, INHERITED, content, path, kind, *fixed, **values)  # type: ignore[arg-type]

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def snapshot(
        self,
        base: State,
        operation: str,
        added: Sequence[FileEntry],
        removed: Callable[[FileEntry], bool] = lambda _entry: False,
        summary: Mapping[str, str] | None = None,
        parts: Parts | None = None,
    ) -> Snapshot:
        """A snapshot made for this state, as Iceberg makes it: manifests of which files leave are written anew.

        `parts`: of an update that is made more than once; it keeps what it has written.
        """
        parts = parts or Parts()
        self.begin(parts)
        before, number = base.newest, base.next_number
        kept = before.manifests if before else ()
        data = [self._filtered(each, removed, parts) for each in kept if each.is_data]
        gone = {
            entry.path
            for each in data
            if each.added_by == parts.snapshot_id
            for entry in each.entries
            if not entry.is_live
        }
        numbers = [entry.data_sequence_number for each in data for entry in each.live]
        least = min([*numbers, base.last_number])

        def leaves(entry: FileEntry) -> bool:
            """Iceberg drops deletes older than all data files that it sees, and vectors of files that leave."""
            is_old = operation != "append" and 0 < entry.data_sequence_number < least
            return removed(entry) or is_old or (entry.is_deletion_vector and entry.applies_to in gone)

        deletes = [self._filtered(each, leaves, parts) for each in kept if not each.is_data]
        manifests = [each for each in (*data, *deletes) if each.entries]
        groups: dict[tuple[bool, int], list[FileEntry]] = {}
        for entry in added:
            groups.setdefault((entry.content is Content.DATA, entry.key.spec_id), []).append(entry)
        for (is_data, spec_id), entries in groups.items():
            path = parts.own.get((is_data, spec_id)) or self.metadata_file("own")
            parts.own[is_data, spec_id] = path
            written = tuple(
                each._replace(
                    manifest_path=path,
                    snapshot_id=parts.snapshot_id,
                    data_sequence_number=each.data_sequence_number or number,
                )
                for each in entries
            )
            manifests.append(Manifest(path, is_data, spec_id, number, parts.snapshot_id, written))
        return self.listed(base, operation, manifests, summary or {}, parts)

    def listed(
        self, base: State, operation: str, manifests: Sequence[Manifest], summary: Mapping[str, str], parts: Parts
    ) -> Snapshot:
        """The snapshot for this state that lists these manifests."""
        number = base.next_number
        parts.written |= {each.path for each in manifests if each.added_by == parts.snapshot_id}
        if base.format_version >= FIRST_WITH_VECTORS:
            manifests = [each.with_ids for each in manifests]
        found = Snapshot(
            parts.snapshot_id,
            base.head,
            number,
            operation,
            dict(summary),
            self.metadata_file("list"),
            tuple(replace(each, number=number) if each.added_by == parts.snapshot_id else each for each in manifests),
            self.plan.now,
            base.format_version,
        )
        return replace(found, summary={**found.summary, **_counts(found)})

    def merged(self, manifests: Sequence[Manifest], parts: Parts) -> list[Manifest]:
        """One manifest in the place of those of a kind, with the live files as they are."""
        self.begin(parts)
        kinds: dict[tuple[bool, int], list[FileEntry]] = {}
        for each in manifests:
            kinds.setdefault((each.is_data, each.spec_id), []).extend(each.live)
        found = []
        for (is_data, spec_id), entries in kinds.items():
            path = self.metadata_file("merged")
            kept = tuple(each._replace(manifest_path=path, status=Status.EXISTING) for each in entries)
            found.append(Manifest(path, is_data, spec_id, 0, parts.snapshot_id, kept))
        return found

    def begin(self, parts: Parts) -> None:
        """Give an update its snapshot id."""
        if not parts.snapshot_id:
            self.made += 1
            parts.snapshot_id = self.made

    def _filtered(self, manifest: Manifest, leaves: Callable[[FileEntry], bool], parts: Parts) -> Manifest:
        known = parts.filtered.get(manifest.path)
        if known is not None:
            return known
        if not any(map(leaves, manifest.live)):
            return manifest
        path = self.metadata_file("filtered")
        entries = tuple(
            each._replace(
                manifest_path=path,
                status=Status.DELETED if leaves(each) else Status.EXISTING,
                snapshot_id=parts.snapshot_id if leaves(each) else each.snapshot_id,
            )
            for each in manifest.live
        )
        found = replace(manifest, path=path, number=0, added_by=parts.snapshot_id, entries=entries)
        parts.filtered[manifest.path] = found
        return found

    def metadata_file(self, what: str) -> str:
        return self.new_file(f"metadata/{what}")

    # --- the catalog --------------------------------------------------------------------------------------------------

    def arrives(self, request: Request) -> bool:
        """The catalog looks at a request; whether it commits it."""
        snapshot, state = request.snapshot, self.state
        if self.kind == "location":
            if request.base != state.version:
                return False
        elif snapshot.parent != state.head:
            base = self._taken_back(snapshot) if self.kind == "polaris" else None
            if base is None:
                return False
            self.left |= state.snapshots.keys() - base.snapshots.keys()
            state = base
        if snapshot.id in state.snapshots or (state.format_version > 1 and snapshot.number <= state.last_number):
            return False
        if snapshot.format_version < FIRST_WITH_VECTORS <= state.format_version:
            return False  # Iceberg: "Cannot add a snapshot: first-row-id is null"
        before = self.rows(state.newest)
        number = max(snapshot.number, state.last_number)
        self.become(
            replace(state, snapshots={**state.snapshots, snapshot.id: snapshot}, head=snapshot.id, last_number=number)
        )
        self._check(request, before)
        return True

    def _check(self, request: Request, before: Counter[Row]) -> None:
        snapshot = request.snapshot
        missing = sorted(path for path in snapshot.files if path not in self.store.files)
        self.landed["ours" if request.ours else "theirs"] += 1
        if missing:
            self.violated(f"snapshot {snapshot.id} landed, and {missing} are not there")
            return
        expected, found = request.expect(before), self.rows(snapshot)
        if found != expected:
            lost, come = expected - found, found - expected
            self.violated(f"after snapshot {snapshot.id} rows {dict(lost)} are lost, {dict(come)} came")
        if request.ours and snapshot.operation != REPLACE:
            self.violated(f"snapshot {snapshot.id} is ours and a {snapshot.operation}")
        vectors = Counter(each.applies_to for each in snapshot.live if each.is_deletion_vector)
        if max(vectors.values(), default=0) > 1:
            self.violated(f"in snapshot {snapshot.id} a data file has several vectors")
        files = (each for each in snapshot.changed(Status.ADDED) if each.content is Content.POSITION_DELETES)
        if request.ours and self.state.format_version >= FIRST_WITH_VECTORS:
            self._check_ids(snapshot)
        if self.state.format_version >= FIRST_WITH_VECTORS and not all(each.is_deletion_vector for each in files):
            self.violated(f"snapshot {snapshot.id} adds position delete files to a table of version 3")

    def _check_ids(self, snapshot: Snapshot) -> None:
        added = (each.path for each in snapshot.changed(Status.ADDED) if each.content is Content.DATA)
        without = sorted(path for path in added if path not in self.with_ids)
        if without:
            self.violated(f"snapshot {snapshot.id} adds {without} without the ids of their rows")

    def check_failed(self, run_id: str, told: Collection[int]) -> None:
        """A run has failed: what it has committed was told, unless it has left the branch since."""
        for each in self.state.history():
            lost = each.id in self.at_once and each.id not in self.left and each.id not in told
            if lost and each.summary.get(RUN_ID) == run_id:
                self.violated(f"run {run_id} has failed, although its snapshot {each.id} landed")

    def rows(self, snapshot: Snapshot | None) -> Counter[Row]:
        """The rows of a snapshot, as a reader finds them."""
        if snapshot is None:
            return Counter()
        found = self.rows_by_list.get(snapshot.manifest_list)
        if found is None:
            found = self.rows_by_list[snapshot.manifest_list] = visible(snapshot.live, self.store.files)
        return found

    def _taken_back(self, snapshot: Snapshot) -> State | None:
        """Polaris: the table without the rewrites after the snapshot's parent, if only such have followed it."""
        state, number = self.state, self.state.last_number
        gone = set[int]()
        for each in state.history():
            if each.id == snapshot.parent:
                left = {name: kept for name, kept in state.snapshots.items() if name not in gone}
                return replace(state, snapshots=left, head=each.id, last_number=each.number)
            if each.number != number or not each.may_be_taken_back:
                return None
            gone.add(each.id)
            number -= 1
        return None

    def become(self, state: State) -> None:
        if state.head != self.state.head and state.head in self.state.snapshots:  # it goes back
            self.left |= {each.id for each in self.state.history()} - {each.id for each in state.history()}
        self.state = replace(state, version=self.state.version + 1, updated=self.plan.now)

    # --- others -------------------------------------------------------------------------------------------------------

    def roll_back(self, to: int) -> None:
        """Somebody makes an older snapshot the head."""
        self.become(replace(self.state, head=to))

    def upgrade(self) -> None:
        """Somebody upgrades the table to the next format version."""
        self.become(replace(self.state, format_version=self.state.format_version + 1))

    def branch(self, name: str, head: int | None) -> None:
        """Somebody makes, moves or drops a branch beside main."""
        left = {each: at for each, at in self.state.branches.items() if each != name}
        self.become(replace(self.state, branches=left if head is None else {**left, name: head}))

    def expire(self, keep: int, since: float) -> None:
        """Iceberg's expiry: the newest snapshots of the branch stay, and those since a time; what only the others have
        is deleted.
        """
        before = self.state
        kept = {each.id: each for each in before.history()[:keep]}
        kept |= {each.id: each for each in before.snapshots.values() if each.timestamp >= since}
        for head in before.branches.values():
            kept |= {each.id: each for each in before.history(head)}
        self.become(replace(before, snapshots=kept))
        used = frozenset[str]().union(*(each.files for each in kept.values()))
        for each in before.snapshots.values():
            for path in each.files - used:
                self.store.files.pop(path, None)

    def tell(self, what: str) -> None:
        process = self.plan.process
        self.story.append(f"{self.plan.now - 1_900_000_000:8.1f} {process.name if process else '-':9} {what}")

    def rows_of(self, entry: FileEntry) -> tuple[Row, ...]:
        return data_rows(self.store.files[entry.path])


@dataclass
class Parts:
    """What an update of Iceberg keeps for all attempts: its snapshot id, and the manifests that it has written."""

    snapshot_id: int = 0
    own: dict[tuple[bool, int], str] = field(default_factory=dict)
    filtered: dict[str, Manifest] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)


def _counts(snapshot: Snapshot) -> dict[str, str]:
    added, removed = snapshot.changed(Status.ADDED), snapshot.changed(Status.DELETED)
    data_in = [each for each in added if each.content is Content.DATA]
    data_out = [each for each in removed if each.content is Content.DATA]
    positions = sum(each.records for each in added if each.content is Content.POSITION_DELETES)
    return {
        "added-data-files": str(len(data_in)),
        "deleted-data-files": str(len(data_out)),
        "added-delete-files": str(len(added) - len(data_in)),
        "removed-delete-files": str(len(removed) - len(data_out)),
        "added-position-deletes": str(positions),
        "total-data-files": str(len(snapshot.data)),
    }
