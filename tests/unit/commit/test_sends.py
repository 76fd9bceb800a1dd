"""When a commit that was sent can no longer land, for each kind of catalog and format version."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from compactor.commit.sends import Sent, TableState, can_still_land, floor_of, state_of, unknown_sends
from compactor.errors import CommitUnknownError
from compactor.iceberg.other_compactors import POLARIS_ROLLBACK
from compactor.lease.owner import Owner
from compactor.manifests.cache import ManifestCache
from compactor.runs.output_record import OutputRecords
from tests.unit.commit.test_in_flight import DEAD, Scene

SENT = Sent(snapshot_id=7, parent_id=3, number=5, manifest_list="snap-7-1.avro")
REWRITE = {POLARIS_ROLLBACK: "rollback"}


def table(version: int, floor: int, lists: dict[int, str], *, shows_history: bool = True) -> TableState:
    return TableState(version, floor, lists.get, shows_history)


@pytest.mark.parametrize(
    ("state", "can"),
    [
        (table(2, 4, {3: "a"}), True),
        (table(2, 4, {8: "b"}), True),  # the number alone counts: the parent may be hidden
        (table(2, 5, {3: "a"}), False),  # back to the parent, but the number is taken
        (table(3, 6, {3: "a"}), False),
        (table(2, 4, {7: "snap-7-1.avro"}), False),  # it has landed
        (table(2, 4, {7: "snap-7-2.avro"}), True),  # another attempt has, and Polaris may take it back
        (table(1, 0, {3: "a", 8: "b"}), True),  # a rollback leads to the parent
        (table(1, 0, {8: "b", 9: "c"}), False),
        (table(1, 0, {8: "b"}, shows_history=False), True),  # the parent may be there all the same
        (table(1, 0, {3: "a", 7: "snap-7-1.avro"}), False),
    ],
)
def test_what_proves_that_a_commit_cannot_land(state: TableState, can: bool) -> None:
    assert can_still_land(SENT, state) == can


@pytest.mark.parametrize(
    ("last", "branch", "floor"),
    [
        (9, [(6, {}), (5, REWRITE)], 9),  # other branches have later numbers
        (6, [(6, REWRITE), (5, REWRITE), (4, {}), (3, REWRITE)], 4),
        (6, [(6, REWRITE)], 0),  # older ones are not listed
        (0, [], 0),
    ],
)
def test_a_rewrite_that_polaris_may_take_back_proves_nothing(
    last: int, branch: Sequence[tuple[int, dict[str, str]]], floor: int
) -> None:
    assert floor_of(last, branch) == floor


def test_what_an_unknown_process_may_have_sent_is_over_with_the_next_commit(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    (sent,) = unknown_sends(scene.history.view())
    assert can_still_land(sent, state_of(scene.history.view(), "main"))
    scene.history.append_unreal("a", [1])
    assert not can_still_land(sent, state_of(scene.history.view(), "main"))


@pytest.mark.parametrize("landed", [False, True])
def test_a_run_deletes_what_it_has_written_once_nothing_of_it_can_land(tmp_path: Path, landed: bool) -> None:
    """At its own end, too: also if it ends because it is stopped after a refusal."""
    scene = Scene(tmp_path)
    kept = scene.run(Owner.this_process(), sent=False)
    kept.renew(kept.all()[0], sending=scene.sent())
    if landed:
        scene.history.append_unreal("a", [1])
    OutputRecords(kept, scene.catalogs, ManifestCache(2**20)).abandon(kept.all()[0])
    assert len(scene.left()) == (0 if landed else 2)
    assert [len(record.sends or ()) for record in kept.all()] == [0 if landed else 1]
    scene.history.append_unreal("a", [1])
    scene.sweep(scene.records(DEAD))
    assert scene.left() == []


def test_a_run_whose_commit_is_unknown_leaves_all_to_the_sweep(tmp_path: Path) -> None:
    """A catalog that hides snapshots may hide this one: the sweep must know that it was sent."""
    scene = Scene(tmp_path)
    kept = scene.records(Owner.this_process())
    outputs = OutputRecords(kept, scene.catalogs, ManifestCache(2**20))
    files = [f"file:{output}" for output in scene.outputs]
    with suppress(CommitUnknownError), outputs.around(scene.run_id, scene.history.view(), files, ()) as record:
        kept.renew(record, sending=scene.sent())
        scene.history.append_unreal("a", [1])
        raise CommitUnknownError("the answer is lost")
    assert len(scene.left()) == 2
    assert [len(record.sends or ()) for record in kept.all()] == [1]


def test_another_table_that_has_the_name_now_settles_nothing(tmp_path: Path) -> None:
    """Its numbers may be higher; the commit can still land in the table that was renamed."""
    scene = Scene(tmp_path)
    kept = scene.run(Owner.this_process(), sent=False)
    kept.renew(kept.all()[0], sending=scene.sent())
    catalog, rows, schema = scene.history.catalog, scene.history.rows(["a"]), scene.history.table.schema()
    catalog.rename_table("db.t", "db.renamed")
    other = catalog.create_table("db.t", schema)
    for _ in range(3):
        other.append(rows)
    OutputRecords(kept, scene.catalogs, ManifestCache(2**20)).abandon(kept.all()[0])
    assert len(scene.left()) == 2
    assert [len(record.sends or ()) for record in kept.all()] == [1]
