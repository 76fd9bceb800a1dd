"""What looks and events tell of the commits of a real table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyiceberg.table.snapshots import Operation, Summary

from compactor.iceberg.other_compactors import RUN_ID
from compactor.iceberg.tables import TableView
from streaming.ledger.rhythm import LATE_SECONDS, UNKNOWN, Commits, Rhythm
from tests.properties.table_history import TableHistory

LATE = LATE_SECONDS + 1


@dataclass
class Following:
    """One table that was counted once. Each look is right after its commit unless the test moves the clock."""

    history: TableHistory
    rhythm: Rhythm = UNKNOWN
    now: float = 0.0

    def commit(self, *, age: float = 0.0) -> None:
        self.history.append_unreal("a", [1])
        self.now = self.history.table.snapshots()[-1].timestamp_ms / 1000 + age

    def heard(self) -> None:
        self.rhythm = self.rhythm.heard("s3", self.now)

    def look(
        self,
        view: TableView | None = None,
        *,
        swept: bool = True,
        oldest_event: float | None = None,
        behind: bool = False,
    ) -> bool:
        """Returns whether a commit turned out to have no event."""
        commits = Commits.of(view or self.history.view(), self.rhythm)
        self.rhythm, silent = self.rhythm.counted(
            commits, self.now, swept=swept, oldest_event=oldest_event, behind=behind
        )
        return silent


@pytest.fixture
def table(tmp_path: Path) -> Following:
    made = Following(TableHistory(tmp_path, 2))
    made.commit()
    made.look()
    return made


def with_rewrites(view: TableView, *places: int) -> TableView:
    """The table as if its snapshots at these places of the log were rewrites."""
    snapshots = [*view.metadata.snapshots]
    for place in places:
        snapshots[place] = snapshots[place].model_copy(update={"summary": Summary(Operation.REPLACE)})
    return replace(view, metadata=view.metadata.model_copy(update={"snapshots": snapshots}))


@pytest.mark.parametrize(("rewrites", "silent"), [((-1,), True), ((-2,), True), ((-1, -2), False)])
def test_a_lost_commit_below_a_rewrite_is_silence(table: Following, rewrites: tuple[int, ...], *, silent: bool) -> None:
    """Maintenance seldom announces its rewrites."""
    table.heard()
    for _ in range(2):
        table.commit(age=LATE)
    assert table.look(with_rewrites(table.history.view(), *rewrites)) is silent
    assert table.rhythm.announced is not silent


def test_our_own_commit_that_is_no_rewrite_is_no_silence(table: Following) -> None:
    """E.g. of converted deletes: a sweep can come between the commit and the look that we ask for."""
    table.heard()
    with table.history.table.transaction() as change:
        change.update_snapshot(snapshot_properties={RUN_ID: "7"}).fast_append().commit()
    table.now += 1000
    assert not table.look()
    assert table.rhythm.announced


def test_what_was_counted_before_is_judged_once(table: Following) -> None:
    """Also if the snapshot that was counted last is rolled back, or its place in the history is lost."""
    table.commit()
    table.look(swept=False, oldest_event=table.now)
    table.heard()
    view = table.history.view()
    before = view.metadata.snapshots[-2].snapshot_id
    rolled_back = view.metadata.model_copy(update={"refs": {}, "current_snapshot_id": before})
    table.now += LATE
    assert not table.look(replace(view, metadata=rolled_back))
    assert table.rhythm.announced


def test_a_lost_commit_is_silence_although_the_counted_snapshot_has_expired(table: Following) -> None:
    table.heard()
    for _ in range(2):
        table.commit(age=LATE)
    view = with_rewrites(table.history.view(), -1)
    expired = view.metadata.model_copy(update={"snapshots": view.metadata.snapshots[-2:]})
    assert table.look(replace(view, metadata=expired))
