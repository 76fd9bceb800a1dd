"""A job that is to publish a branch goes first, on a real table."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyiceberg.table.update import SetSnapshotRefUpdate

from compactor.errors import LaterError
from compactor.events import Event, RunSkipped
from compactor.reasons import Reason
from compactor.runs.turns import Turns
from compactor.settings.tree import Settings
from tests.properties.table_history import TableHistory

HOUR = 3600.0


@pytest.fixture
def audited(tmp_path: Path) -> TableHistory:
    """Main has two commits, branch `audit` a third one."""
    history = TableHistory(tmp_path, 2)
    for _ in range(2):
        history.append_unreal("a", [10])
    head = history.table.current_snapshot()
    assert head is not None
    history.table.manage_snapshots().create_branch(head.snapshot_id, "audit").commit()
    history.append_unreal("a", [10], branch="audit")
    return history


def turns(events: list[Event], now: float) -> Turns:
    settings = Settings.model_validate({"catalogs": {"lake": {}}})
    return Turns(settings, events.append, lambda: now)


@pytest.mark.parametrize("requested", [False, True])
@pytest.mark.parametrize("manifests", [False, True])
def test_main_is_left_alone_until_a_branch_is_published(
    audited: TableHistory, manifests: bool, requested: bool
) -> None:
    now, events = time.time(), list[Event]()
    with pytest.raises(LaterError, match=r"branch audit .* Publish or drop it") as error:
        turns(events, now).check(audited.view(), manifests=manifests, requested=requested)
    assert error.value.reason is Reason.UNPUBLISHED
    assert events == [RunSkipped(audited.view().name, Reason.UNPUBLISHED)]
    audit = audited.table.metadata.refs["audit"].snapshot_id
    with audited.table.transaction() as transaction:
        transaction._apply((SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=audit),), ())
    turns(events, now).check(audited.view(), manifests=manifests, requested=requested)
    assert len(events) == 1


def test_a_branch_that_nobody_publishes_does_not_stop_the_work_for_ever(audited: TableHistory) -> None:
    events = list[Event]()
    turns(events, time.time() + 25 * HOUR).check(audited.view())
    assert events == []
