"""A few of the hostile events of `make test-security`, so that its checks go on to fit the code."""

from __future__ import annotations

from tests.security.test_hostile_events import harmless, lettered

FEW = 3_000


def test_hostile_events_name_tables_or_become_dead_letters() -> None:
    assert harmless(FEW) > 0
    assert lettered(FEW).total() > FEW // 10
