"""What the service has left, as gauges: budgets of the hour, quiet hours, space for the ledger's state."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from compactor.runs.dispatcher import Work
from compactor.runs.work_order import Budget
from metrics.reserve_collector import ControlState, Memory, ReserveCollector, StateSpace


def test_every_scrape_shows_the_budgets_and_the_space_of_that_moment() -> None:
    registry, space = CollectorRegistry(), [StateSpace(True, 10, 50)]
    work = [
        Work(
            quiet=True,
            limited=3,
            budgets=(
                Budget("bytes_per_hour", 1000, 750),
                Budget("requests_per_hour", 5, 9),
                Budget("bytes_per_hour", 100, 10, "sales.*"),
            ),
        )
    ]
    controls = [ControlState(draining=True, settings_refused=True, settings_kept=2)]
    registry.register(ReserveCollector(lambda: work[0], lambda: space[0], lambda: controls[0]))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"firnline_{name}", labels)

    assert (value("quiet"), value("limited_tables")) == (1, 3)
    assert value("limit_remaining_ratio", limit="bytes_per_hour", tables="*") == 0.25
    assert value("limit_remaining_ratio", limit="bytes_per_hour", tables="sales.*") == 0.9
    assert value("limit_remaining_ratio", limit="requests_per_hour", tables="*") == 0, (
        "an estimate may exceed the limit"
    )
    assert (value("state_unsaved"), value("state_free_bytes"), value("state_volume_bytes")) == (1, 10, 50)
    assert (value("draining"), value("settings_refused"), value("settings_need_restart")) == (1, 1, 2)
    work[0], space[0], controls[0] = Work(), StateSpace(False, 9, 50), ControlState()
    assert (value("draining"), value("settings_refused"), value("settings_need_restart")) == (0, 0, 0)
    assert (value("quiet"), value("limited_tables"), value("state_unsaved"), value("state_free_bytes")) == (0, 0, 0, 9)
    assert value("limit_remaining_ratio", limit="bytes_per_hour", tables="*") is None, "no limit is set any more"


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
