"""The table planner's first look at a table, with a real catalog and no table in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.debt.board import DebtBoard, TableDebt
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
