"""Whether a branch or a staged snapshot waits to be published to main, by the table's metadata alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotLogEntry, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField

from compactor.iceberg.tables import TableView
from compactor.planning.unpublished import ABANDONED, BEGINS, LONGEST, unpublished
from tests.properties.table_history import NAME

NOW = 1_700_000_000.0
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
EMPTY = new_table_metadata(
    Schema(NestedField(1, "id", LongType(), required=False)),
    UNPARTITIONED_PARTITION_SPEC,
    UNSORTED_SORT_ORDER,
    "file:///nowhere",
    {"format-version": "2"},
)


@dataclass
class Scene:
    """A table whose main got three commits, the last one ten hours ago."""

    refs: dict[str, SnapshotRef] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)
    log: list[SnapshotLogEntry] = field(default_factory=list)
    updated: float = 0.0

    def __post_init__(self) -> None:
        for age in (12 * HOUR, 11 * HOUR, 10 * HOUR):
            self.commit(age)

    def commit(
        self, age: float, ref: str = "main", operation: Operation = Operation.APPEND, **properties: str
    ) -> Snapshot:
        """A commit to a branch so many seconds ago."""
        made = self.stage(age, operation, parent=self.refs[ref].snapshot_id if ref in self.refs else None, **properties)
        self.set(ref, made.snapshot_id, age)
        return made

    def stage(self, age: float, operation: Operation, *, parent: int | None, **properties: str) -> Snapshot:
        """A snapshot that no branch has."""
        number = len(self.snapshots) + 1
        made = Snapshot(
            snapshot_id=number,
            parent_snapshot_id=parent,
            sequence_number=number,
            timestamp_ms=int((NOW - age) * 1000),
            manifest_list="none",
            summary=Summary(operation, **{name.replace("_", "-"): value for name, value in properties.items()}),
        )
        self.snapshots.append(made)
        return made

    def set(self, ref: str, snapshot_id: int, age: float, kind: str = "branch") -> None:
        """Make a ref or move it."""
        self.refs[ref] = SnapshotRef(snapshot_id=snapshot_id, snapshot_ref_type=kind)  # type: ignore[arg-type]
        self.updated = NOW - age
        if ref == "main":
            self.log.append(SnapshotLogEntry(snapshot_id=snapshot_id, timestamp_ms=int(self.updated * 1000)))

    @property
    def head(self) -> int:
        return self.refs["main"].snapshot_id

    def waits(self, now: float = NOW, ref: str = "main") -> str | None:
        """What waits to be published."""
        changed: Mapping[str, Any] = {
            "snapshots": self.snapshots,
            "refs": self.refs,
            "current_snapshot_id": self.head,
            "snapshot_log": self.log,
            "last_updated_ms": int(self.updated * 1000),
        }
        view = TableView(NAME, EMPTY.model_copy(update=changed), "none", PyArrowFileIO(), ref)
        found = unpublished(view, now)
        return found and found.what


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_table_of_one_branch_waits_for_nothing(scene: Scene) -> None:
    assert scene.waits() is None
    scene.set("old", 2, 5 * MINUTE)
    scene.set("release", scene.head, 5 * MINUTE, kind="tag")
    assert scene.waits() is None


def test_a_branch_that_goes_on_from_main_waits_to_be_published(scene: Scene) -> None:
    scene.set("audit", scene.head, 40 * MINUTE)
    scene.commit(30 * MINUTE, "audit")
    scene.commit(20 * MINUTE, "audit", Operation.OVERWRITE)
    assert scene.waits() == "branch audit is not published to main"
    assert scene.waits(ref="audit") is None
    scene.set("main", scene.refs["audit"].snapshot_id, MINUTE)
    assert scene.waits() is None, "it is published; the branch may stay"


def test_a_branch_cannot_be_published_any_more_once_main_has_moved(scene: Scene) -> None:
    scene.set("audit", scene.head, 40 * MINUTE)
    scene.commit(30 * MINUTE, "audit")
    scene.commit(20 * MINUTE)
    assert scene.waits() is None
    scene.commit(10 * MINUTE, "audit")
    assert scene.waits() is None


def test_a_branch_that_is_kept_for_another_purpose_counts_for_a_limited_time(scene: Scene) -> None:
    scene.set("fork", scene.head, 2 * MINUTE)
    scene.commit(MINUTE, "fork")
    last = NOW - MINUTE
    assert scene.waits(last + ABANDONED - 1)
    assert scene.waits(last + ABANDONED + 1) is None
    for days in range(1, 9):
        scene.commit(MINUTE - days * DAY, "fork")
    assert scene.waits(last + LONGEST - 1)
    assert scene.waits(last + LONGEST + 1) is None, "although it was committed to just now"


def test_a_new_branch_is_expected_to_get_its_first_commit(scene: Scene) -> None:
    scene.set("audit", scene.head, MINUTE)
    made = NOW - MINUTE
    assert scene.waits() == "branch audit was made from the newest snapshot of main"
    assert scene.waits(made + BEGINS - 1)
    assert scene.waits(made + BEGINS + 1) is None


def test_a_branch_that_is_as_old_as_main_does_not_wait_however_often_the_table_changes(scene: Scene) -> None:
    scene.set("copy", scene.head, MINUTE)
    committed = NOW - 10 * HOUR
    scene.updated = committed + ABANDONED - MINUTE
    assert scene.waits(scene.updated)
    scene.updated = committed + ABANDONED
    assert scene.waits(scene.updated + 1) is None


@pytest.mark.parametrize("ahead", [30 * MINUTE, 30 * DAY])
def test_clocks_differ(scene: Scene, ahead: float) -> None:
    scene.set("audit", scene.head, MINUTE)
    scene.commit(-ahead, "audit")
    assert bool(scene.waits()) == (ahead < DAY)


@pytest.mark.parametrize("operation", [Operation.APPEND, Operation.OVERWRITE, Operation.DELETE])
def test_a_staged_change_waits_unless_it_only_appends(scene: Scene, operation: Operation) -> None:
    """An append is added to whatever main has become; all else needs main as it was."""
    staged = scene.stage(MINUTE, operation, parent=scene.head, **{"wap.id": "job-1"})
    assert bool(scene.waits()) == (operation is not Operation.APPEND)
    assert scene.waits(NOW + ABANDONED) is None
    if operation is not Operation.APPEND:
        scene.set("main", staged.snapshot_id, 0)
        assert scene.waits() is None, "published"


@pytest.mark.parametrize("dynamic", [False, True])
def test_staged_partitions_wait_also_after_other_commits(scene: Scene, dynamic: bool) -> None:
    properties = {"wap.id": "job-1", **({"replace-partitions": "true"} if dynamic else {})}
    scene.stage(2 * MINUTE, Operation.OVERWRITE, parent=scene.head, **properties)
    scene.commit(MINUTE)
    assert bool(scene.waits()) == dynamic
    scene.commit(0, operation=Operation.OVERWRITE, **{"published-wap-id": "job-1"})
    assert scene.waits() is None


def test_what_waits_longest_is_told(scene: Scene) -> None:
    for name, age in (("first", 3 * HOUR), ("second", HOUR), ("third", 2 * HOUR)):
        scene.set(name, scene.head, 4 * HOUR)
        scene.commit(age, name)
    assert scene.waits() == "branch second is not published to main"
