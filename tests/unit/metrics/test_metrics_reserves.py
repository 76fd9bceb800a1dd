"""What the service has left, as gauges: limits, quiet hours, memory, space for the ledger's state."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from compactor.runs.dispatcher import Work
from metrics.reserve_collector import Memory, ReserveCollector, StateSpace


def test_every_scrape_shows_the_limits_and_the_space_of_that_moment() -> None:
    registry, space, refused = CollectorRegistry(), [StateSpace(True, 10)], [True]
    work = [Work(quiet=True, limited=3)]
    registry.register(ReserveCollector(lambda: work[0], lambda: space[0], lambda: refused[0], lambda: 2))
    names = ("quiet", "limited_tables", "state_unsaved", "state_free_bytes", "settings_refused", "unreadable_records")

    def values() -> list[float | None]:
        return [registry.get_sample_value(f"firnline_{name}") for name in names]

    assert values() == [1, 3, 1, 10, 1, 2]
    work[0], space[0], refused[0] = Work(), StateSpace(False, 9), False
    assert values() == [0, 0, 0, 9, 0, 2]


def test_before_the_ledger_has_started_its_space_has_no_series() -> None:
    registry = CollectorRegistry()
    registry.register(ReserveCollector(Work, lambda: None))
    assert registry.get_sample_value("firnline_state_free_bytes") is None
    assert registry.get_sample_value("firnline_quiet") == 0


def test_where_the_system_does_not_tell_its_memory_there_is_no_series() -> None:
    registry = CollectorRegistry()
    registry.register(ReserveCollector(Work, lambda: None, memory=Memory))
    assert registry.get_sample_value("firnline_memory_bytes", {"process": "driver"}) is None
    assert registry.get_sample_value("firnline_free_memory_bytes") is None
