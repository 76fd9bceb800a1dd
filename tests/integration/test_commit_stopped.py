"""A commit that lost its first attempt is not sent again to a table that was paused, switched off or locked since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from compactor.errors import RetryError, StoppedError
from compactor.events import Event, GroupRewritten
from compactor.lease.right import CommitRight
from compactor.locks.flink_locks import Locks
from compactor.reasons import Reason
from compactor.table_names import TableName
from tests.conftest import Lake
from tests.integration.table_kit import append, create, planned, replaces, run, unreferenced
from tests.slow import slow

pytestmark = pytest.mark.spark


def beaten_once(lake: Lake, table: str, then: Callable[[], object]) -> CommitRight:
    """Right before the first attempt is sent another commit comes first; `then` runs after it."""
    asked: list[None] = []

    def confirm() -> None:
        asked.append(None)
        if len(asked) == 1:
            append(lake, table)
            then()

    return CommitRight(confirm=confirm)


@pytest.mark.parametrize("how", ["paused", *slow("switched off")])
def test_a_table_that_is_paused_during_the_attempts_is_not_committed_to(lake: Lake, table_name: str, how: str) -> None:
    create(lake, table_name, commits=3)
    off: list[bool] = []
    switches = {"stopping": lambda: bool(off)} if how == "paused" else {"enabled": lambda: not off}
    with pytest.raises(StoppedError, match="switched off or paused before the commit"):
        run(lake, planned(lake, table_name), right=beaten_once(lake, table_name, lambda: off.append(True)), **switches)
    assert replaces(lake, table_name) == 0
    assert unreferenced(lake, table_name) == set()
    assert len(lake.live_files(table_name)) == 4


class Silent:
    """Does not answer so many times."""

    def __init__(self, times: int, reason: Reason) -> None:
        self.left = times
        self.reason = reason

    def __call__(self, *_arguments: object) -> bool:
        if self.left:
            self.left -= 1
            raise RetryError("503", reason=self.reason)
        return True


class SilentLocks(Locks):
    def __init__(self, silent: Silent) -> None:
        super().__init__([])
        self.silent = silent

    def holder(self, _table: TableName) -> str | None:
        return None if self.silent() else ""


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("what", ["catalog", "state", "lock"])
def test_what_does_not_answer_before_the_commit_costs_no_rewrite(lake: Lake, table_name: str, what: str) -> None:
    create(lake, table_name, commits=3)
    seen: list[Event] = []
    more: dict[str, Any] = {}
    if what == "catalog":
        more["enabled"] = silent = Silent(2, Reason.CATALOG_UNAVAILABLE)
    elif what == "state":
        more["right"] = CommitRight(confirm=(silent := Silent(2, Reason.STATE_UNWRITABLE)))
    else:
        silent = Silent(2, Reason.LOCK_UNREADABLE)
        more["locks"] = SilentLocks(silent)
    result = run(lake, planned(lake, table_name), listener=seen.append, **more)
    assert (silent.left, result.commits, len(result.groups)) == (0, 1, 1)
    assert len([event for event in seen if isinstance(event, GroupRewritten)]) == 1
    assert replaces(lake, table_name) == 1
    assert unreferenced(lake, table_name) == set()


def test_a_lease_that_is_lost_is_not_asked_for_again(lake: Lake, table_name: str) -> None:
    create(lake, table_name, commits=3)
    lost = Silent(1, Reason.LEASE_LOST)
    with pytest.raises(RetryError) as error:
        run(lake, planned(lake, table_name), right=CommitRight(confirm=lost))
    assert (error.value.reason, lost.left) == (Reason.LEASE_LOST, 0)
    assert replaces(lake, table_name) == 0
