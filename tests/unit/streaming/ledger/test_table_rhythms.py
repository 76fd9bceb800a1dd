"""What looks and events tell of the commits of real tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from compactor.events import CommitUnannounced
from compactor.iceberg.other_compactors import RUN_ID
from compactor.iceberg.tables import TableView
from streaming.ledger import table_rhythms
from streaming.ledger.look_queue import Asked, Lane
from streaming.ledger.table_rhythms import LATE_SECONDS, LOST_SECONDS
from tests.properties.table_history import NAME
from tests.unit.streaming.ledger.scene import Scene

EVENT = Asked(Lane.EVENT, 5.0)
OURS = Asked(Lane.EVENT)


@pytest.fixture
def commits(scene: Scene) -> Scene:
    """Rhythms publish to the scene; each look is right after its commit unless the test moves the clock."""
    scene.looker.rhythms.listener = scene.published.append
    scene.looker.rhythms.clock = lambda: scene.now
    scene.history.append_unreal("a", [1])
    scene.look()
    return scene


def commit(scene: Scene, *, age: float = 0.0) -> None:
    scene.history.append_unreal("a", [1])
    scene.now = scene.history.table.snapshots()[-1].timestamp_ms / 1000 + age


def with_rewrites(view: TableView, *places: int) -> TableView:
    """The table as if its snapshots at these places of the log were rewrites."""
    snapshots = [*view.metadata.snapshots]
    for place in places:
        snapshots[place] = snapshots[place].model_copy(update={"summary": Summary(Operation.REPLACE)})
    return replace(view, metadata=view.metadata.model_copy(update={"snapshots": snapshots}))


def heard(scene: Scene, source: str, *, age: float = 0.0) -> None:
    """An event comes. `age`: of what it announces."""
    scene.looker.rhythms.heard(NAME, source, scene.now - age)


def silent(scene: Scene) -> list[str]:
    return [event.source for event in scene.published if isinstance(event, CommitUnannounced)]


def test_events_make_looks_rare_until_one_is_missed(commits: Scene) -> None:
    rhythms = commits.looker.rhythms
    assert not rhythms.of(NAME).announced
    heard(commits, "polaris")
    assert rhythms.of(NAME).announced
    commit(commits)
    commits.look(asked=EVENT)
    assert rhythms.of(NAME).announced
    commit(commits, age=LATE_SECONDS + 1)
    commits.look()
    assert not rhythms.of(NAME).announced
    assert silent(commits) == ["polaris"]
    heard(commits, "polaris")
    assert rhythms.of(NAME).announced


def test_an_event_that_comes_after_the_look_is_no_silence(commits: Scene) -> None:
    heard(commits, "s3")
    commit(commits, age=LATE_SECONDS / 2)
    commits.look()
    assert silent(commits) == []
    heard(commits, "s3")
    assert commits.looker.rhythms.of(NAME).announced


def test_our_own_commits_are_no_silence(commits: Scene) -> None:
    heard(commits, "s3")
    commit(commits, age=LATE_SECONDS + 1)
    commits.look(asked=OURS)
    assert silent(commits) == []
    assert commits.looker.rhythms.of(NAME).announced


def test_maintenance_is_no_silence(commits: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rewrites are seldom announced."""
    heard(commits, "s3")
    monkeypatch.setattr(table_rhythms, "_is_rewrite", lambda _snapshot: True)
    commit(commits, age=LATE_SECONDS + 1)
    commits.look()
    assert silent(commits) == []
    assert commits.looker.rhythms.of(NAME).announced


@pytest.mark.parametrize(("rewrites", "sources"), [((-1,), ["s3"]), ((-2,), ["s3"]), ((-1, -2), [])])
def test_a_lost_commit_below_a_rewrite_is_silence(
    commits: Scene, rewrites: tuple[int, ...], sources: list[str]
) -> None:
    rhythms = commits.looker.rhythms
    heard(commits, "s3")
    for _ in range(2):
        commit(commits, age=LATE_SECONDS + 1)
    rhythms.counted(NAME, with_rewrites(commits.history.view(), *rewrites), Asked(Lane.SWEEP))
    assert silent(commits) == sources
    assert rhythms.of(NAME).announced is not bool(sources)


