"""The table planner: its first look at a table, and when a table is planned again. Real catalogs and tables."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compactor.debt.board import TableDebt
from compactor.debt.shortlist import Shortlist
from compactor.errors import StoppedError
from compactor.events import RunFailed
from compactor.iceberg.tables import TableMissingError
from compactor.patience.holds import What
from compactor.runs.table_planner import TablePlanner
from compactor.table_names import TableName
from tests.properties.table_history import NAME
from tests.unit.runs.working import tools_of
from tests.unit.streaming.ledger.scene import Scene

REQUESTED = TableDebt(NAME, None, {}, acted_on=True, requested=("",))


def planner_of(scene: Scene, **given: Any) -> TablePlanner:
    tools = tools_of(scene, scene.published.append)
    return TablePlanner(tools, scene.settings, scene.board, **{"planned": lambda _: None, **given})


def load_in_vain(scene: Scene) -> list[TableName]:
    """The planner does not find the table; returns the looks that it has asked for."""
    asked: list[TableName] = []
    with pytest.raises(TableMissingError):
        planner_of(scene, look=asked.append).load(REQUESTED)
    return asked


def test_a_request_for_a_table_that_is_gone_ends_once_looks_and_listing_agree(tmp_path: Path) -> None:
    """Else it would wait, and fail again and again, until a table of that name appears."""
    scene = Scene(tmp_path)
    scene.look()
    scene.board.request(NAME, [""])
    scene.catalog.drop_table("db.t")
    scene.driver.list_if_due("lake")
    assert load_in_vain(scene) == [NAME]
    assert [event.reason for event in scene.published if isinstance(event, RunFailed)] == ["unknown_table"]
    scene.look()
    assert (scene.board.with_work(), scene.board.known()) == ((), (NAME,)), "no run starts; sweeps look again"
    scene.look()
    assert scene.board.known() == ()


def test_a_request_for_a_table_that_is_missing_for_a_moment_stays(tmp_path: Path) -> None:
    """A proxy answers 404, and by the time of the look the table is there again."""
    scene = Scene(tmp_path)
    scene.look()
    scene.board.request(NAME, [""])
    scene.catalogs.failure = TableMissingError("404")
    assert load_in_vain(scene) == [NAME]
    scene.catalogs.failure = None
    scene.look()
    assert scene.debt().requested == ("",)


def test_a_request_for_a_table_that_became_another_services_stays(tmp_path: Path) -> None:
    """Its new owner may not have heard of it: it stays, or a warning names it (`DriverLedger.shard_changed`)."""
    scene = Scene(tmp_path)
    scene.history.append_unreal("a", [10])
    scene.board.request(NAME, [""])
    with pytest.raises(StoppedError):
        planner_of(scene, owns=lambda _: False).load(REQUESTED)
    assert scene.board.requests(NAME) == ("",)


# --- what a plan leaves alone -----------------------------------------------------------------------------------------


def plans_of(scene: Scene, commits: list[str], *, sweeps: int, **kind: Any) -> int:
    """How often the table is planned: after each commit to one of these partitions, and in sweeps of the idle table."""
    planned: list[TableName] = []
    planner = planner_of(scene, planned=planned.append)
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
        ({"where": "id < 5", "prune_files": True}, {}),
        ({"equality_delete_threshold": 2}, {"by_value": True}),
    ],
    ids=["each file pruned", "delete files alone"],
)
def test_partitions_that_no_plan_selects_are_planned_once_after_each_commit(
    tmp_path: Path, policy: dict[str, Any], kind: dict[str, Any]
) -> None:
    """Else they take turns for ever: the plan for one of them forgets that the other one was left alone."""
    scene = Scene(tmp_path, policy={"strategy": "threshold", "min_input_files": 3, **policy})
    assert plans_of(scene, ["b", "c"], sweeps=4, **kind) == 2


def test_partitions_outside_the_filter_of_the_policy_are_never_planned(tmp_path: Path) -> None:
    scene = Scene(tmp_path, policy={"strategy": "threshold", "min_input_files": 3, "where": "category = 'a'"})
    assert plans_of(scene, ["b", "c"], sweeps=2) == 0


def test_more_partitions_than_the_board_keeps_are_planned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shortlist, "joined", partial(Shortlist.joined, most=2))
    where = {"where": "id < 5", "prune_files": True}
    scene = Scene(tmp_path, policy={"strategy": "threshold", "min_input_files": 3, **where})
    for category in "bcdef":
        scene.history.append_unreal(category, [10] * 5)
    assert plans_of(scene, [], sweeps=8) == 3
    assert len(scene.board.holds.of(What.PARTITION, NAME)) == 5
