"""What is asked right before a commit is sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from compactor.reasons import Reason
from compactor.runs.commit_hold import MissedError
from compactor.runs.run_tools import RunTools
from tests.properties.table_history import NAME


def table(*operations: Operation) -> Any:
    """`operations`: of its snapshots, the newest first."""
    history = [
        Snapshot(snapshot_id=9 - number, parent_snapshot_id=8 - number, timestamp_ms=1, manifest_list="x",
                 summary=Summary(operation))
        for number, operation in enumerate(operations)
    ]  # fmt: skip
    return SimpleNamespace(name=NAME, history=history, snapshot=None)


def tools(most_replaces: int | None) -> RunTools:
    nothing: Any = None
    return RunTools(
        nothing, nothing, nothing, nothing, slots=nothing, lease_seconds=60, check_seconds=60,
        most_replaces=lambda _table: most_replaces,
    )  # fmt: skip


def test_a_commit_waits_for_a_writer_if_another_run_has_reached_the_limit_since_the_plan() -> None:
    """A reader gives up at two `replace` snapshots in a row: `firnline compact` may have committed one just now."""
    append, replaced = Operation.APPEND, Operation.REPLACE
    with pytest.raises(MissedError, match="another writer's commit") as error:
        tools(1).check_turn(table(replaced, append), "run")
    assert error.value.reason is Reason.REPLACES_IN_A_ROW
    tools(1).check_turn(table(append, replaced), "run")
    tools(2).check_turn(table(replaced, append), "run")
    tools(None).check_turn(table(replaced, replaced, append), "run")
