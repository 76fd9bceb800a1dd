"""One table in a catalog that answers as it likes, and its files. What happens by chance comes from a seed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final

from compactor.commit.history import REPLACE
from compactor.iceberg.other_compactors import POLARIS_ROLLBACK

LISTED_AT_MOST: Final = 6


@dataclass(frozen=True)
class Snapshot:
    """`manifests`: content files by the path of the manifest that lists them; `added_by`: who wrote each manifest."""

    id: int
    parent: int
    number: int
    operation: str
    summary: Mapping[str, str]
    manifest_list: str
    manifests: Mapping[str, frozenset[str]]
    added_by: Mapping[str, int]

    @property
    def name(self) -> str:
        """In stories: Iceberg gives all attempts of an update one id."""
        return f"{self.id} ({self.manifest_list})"

    @property
    def files(self) -> frozenset[str]:
        """All live content files."""
        return frozenset().union(*self.manifests.values())

    @property
    def may_be_taken_back(self) -> bool:
        """Whether Apache Polaris may take it back for a commit that was sent for the snapshot before it."""
        return self.operation == REPLACE and POLARIS_ROLLBACK in self.summary


@dataclass(frozen=True)
class State:
    """The table's metadata. `version`: which metadata file this is."""

    version: int
    snapshots: Mapping[int, Snapshot]
    head: int
    last_number: int

    def history(self, of: int | None = None) -> list[Snapshot]:
        """From a snapshot (default: the head) on, the newest first."""
        found, at = [], self.head if of is None else of
        while at in self.snapshots:
            found.append(self.snapshots[at])
            at = found[-1].parent
        return found


@dataclass
class Request:
    """A commit on its way; `copies`: how often it may still arrive."""

    snapshot: Snapshot
    base: int
    copies: int = 1


