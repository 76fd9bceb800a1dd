"""Whatever a catalog answers, and when: no run and no sweep deletes what a snapshot needs, now or later."""

from __future__ import annotations

import pytest

from tests.late_commits.broken import RULES
from tests.late_commits.jobs import play
from tests.properties.examples import ALL

PARTS = 8
"""So that the histories run in several processes of pytest."""
SOON = 1200
"""Histories after which each wrong rule has made a table unreadable."""


@pytest.mark.parametrize("part", range(PARTS))
def test_a_table_is_readable_whenever_a_commit_lands_and_nothing_is_left_behind(part: int) -> None:
    count = (20_000 if ALL else 600) // PARTS
    ends, failed = play(range(part * count, (part + 1) * count))
    assert not failed, failed[0]
    assert {"committed", "killed", "CommitUnknownError", "StoppedError", "ReplanError"} <= ends.keys()


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_takes_something_else_for_the_proof_is_noticed(rule: str) -> None:
    assert play(range(SOON), rule)[1]
