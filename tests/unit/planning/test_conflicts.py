"""What other commits did since the plan, where the table's sequence numbers may have gone back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate

from compactor.errors import ReplanError
from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.iceberg.tables import TableView
from compactor.manifests.cache import ManifestCache
from compactor.planning.conflicts import changes_since, more_often, numbers_went_back
from compactor.reasons import Reason
from tests.properties.table_history import TableHistory
from tests.properties.test_commit_decisions import KEYS, entry

CACHE = ManifestCache(1 << 24)


@dataclass
class Scene:
    """A table of six appends, and a rewrite that is planned after `more` appends."""

    history: TableHistory

    def planned(self, more: int = 1) -> TableView:
        self.older = self.history.table.metadata_location
        for _ in range(more):
            self.history.append_unreal("b", [1000])
        return self.history.view()

    def go_back(self) -> None:
        """To the metadata before the planned snapshot: Apache Polaris takes a rewrite back, a catalog is restored."""
        self.history.catalog.drop_table("db.t")
        self.history.catalog.register_table("db.t", self.older)

    def expire(self, planned: TableView) -> None:
        assert planned.snapshot is not None
        with self.history.table.transaction() as transaction:
            transaction._apply((RemoveSnapshotsUpdate(snapshot_ids=[planned.snapshot.snapshot_id]),), ())

    def changes(self, planned: TableView) -> Sequence[FileEntry]:
        assert planned.snapshot is not None
        return changes_since(self.history.view(), planned, planned.snapshot.snapshot_id, CACHE)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    history = TableHistory(tmp_path, 2)
    for _ in range(6):
        history.append_unreal("a", [1000])
    return Scene(history)


def test_an_upsert_with_the_planned_snapshots_number_is_not_hidden_from_the_outputs(scene: Scene) -> None:
    """It applies to the inputs; outputs with the planned snapshot's number would bring its rows back."""
    planned = scene.planned()
    scene.go_back()
    scene.history.append_unreal("a", [10], by_value=True)
    with pytest.raises(ReplanError, match="sequence number") as error:
        scene.changes(planned)
    assert error.value.reason is Reason.HISTORY_GAP


def test_an_append_in_place_of_the_planned_snapshot_is_no_conflict(scene: Scene) -> None:
    planned = scene.planned()
    scene.go_back()
    scene.history.append_unreal("a", [10])
    found = {(each.status, each.key.values, each.data_sequence_number) for each in scene.changes(planned)}
    assert found == {(Status.ADDED, '["a"]', 7), (Status.DELETED, '["b"]', 7)}


def test_outputs_do_not_get_a_number_that_the_restored_table_has_not_reached(scene: Scene) -> None:
    """Deletes of the next commits would be older than the outputs."""
    planned = scene.planned(more=4)
    scene.go_back()
    scene.history.append_unreal("a", [10])
    with pytest.raises(ReplanError, match="sequence number") as error:
        scene.changes(planned)
    assert error.value.reason is Reason.HISTORY_GAP


@pytest.mark.parametrize("expires", [False, True])
def test_later_deletes_need_no_new_plan_also_where_the_planned_snapshot_expired(scene: Scene, expires: bool) -> None:
    planned = scene.planned()
    scene.history.append_unreal("a", [10], by_value=True)
    scene.history.append_unreal("a", [10], deletes=True)
    if expires:
        scene.expire(planned)
    assert {each.content for each in scene.changes(planned)} == {Content.EQUALITY_DELETES, Content.POSITION_DELETES}


def delete(number: int, path: str = "delete", status: Status = Status.ADDED) -> FileEntry:
    return entry(Content.EQUALITY_DELETES, path, KEYS[0], number)._replace(status=status)


@pytest.mark.parametrize(
    ("head", "changes", "back"),
    [
        (6, [], False),
        (9, [delete(7)], False),
        (9, [delete(6)], True),
        (5, [], True),
        (9, [delete(4, status=Status.DELETED)], False),
        (9, [delete(4, status=Status.DELETED), delete(4)], False),  # another compactor has put it back as it was
        (9, [delete(4, status=Status.DELETED), delete(5)], True),
        (9, [delete(5), delete(5, status=Status.DELETED)], False),  # converted to positions, which are followed
        (9, [entry(Content.DATA, "data", KEYS[0], 3)], False),  # another compactor's output
        (9, [entry(Content.POSITION_DELETES, "delete", KEYS[0], 6)], False),  # its rows are followed
    ],
)
def test_numbers_went_back_where_a_newer_delete_would_not_apply_to_the_outputs(
    head: int, changes: list[FileEntry], back: bool
) -> None:
    assert numbers_went_back(6, head, changes) is back


def test_a_file_that_came_again_with_another_number_is_another_file() -> None:
    """Deletes apply by number: what was read of the first is not true of the second."""
    first, again = (entry(Content.DATA, "data", KEYS[0], number) for number in (3, 7))
    assert list(more_often([again], [first])) == [again]