def test_a_lost_commit_is_silence_although_another_one_is_young(commits: Scene) -> None:
    """A table with a commit every few seconds: its newest is always young."""
    heard(commits, "s3")
    commit(commits)
    lost_at = commits.now
    commit(commits)
    commits.now = lost_at + LATE_SECONDS + 0.001
    commits.look()
    assert silent(commits) == ["s3"]


def test_what_was_counted_before_is_judged_once(commits: Scene) -> None:
    """Also if the snapshot that was counted last is rolled back, or its place in the history is lost."""
    rhythms = commits.looker.rhythms
    commit(commits)
    commits.look(asked=EVENT)
    heard(commits, "s3")
    view = commits.history.view()
    before = view.metadata.snapshots[-2].snapshot_id
    rolled_back = view.metadata.model_copy(update={"refs": {}, "current_snapshot_id": before})
    commits.now += LATE_SECONDS + 1
    rhythms.counted(NAME, replace(view, metadata=rolled_back), Asked(Lane.SWEEP))
    assert silent(commits) == []
    assert rhythms.of(NAME).announced


def test_a_lost_commit_is_silence_although_the_counted_snapshot_has_expired(commits: Scene) -> None:
    rhythms = commits.looker.rhythms
    heard(commits, "s3")
    for _ in range(2):
        commit(commits, age=LATE_SECONDS + 1)
    view = with_rewrites(commits.history.view(), -1)
    expired = view.metadata.model_copy(update={"snapshots": view.metadata.snapshots[-2:]})
    rhythms.counted(NAME, replace(view, metadata=expired), Asked(Lane.SWEEP))
    assert silent(commits) == ["s3"]


def test_commits_that_were_checked_in_a_branch_are_as_young_as_their_publication(commits: Scene) -> None:
    """A fast forward publishes several at once, with one event. Only the newest was ever the head."""
    heard(commits, "s3")
    for _ in range(3):
        commit(commits)
    view = commits.history.view()
    published = [each.snapshot_id for each in view.metadata.snapshots[-3:-1]]
    snapshots = [
        each.model_copy(update={"timestamp_ms": each.timestamp_ms - 10_000 * int(LOST_SECONDS)})
        if each.snapshot_id in published
        else each
        for each in view.metadata.snapshots
    ]
    log = [each for each in view.metadata.snapshot_log if each.snapshot_id not in published]
    changed = view.metadata.model_copy(update={"snapshots": snapshots, "snapshot_log": log})
    commits.looker.rhythms.counted(NAME, replace(view, metadata=changed), Asked(Lane.EVENT, commits.now))
    assert silent(commits) == []
    assert commits.looker.rhythms.of(NAME).missed_at is None


def test_our_own_commit_that_is_no_rewrite_is_no_silence(commits: Scene) -> None:
    """E.g. of converted deletes: a sweep can come between the commit and the look that we ask for."""
    heard(commits, "s3")
    with commits.history.table.transaction() as change:
        change.update_snapshot(snapshot_properties={RUN_ID: "7"}).fast_append().commit()
    commits.now += 1000
    commits.look()
    assert silent(commits) == []
    assert commits.looker.rhythms.of(NAME).announced


@pytest.mark.parametrize("operation", [Operation.REPLACE, Operation.APPEND])
def test_a_rewrite_is_a_replace_snapshot(operation: Operation) -> None:
    snapshot = Snapshot(snapshot_id=1, manifest_list="x", summary=Summary(operation))
    assert table_rhythms._is_rewrite(snapshot) is (operation is Operation.REPLACE)


def test_a_table_without_events_is_never_silent(commits: Scene) -> None:
    commit(commits, age=LATE_SECONDS + 1)
    commits.look()
    assert silent(commits) == []
    assert commits.looker.rhythms.of(NAME).commit_seconds is not None


def test_a_change_without_a_commit_is_no_silence(commits: Scene) -> None:
    heard(commits, "s3")
    with commits.history.table.transaction() as change:
        change.set_properties({"owner": "me"})
    commits.now += 1000
    commits.look()
    assert silent(commits) == []


def test_a_dropped_table_is_forgotten(commits: Scene) -> None:
    heard(commits, "s3")
    commits.catalog.drop_table("db.t")
    commits.look()
    assert not commits.looker.rhythms.of(NAME).announced
    assert commits.looker.rhythms.of(NAME).committed_at is None
