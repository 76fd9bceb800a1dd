"""The table planner: its first look at a table, and when a table is planned again. Real catalogs and tables."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compactor.debt.board import DebtBoard, TableDebt
from compactor.debt.shortlist import Shortlist
from compactor.errors import StoppedError
from compactor.events import Event, RunFailed
from compactor.iceberg.tables import Catalogs, TableMissingError
from compactor.manifests.cache import ManifestCache
from compactor.runs.table_planner import TablePlanner
from compactor.settings.tree import Settings
from compactor.table_names import TableName
from tests.properties.table_history import NAME
from tests.unit.streaming.ledger.scene import Scene

GONE = TableName("lake", ("db",), "gone")


def test_a_request_for_a_table_that_is_gone_ends(tmp_path: Path) -> None:
    """Else it would wait, and fail again and again, until a table of that name appears."""
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/x.db", "warehouse": f"file://{tmp_path}"}
    settings = Settings.model_validate({"catalogs": {"lake": properties}, "tables": {"include": ["*"]}})
    board, events = DebtBoard(), list[Event]()
    board.request(GONE, [""])
    planner = TablePlanner(
        settings=settings, catalogs=Catalogs(settings.catalogs), cache=ManifestCache(1 << 20), board=board,
        listener=events.append, clock=lambda: 0.0, planned=lambda _: None,
    )  # fmt: skip
    with pytest.raises(TableMissingError):
        planner.load(TableDebt(GONE, None, {}, acted_on=True, requested=("",)))
    assert board.requests(GONE) == ()
    assert [event.reason for event in events if isinstance(event, RunFailed)] == ["unknown_table"]


def test_a_request_for_a_table_that_became_another_services_stays(tmp_path: Path) -> None:
    """Its new owner may not have heard of it: it stays, or a warning names it (`DriverLedger.shard_changed`)."""
    scene = Scene(tmp_path)
    scene.history.append_unreal("a", [10])
    scene.board.request(NAME, [""])
    planner = TablePlanner(
        settings=scene.settings, catalogs=scene.catalogs, cache=ManifestCache(1 << 20), board=scene.board,
        listener=lambda _: None, clock=lambda: scene.now, planned=lambda _: None, owns=lambda _: False,
    )  # fmt: skip
    with pytest.raises(StoppedError):
        planner.load(TableDebt(NAME, None, {}, acted_on=True, requested=("",)))
    assert scene.board.requests(NAME) == ("",)


# --- what a plan leaves alone -----------------------------------------------------------------------------------------


def plans_of(scene: Scene, commits: list[str], *, sweeps: int, **kind: Any) -> int:
    """How often the table is planned: after each commit to one of these partitions, and in sweeps of the idle table."""
    planned: list[TableName] = []
    planner = TablePlanner(
        settings=scene.settings, catalogs=scene.catalogs, cache=ManifestCache(1 << 20), board=scene.board,
        listener=lambda _: None, clock=lambda: scene.now, planned=planned.append,
    )  # fmt: skip
    for category in [*commits, *[""] * sweeps]:
        if category:
            scene.history.append_unreal(category, [10] * 5, **kind)
        scene.look()
        if scene.debt().has_work:
            assert planner.plan(scene.debt(), planner.load(scene.debt())) is None
    return len(planned)


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        ({"where": "category = 'a'"}, {}),
        ({"where": "id < 5", "prune_files": True}, {}),
        ({"equality_delete_threshold": 2}, {"by_value": True}),
    ],
    ids=["outside the filter", "each file pruned", "delete files alone"],
)
def test_partitions_that_no_plan_selects_are_planned_once_after_each_commit(
    tmp_path: Path, policy: dict[str, Any], kind: dict[str, Any]
) -> None:
    """Else they take turns for ever: the plan for one of them forgets that the other one was left alone."""
    scene = Scene(tmp_path, policy={"strategy": "threshold", "min_input_files": 3, **policy})
    assert plans_of(scene, ["b", "c"], sweeps=4, **kind) == 2


def test_more_partitions_than_the_board_keeps_are_planned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shortlist, "joined", partial(Shortlist.joined, most=2))
    scene = Scene(tmp_path, policy={"strategy": "threshold", "min_input_files": 3, "where": "category = 'a'"})
    for category in "bcdef":
        scene.history.append_unreal(category, [10] * 5)
    assert plans_of(scene, [], sweeps=8) == 3
    assert len(scene.board.declined(NAME)) == 5
