"""Rules that look safe and are not: each takes something else than the table's state for the proof."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from compactor.commit import sends, snapshots, sweep
from compactor.commit.sends import Sent, TableState
from compactor.runs import output_record
from tests.late_commits.histories import History

Rule = Callable[[History, Sent, TableState], bool]
GRACE_SECONDS: Final = 2700.0

RULES: Final[dict[str, Rule]] = {
    "an answer proves that nothing was committed": lambda _history, _sent, _table: False,
    "a head that has moved proves it": lambda history, sent, _table: history.world.state.head == sent.parent_id,
    "time proves it": lambda history, sent, table: (
        history.now - history.started < GRACE_SECONDS and sends.can_still_land(sent, table)
    ),
    "a rewrite that Polaris may take back proves it": lambda history, sent, table: (
        sends.can_still_land(sent, table) and sent.number > history.world.state.last_number
    ),
}
"""Whether a commit can still land, by what somebody may believe."""


@contextmanager
def believed(rule: str, history: History) -> Iterator[None]:
    """firnline decides by this rule."""
    modules, real = (snapshots, sweep, output_record), sends.can_still_land

    def wrong(sent: Sent, table: TableState) -> bool:
        return RULES[rule](history, sent, table)

    try:
        for module in modules:
            module.can_still_land = wrong  # type: ignore[attr-defined]
        yield
    finally:
        for module in modules:
            module.can_still_land = real  # type: ignore[attr-defined]
