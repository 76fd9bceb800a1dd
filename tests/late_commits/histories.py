"""One history: a run of firnline's own code that commits, fails, is stopped, paused or killed, and the sweeps after it.

After each step every retained snapshot must be readable. At the end, when writers have gone on, what no snapshot needs
must be gone.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from compactor.commit.in_flight import InFlightRecords, Record, new_run_id
from compactor.commit.replace import commit_replacements
from compactor.commit.search import listed_snapshot
from compactor.commit.sends import Sent
from compactor.commit.snapshots import CommitSummary, NewDeletes, Replacement
from compactor.commit.sweep import MOST_SETTLE_SECONDS, sweep
from compactor.errors import FirnlineError, ReplanError, StoppedError
from compactor.iceberg.tables import TableView
from compactor.lease.owner import Owner
from compactor.lease.right import CommitRight
from compactor.runs.output_record import OutputRecords
from compactor.runs.run_tools import RunTools
from compactor.runs.slots import SlotPool
from compactor.runs.supervisor import Switches
from compactor.table_names import TableName
from tests.late_commits.java import ScanTasks, Table
from tests.late_commits.world import World

NAME: Final = TableName("lake", ("db",), "t")
HERE: Final = replace(Owner.this_process(), started="1")
"""Of this machine, gone when the sweeps come."""
ELSEWHERE: Final = replace(Owner.this_process(), host="another.host")
LEASE_SECONDS: Final = 60.0
DAY_SECONDS: Final = 86_400.0


class KilledError(BaseException):
    """The process is gone; nothing that it would have done happens."""


class NotReadableError(AssertionError):
    """A retained snapshot needs what is not there."""


@dataclass(frozen=True)
class View(TableView):
    """The table as PyIceberg reads it. `made`: its snapshots, by id."""

    made: Any = None

    def manifests(self, snapshot: Snapshot | None = None) -> Any:
        assert snapshot is not None
        made = self.made[snapshot.snapshot_id]
        return tuple(
            SimpleNamespace(manifest_path=path, sequence_number=made.number, files=files)
            for path, files in made.manifests.items()
        )


class Cache:
    """Reads no manifest: the world knows what is in it."""

    def read(self, _table: TableView, manifests: list[Any]) -> list[list[Any]]:
        return [[SimpleNamespace(path=path) for path in manifest.files] for manifest in manifests]


@cache
def _empty(format_version: int) -> TableMetadata:
    return TableMetadataUtil.parse_obj(
        {
            "format-version": format_version,
            "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
            "location": "/",
            "last-sequence-number": 0,
            "last-updated-ms": 0,
            "last-column-id": 1,
            "schema": {"type": "struct", "schema-id": 0, "fields": []},
            "schemas": [{"type": "struct", "schema-id": 0, "fields": []}],
            "current-schema-id": 0,
            "partition-spec": [],
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
            "last-partition-id": 999,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
        }
    )


def view_of(world: World) -> View:
    """What a catalog answers now."""
    state = world.state
    listed = [
        Snapshot(
            snapshot_id=each.id,
            parent_snapshot_id=each.parent or None,
            sequence_number=each.number,
            timestamp_ms=0,
            manifest_list=each.manifest_list,
            summary=Summary(Operation(each.operation), **each.summary),
        )
        for each in state.snapshots.values()
    ]
    changed: dict[str, Any] = {
        "location": str(world.folder),
        "snapshots": listed,
        "current_snapshot_id": state.head,
        "refs": {"main": SnapshotRef(snapshot_id=state.head, snapshot_ref_type=SnapshotRefType.BRANCH)},
    }
    if world.format_version > 1:
        changed["last_sequence_number"] = state.last_number
    metadata = _empty(world.format_version).model_copy(update=changed)
    io: Any = SimpleNamespace(properties={})
    return View(NAME, metadata, f"v{state.version}", io, made=state.snapshots)


@dataclass
class History:
    """One run beside others, and what comes after it.

    `alive`: whether the run's process does anything; `busy`: it is under way; `end`: how it ended.
    """

    seed: int
    folder: Path
    now: float = 1_000_000.0
    alive: bool = True
    busy: bool = False
    end: str = ""
    missing: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    frozen: dict[Path, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        kind = ("rest", "rest", "polaris", "location")[self.seed % 4]
        self.world = World(self.seed, self.folder / "table", kind, 1 if self.seed % 5 == 0 else 2)
        self.chance = self.world.chance
        self.owner = self.chance.choice((HERE, ELSEWHERE))
        self.can_kill = self.chance.random() < 0.35
        self.started = self.now
        self.names = (NAME.catalog,)  # of catalogs

    # --- the catalog, as `Catalogs` -----------------------------------------------------------------------------------

    def load(self, _name: TableName, _ref: str = "main") -> View:
        self.meanwhile()
        return view_of(self.world)

    def is_polaris(self, _catalog: str) -> bool:
        return self.world.kind == "polaris"

    @property
    def story(self) -> str:
        """What has happened, a line each."""
        world = self.world
        return f" ({world.kind}, V{world.format_version})\n  " + "\n  ".join(world.story)

    # --- what happens meanwhile ---------------------------------------------------------------------------------------

    def meanwhile(self) -> None:
        """Between any two steps: others act, the process may be killed, or paused while another one sweeps."""
        if not self.alive:
            raise KilledError
        self.happens()
        if not self.busy:
            return
        if self.can_kill and self.chance.random() < 0.06:
            self.world.tell("killed")
            self.alive = False
            self.frozen = {path: path.read_bytes() for path in self._records()}
            raise KilledError
        if self.owner is ELSEWHERE and self.chance.random() < 0.03:
            self.world.tell("paused")
            self.busy = self.can_kill = False
            self.now += 2 * LEASE_SECONDS
            for _ in range(self.chance.randint(1, 4)):
                self.sweep()
                self.happens()
            self.busy = True
            self.world.tell("goes on")

    def happens(self) -> None:
        self.world.something_happens()
        self.check()

    def check(self) -> None:
        """Note it if a retained snapshot is not readable. No error: the code under test would catch it."""
        missing = self.world.missing()
        if missing and not self.missing:
            self.missing = missing
            self.world.tell(f"MISSING: {missing}")

    def sweep(self) -> None:
        """By another process, or the next one on this machine."""
        self.now += 15.0
        cache: Any = Cache()
        catalogs: Any = self
        removed = sweep(self._as_another(), catalogs, cache, now=self.now, grace_seconds=1800.0)
        self.world.tell(f"a sweep deletes {sum(removed.values())} files")
        self.check()

    def _as_another(self) -> InFlightRecords:
        return InFlightRecords(f"file://{self.folder}/in-flight", HERE, LEASE_SECONDS, lambda: self.now)

    def _records(self) -> list[Path]:
        return [path for path in (self.folder / "in-flight").glob("*") if path.is_file()]

    # --- the run ------------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Play the history.

        Raises:
            NotReadableError: a retained snapshot cannot be read.
            AssertionError: files were left behind.
        """
        self.run()
        self.afterwards()
        self.everything_settles()
        if self.missing:
            raise NotReadableError(f"seed {self.seed}: missing {self.missing}{self.story}")
        if self.left:
            raise AssertionError(f"seed {self.seed}: left behind {self.left}{self.story}")

    def run(self) -> None:
        """Rewrite two groups of files and commit them, until it is done, fails, is stopped or killed."""
        records = InFlightRecords(f"file://{self.folder}/in-flight", self.owner, LEASE_SECONDS, lambda: self.now)
        right = CommitRight(confirm=self.meanwhile)
        catalogs: Any = self
        cache: Any = Cache()
        session: Any = None
        tools = RunTools(session, catalogs, cache, records, SlotPool(1), LEASE_SECONDS, 60.0, right=right)
        outputs = OutputRecords(records, catalogs, cache, right)
        self.busy, self.world.run_since = True, self.world.made
        try:
            self._rewrite(tools, outputs)
            self.end = "committed"
        except FirnlineError as error:
            self.end = type(error).__name__
            self.world.tell(f"the run ends: {error}")
        except KilledError:
            self.end = "killed"
            shutil.rmtree(self.folder / "in-flight", ignore_errors=True)
            for path, content in self.frozen.items():
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)
        finally:
            self.alive, self.busy, self.world.run_since = True, False, None
        self.world.tell(f"the run is over: {self.end}")
        self.check()

    def _rewrite(self, tools: RunTools, outputs: OutputRecords) -> None:
        view = view_of(self.world)
        run_id = new_run_id(view, f"{self.seed:016x}")
        inputs = sorted(view_files(self.world))[:2]
        run_folder = self.world.folder / "data" / f"firnline-{run_id}"
        files = [str(self.world.folder / "data" / f"0000{number}-firnline-{run_id}.parquet") for number in range(2)]
        groups = list(zip(inputs, files, strict=False))
        with outputs.around(run_id, view, files, (str(run_folder),)) as record:
            run_folder.mkdir(parents=True)
            for _, output in groups:
                Path(output).write_bytes(b"")
                self.meanwhile()
            for race in (1, 2):
                try:
                    committed = self._send(tools, record, view, groups, run_folder / f"deletes-{race}")
                    break
                except ReplanError:  # plan again: the second group is left out
                    groups = [group for group in groups[:1] if group[0] in view_files(self.world)]
                    if race == 2 or not groups:
                        raise
            tools.records.note_committed(run_id, committed)
        rolls_back = self.world.kind == "polaris"
        if len(groups) < len(inputs):
            outputs.abandon(record, rolls_back=rolls_back)
        else:
            outputs.close(record, clean=True, rolls_back=rolls_back)

    def _send(
        self, tools: RunTools, record: Record, view: View, groups: list[tuple[str, str]], folder: Path
    ) -> list[str]:
        """Commit these groups, and maybe a delete file; returns what was committed."""
        deletes = []
        if self.world.format_version > 1 and self.chance.random() < 0.5:
            folder.mkdir()
            deletes = [str(folder / "deletes.parquet")]
            Path(deletes[0]).write_bytes(b"")
        new = NewDeletes(files=tuple({"file-path": path} for path in deletes), rows=len(deletes))
        stops = self.chance.random() < 0.2
        switches = Switches(enabled=lambda: True, stopping=lambda: stops and self.chance.random() < 0.3)

        def about_to_send(sending: Sent) -> None:
            self.meanwhile()
            tools.about_to_send(record, switches, sending, again=False)
            self.meanwhile()

        replacements = [Replacement(ScanTasks([before]), (after,), 1) for before, after in groups]
        summary = CommitSummary(record.run_id, rollback_on_conflict=self.world.kind == "polaris")
        if listed_snapshot(self.load(NAME), summary) is not None:  # as `commit_groups` does
            raise StoppedError("an earlier snapshot of the run was rolled back: it has the outputs")
        table = Table(self.world, view, self.meanwhile)
        commit_replacements(table, replacements, (), summary, about_to_send, self._sleep, new)
        return [*(after for _, after in groups), *deletes]

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()

    # --- afterwards ---------------------------------------------------------------------------------------------------

    def afterwards(self) -> None:
        """Sweeps, while requests still arrive and others go on."""
        for _ in range(self.chance.randint(3, 12)):
            self.now += self.chance.choice((1.0, 3600.0, DAY_SECONDS))
            if self.chance.random() < 0.5:
                self.sweep()
            self.happens()

    def everything_settles(self) -> None:
        """Nothing is under way any more, writers go on, and old snapshots expire: what no snapshot needs must go."""
        world = self.world
        while world.pending:
            request = world.pending.pop()
            landed = world.arrives(request)
            world.tell(f"{request.snapshot.id} arrives at last: {'it lands' if landed else 'refused'}")
            self.check()
        world.quiet = True
        for _ in range(12):
            self.now += MOST_SETTLE_SECONDS / 2
            self.sweep()
            world.write()
            world.expire(2)
            self.check()
        self.left = [record.run_id for record in self._as_another().all()]
        needed = {path for each in world.state.snapshots.values() for path in each.files}
        written = [path for path in (world.folder / "data").rglob("*") if path.is_file()]
        self.left += [str(path) for path in written if str(path) not in needed]


def view_files(world: World) -> frozenset[str]:
    """The writers' live files: those that a run may rewrite."""
    return frozenset(path for path in world.state.snapshots[world.state.head].files if path.startswith("w:"))