@dataclass
class World:
    """The table, its files, and the requests that have not arrived yet.

    `kind`: `location` compares metadata locations, `rest` the head's id, `polaris` does that and takes rewrites back.
    """

    seed: int
    folder: Path
    kind: str
    format_version: int
    state: State = field(init=False)
    metadata_files: set[str] = field(default_factory=set)
    pending: list[Request] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    made: int = 0
    quiet: bool = False
    run_since: int | None = None

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)
        (self.folder / "metadata").mkdir(parents=True)
        self.state = State(0, {}, 0, 0)
        for _ in range(self.chance.randint(2, 3)):
            self.write()

    # --- files --------------------------------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        """Writers' data files are only known by name; all others are real."""
        return path.startswith("w:") or os.path.exists(path)  # noqa: PTH110 - called thousands of times

    def missing(self) -> list[str]:
        """What a retained snapshot needs and is not there."""
        needed: set[str] = set()
        for snapshot in self.state.snapshots.values():
            needed |= {snapshot.manifest_list, *snapshot.manifests, *snapshot.files}
        return sorted(path for path in needed if not self.exists(path))

    def new_name(self, what: str) -> str:
        self.made += 1
        return f"{what}{self.made}"

    def metadata_file(self, what: str) -> str:
        path = self.new_name(f"{self.folder}/metadata/{what}-")
        os.close(os.open(path, os.O_CREAT))
        self.metadata_files.add(path)
        return path

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def snapshot(
        self,
        operation: str,
        added: frozenset[str],
        removed: frozenset[str],
        summary: Mapping[str, str] = {},
        own: str | None = None,
        snapshot_id: int | None = None,
    ) -> Snapshot:
        """Made for the head: one new manifest of the added files (`own`: it is there already), others without those
        that leave. `snapshot_id`: of the attempt before.
        """
        parent = self.state.snapshots.get(self.state.head)
        number = self.state.last_number + 1 if self.format_version > 1 else 0
        self.made += 1
        snapshot_id, manifests, added_by = snapshot_id or self.made, dict[str, frozenset[str]](), dict[str, int]()
        for path, files in parent.manifests.items() if parent else ():
            left = files - removed
            kept = path if left == files else self.metadata_file("filtered")
            if left:
                manifests[kept], added_by[kept] = left, parent.added_by[path] if kept == path else snapshot_id  # type: ignore[union-attr]
        if added:
            path = own or self.metadata_file("added")
            manifests[path], added_by[path] = added, snapshot_id
        made_list = self.metadata_file("list")
        parent_id = parent.id if parent else 0
        return Snapshot(snapshot_id, parent_id, number, operation, summary, made_list, manifests, added_by)

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
            state = base
        if snapshot.id in state.snapshots or (self.format_version > 1 and snapshot.number <= state.last_number):
            return False
        number = max(snapshot.number, state.last_number)
        self._is(
            replace(state, snapshots={**state.snapshots, snapshot.id: snapshot}, head=snapshot.id, last_number=number)
        )
        return True

    def _taken_back(self, snapshot: Snapshot) -> State | None:
        """Polaris: the table without the rewrites after the snapshot's parent, if only such have followed it."""
        state, number = self.state, self.state.last_number
        history, gone = state.history(), set[int]()
        for each in history:
            if each.id == snapshot.parent:
                left = {name: kept for name, kept in state.snapshots.items() if name not in gone}
                return replace(state, snapshots=left, head=each.id, last_number=each.number)
            if each.number != number or not each.may_be_taken_back:
                return None
            gone.add(each.id)
            number -= 1
        return None

    def _is(self, state: State) -> None:
        self.state = replace(state, version=self.state.version + 1)

    # --- others -------------------------------------------------------------------------------------------------------

    def write(self, remove: str | None = None) -> None:
        """A writer's commit: it adds a file, and may remove one."""
        removed = frozenset({remove} if remove else ())
        snapshot = self.snapshot("overwrite" if remove else "append", frozenset({self.new_name("w:")}), removed)
        self.arrives(Request(snapshot, self.state.version))

    def roll_back(self, to: int) -> None:
        """Somebody makes an older snapshot the head."""
        self._is(replace(self.state, head=to))

    def expire(self, keep: int) -> None:
        """Iceberg's expiry: the newest snapshots of the branch stay; what only the others have is deleted.

        Days old: none that was made since a run began that is under way.
        """
        before = self.state
        since = self.made if self.run_since is None else self.run_since
        kept = {each.id: each for each in before.history()[:keep]}
        kept |= {each.id: each for each in before.snapshots.values() if each.id > since}
        self._is(replace(before, snapshots=kept))
        used = {path for each in kept.values() for path in (each.manifest_list, *each.manifests, *each.files)}
        for each in before.snapshots.values():
            for path in {each.manifest_list, *each.manifests, *each.files} - used:
                if path.startswith("/"):
                    Path(path).unlink(missing_ok=True)

    def something_happens(self) -> None:
        """By chance: a request arrives, or somebody writes, rolls back or expires. Nothing if it is `quiet`."""
        if self.quiet:
            return
        chance, state = self.chance, self.state
        what = chance.choices(["nothing", "arrives", "write", "remove", "back", "expire"], [50, 22, 8, 3, 10, 4])[0]
        if what == "arrives" and self.pending:
            request = chance.choice(self.pending)
            landed = self.arrives(request)
            request.copies -= 1
            if not request.copies:
                self.pending.remove(request)
            self.tell(f"{request.snapshot.name} arrives: {'it lands' if landed else 'refused'}")
        elif what == "write":
            self.write()
            self.tell(f"a writer commits {self.state.head}")
        elif what == "remove":
            self.write(chance.choice(sorted(state.snapshots[state.head].files)))
            self.tell(f"a writer removes a file in {self.state.head}")
        elif what == "back":
            to = chance.choice(sorted(state.snapshots))
            self.roll_back(to)
            self.tell(f"back to {to}")
        elif what == "expire" and len(state.snapshots) > LISTED_AT_MOST and len(state.history()) > 1:
            # With one snapshot left, the table looks like one whose catalog hides snapshots: outputs stay for good.
            self.expire(chance.randint(2, 4))
            self.tell(f"expired; {sorted(self.state.snapshots)} are left")

    def tell(self, what: str) -> None:
        self.story.append(what)
