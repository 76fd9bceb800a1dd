"""What others do to the table: writers of every kind, rollbacks, expiries, branches, another compactor.

Each commit knows the rows that a serial database would have after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from pyroaring import BitMap64

from compactor.commit.history import ENGINES, REPLACE
from compactor.iceberg.manifest_entries import Content, FileEntry
from compactor.partitions import PartitionKey
from compactor.planning.unpublished import ABANDONED, BEGINS
from compactor.rewrite.deletes.written_deletes import vector_file
from compactor.runs.manifests import ENGINE as MERGED
from tests.simulator.rows import Row, data_rows, deleted_in, deleted_keys, key_bytes, position_bytes
from tests.simulator.world import Request, Snapshot, State, World

KEYS: Final = 4
GLOBAL: Final = PartitionKey(1, "[]")
KEY_FIELD: Final = 2
EXPIRES_FROM: Final = 6
VECTORS_FROM: Final = 3
SWARM: Final = (
    "delete",
    "upsert",
    "erase",
    "twice_in_one",
    "copy_on_write",
    "compact",
    "convert",
    "append_again",
    "delete_again",
    "begin",
    "upgrade",
    "publish",
    "roll_back",
    "expire",
)
"""Each history has a liking for some of these, and never does others: so some happen often together."""
PREPARES_SECONDS: Final = 5.0


@dataclass
class Writers:
    """Everybody else. `mixed`: the partition spec changes, so that equality deletes are global."""

    world: World
    mixed: bool
    numbers: int = 0
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chance = self.world.chance
        profile = self.world.profile
        self.partitions = self.chance.choice(profile.partitions)
        self.liked = {name: self.chance.choice((0.0, 0.0, 1.0, 4.0)) for name in SWARM} | dict(profile.likes)
        self.under_way: Request | None = None
        self.branched = (0, 0.0, 0.0)

    def partition_of(self, number: int) -> PartitionKey:
        """The partition of a row, by its number."""
        return PartitionKey(0, f"[{number % self.partitions}]")

    # --- commits ------------------------------------------------------------------------------------------------------

    def request(
        self,
        operation: str,
        added: Sequence[FileEntry],
        removed: Iterable[FileEntry],
        expect: Callable[[Counter[Row]], Counter[Row]],
    ) -> Request:
        """A commit, made for the head."""
        state, leave = self.world.state, {each.identity for each in removed}
        made = self.world.snapshot(state, operation, added, lambda entry: entry.identity in leave)
        return Request(made, state.version, expect)

    def send(self, what: str, request: Request) -> bool:
        landed = self.world.arrives(request)
        self.done[what] += landed
        self.world.tell(f"{what} {request.snapshot.name}{'' if landed else ' is refused'}")
        return landed

    def new_rows(self, count: int, partition: int | None = None) -> list[Row]:
        rows = []
        while len(rows) < count:
            self.numbers += 1
            if partition is None or self.numbers % self.partitions == partition:
                rows.append((self.numbers, self.chance.randrange(KEYS)))
        return rows

    def files_of(self, rows: Iterable[Row]) -> list[FileEntry]:
        """Data files with these rows, one for each partition."""
        by_key: dict[PartitionKey, list[Row]] = {}
        unpartitioned = self.mixed and self.chance.random() < 0.3
        for row in rows:
            by_key.setdefault(GLOBAL if unpartitioned else self.partition_of(row[0]), []).append(row)
        return [self.world.data_file(found, key) for key, found in by_key.items()]

    def append(self) -> Request:
        rows = self.new_rows(self.chance.randint(1, 4), self.chance.choice((None, *range(self.partitions))))
        return self.request("append", self.files_of(rows), (), lambda before: before + Counter(rows))

    def delete(self) -> Request | None:
        """Some rows of one or two files, by position."""
        head = self.world.state.newest
        visible = {path: rows for path, rows in self._visible(self.world.state).items() if rows}
        if head is None or not visible:
            return None
        paths = self.chance.sample(sorted(visible), min(len(visible), self.chance.choice((1, 1, 2))))
        gone = {
            path: self.chance.sample(sorted(visible[path]), self.chance.randint(1, len(visible[path])))
            for path in paths
        }
        rows = Counter(visible[path][place] for path, places in gone.items() for place in places)
        if self.world.state.format_version >= VECTORS_FROM:
            added, removed = self._vectors(gone)
        else:
            added, removed = self._position_files(gone), []
        return self.request("overwrite", added, removed, lambda before: before - rows)

    def _visible(self, state: State) -> dict[str, dict[int, Row]]:
        """The rows of each data file that readers see, by place."""
        head, files = state.newest, self.world.store.files
        if head is None:
            return {}
        deletes = self._deletes(head)
        found: dict[str, dict[int, Row]] = {}
        for path, entry in head.data.items():
            if path in head.twice:
                continue  # nobody knows which of the two is meant
            deleted = deleted_in(entry, deletes, files)
            found[path] = {place: row for place, row in enumerate(data_rows(files[path])) if place not in deleted}
        return found

    def _deletes(self, head: Snapshot) -> list[FileEntry]:
        return [each for each in head.live if each.content is not Content.DATA]

    def _vectors(self, gone: dict[str, list[int]]) -> tuple[list[FileEntry], list[FileEntry]]:
        """Vectors that take the place of those that the files have; one Puffin file holds all."""
        world = self.world
        head = world.state.newest
        assert head is not None
        old = [each for each in head.live if each.is_deletion_vector and each.applies_to in gone]
        positions = {path: BitMap64(places) for path, places in gone.items()}
        for path in gone:  # also those of position delete files, from before an upgrade
            deleted = deleted_in(head.data[path], self._deletes(head), world.store.files)
            positions[path] |= BitMap64(place for place, by_position in deleted.items() if by_position)
        made = vector_file(positions)
        path = world.new_file("data/w-vectors", made.data, ".puffin")
        added = [
            world.entry(
                Content.POSITION_DELETES,
                path,
                "puffin",
                head.data[each].key,
                len(found),
                applies_to=each,
                blob=made.blobs[each],
            )
            for each, found in positions.items()
        ]
        return added, old

    def _position_files(self, gone: dict[str, list[int]]) -> list[FileEntry]:
        """One file for each data file, or one for those of a partition, which names none in its entry."""
        world, by_key = self.world, dict[PartitionKey, dict[str, list[int]]]()
        head = world.state.newest
        assert head is not None
        by_file = self.chance.random() < 0.7
        for path, places in gone.items():
            by_key.setdefault(head.data[path].key, {})[path] = places
        groups = [(key, [path]) for key, files in by_key.items() for path in files]
        if not by_file:
            groups = [(key, list(files)) for key, files in by_key.items()]
        added = []
        for key, paths in groups:
            positions = tuple((path, place) for path in paths for place in gone[path])
            made = world.new_file("data/w-deletes", position_bytes(positions), ".parquet")
            names = paths[0] if by_file else None
            added.append(world.entry(Content.POSITION_DELETES, made, "parquet", key, len(positions), applies_to=names))
        return added

    def upsert(self) -> Request:
        """Keys are deleted by value, and rows with these keys are added."""
        keys = frozenset(self.chance.sample(range(KEYS), self.chance.randint(1, 2)))
        partition = None if self.mixed else self.chance.randrange(self.partitions)
        rows = [
            (number, self.chance.choice(sorted(keys)))
            for number, _ in self.new_rows(self.chance.randint(0, 2), partition)
        ]
        key = GLOBAL if partition is None else self.partition_of(partition)
        path = self.world.new_file("data/w-keys", key_bytes(keys), ".parquet")
        delete = self.world.entry(Content.EQUALITY_DELETES, path, "parquet", key, len(keys), equality_ids=(KEY_FIELD,))

        without = partial(_without, keys, partition, self.partitions)
        files = [*self.files_of(rows), delete]
        return self.request("overwrite", files, (), lambda before: without(before) + Counter(rows))

    def erase(self) -> Request:
        """Keys are deleted by value, and nothing is added."""
        keys = frozenset(self.chance.sample(range(KEYS), 2))
        partition = None if self.mixed else self.chance.randrange(self.partitions)
        key = GLOBAL if partition is None else self.partition_of(partition)
        path = self.world.new_file("data/w-keys", key_bytes(keys), ".parquet")
        delete = self.world.entry(Content.EQUALITY_DELETES, path, "parquet", key, len(keys), equality_ids=(KEY_FIELD,))
        return self.request("overwrite", [delete], (), partial(_without, keys, partition, self.partitions))

    def twice_in_one(self) -> Request | None:
        """A row that the same commit writes and deletes, by a position delete that names no file in its entry."""
        if self.world.state.format_version >= VECTORS_FROM:
            return None
        rows = self.new_rows(2, self.chance.randrange(self.partitions))
        data = self.world.data_file(rows, self.partition_of(rows[0][0]))
        path = self.world.new_file("data/w-deletes", position_bytes(((data.path, 0),)), ".parquet")
        delete = self.world.entry(Content.POSITION_DELETES, path, "parquet", data.key, 1)
        return self.request("overwrite", [data, delete], (), lambda before: before + Counter(rows[1:]))

    def copy_on_write(self) -> Request | None:
        """A file is replaced by one that lacks some of its rows."""
        head, visible = self.world.state.newest, self._visible(self.world.state)
        if head is None or not visible:
            return None
        path = self.chance.choice(sorted(visible))
        rows = list(visible[path].values())
        kept = [row for row in rows if self.chance.random() < 0.7]
        gone = Counter(rows) - Counter(kept)
        added = [self.world.data_file(kept, head.data[path].key)] if kept else []
        return self.request("overwrite", added, [head.data[path]], lambda before: before - gone)

    def append_again(self) -> Request | None:
        """A file that is in the table is committed once more, as Flink may after a restart."""
        head, visible = self.world.state.newest, self._visible(self.world.state)
        whole = [path for path, rows in visible.items() if head and len(rows) == head.data[path].records]
        if head is None or not whole:
            return None
        entry = head.data[self.chance.choice(whole)]
        rows = Counter(self.world.rows_of(entry))
        return self.request("append", [entry._replace(data_sequence_number=0)], (), lambda before: before + rows)

    def delete_again(self) -> Request | None:
        """A delete file that is in the table is committed once more, as Flink may after a restart."""
        head = self.world.state.newest
        found = [each for each in self._deletes(head) if not each.is_deletion_vector] if head and not head.twice else []
        if not found or self.world.state.format_version >= VECTORS_FROM:
            return None
        entry = self.chance.choice(found)
        again = entry._replace(data_sequence_number=0)
        if entry.content is Content.POSITION_DELETES:
            return self.request("overwrite", [again], (), lambda before: before)
        partition = None if entry.key == GLOBAL else entry.key.tuple_json[0]
        keys = deleted_keys(self.world.store.files[entry.path])
        return self.request("overwrite", [again], (), partial(_without, keys, partition, self.partitions))

    def convert(self) -> Request | None:
        """Another program puts positions in the place of an equality delete."""
        head = self.world.state.newest
        found = [each for each in self._deletes(head) if each.content is Content.EQUALITY_DELETES] if head else []
        times = Counter(each.path for each in found)
        found = [each for each in found if times[each.path] == 1]  # a commit removes both
        if head is None or not found or head.twice:
            return None
        delete = self.chance.choice(found)
        others = [each for each in self._deletes(head) if each.content is Content.POSITION_DELETES]
        gone = {}
        for path, entry in head.data.items():
            by_value = deleted_in(entry, [*others, delete], self.world.store.files)
            places = [place for place, by_position in by_value.items() if not by_position]
            if places:
                gone[path] = places
        is_new = self.world.state.format_version >= VECTORS_FROM
        added, removed = self._vectors(gone) if is_new and gone else (self._position_files(gone), [])
        return self.request(REPLACE, added, [*removed, delete], lambda before: before)

    def compact(self) -> Request | None:
        """Another compactor merges two files of a partition, with the newest sequence number."""
        state, visible = self.world.state, self._visible(self.world.state)
        by_key: dict[PartitionKey, list[FileEntry]] = {}
        for entry in state.newest.data.values() if state.newest else ():
            if entry.path in visible:
                by_key.setdefault(entry.key, []).append(entry)
        found = [files for files in by_key.values() if len(files) > 1]
        if not found:
            return None
        files = self.chance.sample(self.chance.choice(found), 2)
        rows = [row for each in files for row in visible[each.path].values()]
        added = (
            [self.world.data_file(rows, files[0].key)._replace(data_sequence_number=state.last_number)] if rows else []
        )
        return self.request(REPLACE, added, files, lambda before: before)

    # --- chance -------------------------------------------------------------------------------------------------------

    def act(self, *, gently: bool = False) -> None:
        """One of them does something. `gently`: only what a table has without an end: commits and expiries."""
        world = self.world
        deletes = 0 if world.state.format_version == 1 else 1
        weights = {
            self.append: 3,
            self.delete: 5 * deletes,
            self.upsert: 3 * deletes,
            self.erase: 2 * deletes,
            self.twice_in_one: deletes,
            self.copy_on_write: 2,
            self.compact: 0.3 * (not gently) * deletes,
            self.convert: 0.7 * (not gently) * deletes,
            self.append_again: 0.2 * (not gently),
            self.delete_again: 0.7 * deletes * (not gently),
            self.begin: 2.0 * deletes * (not gently),
            self.upgrade: 0.15 * (not gently) * deletes,
            self.publish: 0.5 * (not gently),
            self.roll_back: 1.5 * (not gently),
            self.expire: 2,
        }
        liked = [weight * self.liked.get(act.__name__, 1.0) for act, weight in weights.items()]
        chosen = self.chance.choices(list(weights), liked)[0]
        request = chosen()
        if request is not None:
            self.send(chosen.__name__, request)

    def begin(self) -> None:
        """A writer that takes its time: it has read the table, and commits later."""
        self.finish()
        chosen = self.chance.choice((self.append, self.delete, self.copy_on_write))
        self.under_way = chosen()
        if self.under_way is not None:
            self.world.tell(f"{chosen.__name__} {self.under_way.snapshot.name} is under way")

    def finish(self) -> None:
        """What is under way is committed. Only a `replace` may have come before it, and none of ours on Polaris."""
        request, self.under_way = self.under_way, None
        if request is None:
            return
        state = self.world.state
        before = next((n for n, each in enumerate(state.history()) if each.id == request.snapshot.parent), None)
        between = [] if before is None else state.history()[:before]
        ours = bool(between) and all(each.summary.get(ENGINES, MERGED) != MERGED for each in between)
        if self.send("the slow commit", request) or not ours:
            return
        self.done["writers that lost to us"] += 1
        if self.world.kind == "polaris" and state.format_version < VECTORS_FROM:
            self.world.violated(
                f"the commit of {request.snapshot.id} failed because of ours, which Polaris did not take back"
            )

    def upgrade(self) -> None:
        if self.world.state.format_version == VECTORS_FROM - 1:
            self.finish()
            self.world.upgrade()
            self.world.tell("upgraded to version 3")

    def publish(self) -> None:
        """A branch of main's head is made, gets a commit, and is published, unless main has moved."""
        world, state = self.world, self.world.state
        if "audit" not in state.branches:
            now, begun = world.plan.now, state.newest.timestamp if state.newest else 0.0
            head, until = state.head, min(now + BEGINS, begun + ABANDONED)
            if self.chance.random() < 0.7:
                head, until = self.commit_to("audit"), now + ABANDONED
            self.branched = (state.head, now, until)
            world.branch("audit", head)
            world.tell(f"branch audit at {head}, from {state.head} of main")
            return
        at, since, until = self.branched
        published = state.head == at
        if published:
            world.become(replace(state, head=state.branches["audit"]))
        world.branch("audit", None)
        world.tell(f"branch audit is {'published' if published else 'dropped'}")
        first = next((each for each in state.history() if each.parent == at), None)
        run_id = first.summary.get("firnline.run-id", "") if first else ""
        if since + PREPARES_SECONDS < world.planned.get(run_id, 0.0) < until:
            world.violated(f"branch audit of {at} cannot be published: a run was planned that moved main")

    def commit_to(self, branch: str) -> int:
        """A commit to a branch, which begins at main's head; returns its snapshot."""
        world, state = self.world, self.world.state
        base = replace(state, head=state.branches.get(branch, state.head))
        made = world.snapshot(base, "append", self.files_of(self.new_rows(1)))
        number = max(made.number, state.last_number)
        world.become(replace(state, snapshots={**state.snapshots, made.id: made}, last_number=number))
        world.branch(branch, made.id)
        return made.id

    def roll_back(self) -> None:
        """To any snapshot that the table lists."""
        to = self.chance.choice(sorted(self.world.state.snapshots))
        self.world.roll_back(to)
        self.done["roll back"] += 1
        self.world.tell(f"back to {to}")

    def expire(self) -> None:
        """Of the old snapshots; all that are younger than a few minutes stay."""
        state = self.world.state
        # With one snapshot left, the table looks like one whose catalog hides snapshots: outputs stay for good.
        if len(state.snapshots) <= EXPIRES_FROM or len(state.history()) == 1:
            return
        self.world.expire(self.chance.randint(2, 4), self.world.plan.now - self.chance.choice((30.0, 300.0)))
        self.done["expire"] += 1
        self.world.tell(f"expired; {sorted(self.world.state.snapshots)} are left")


def _without(keys: frozenset[int], partition: object, partitions: int, before: Counter[Row]) -> Counter[Row]:
    """The rows without those that have one of the keys, in one partition (None: in all)."""
    kept = (row for row in before if row[1] not in keys or partition not in (None, row[0] % partitions))
    return Counter({row: before[row] for row in kept})
