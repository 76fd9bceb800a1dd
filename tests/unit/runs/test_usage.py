"""Every cost counts once, for one hour, in this process and the next."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from compactor.planning.budget import Spent
from compactor.runs.usage import HOUR, Cost, HourOfUsage, Usage
from compactor.runs.usage_file import NAME, SAVE_SECONDS, UsageFile
from compactor.table_names import TableName

ONE, OTHER = TableName("lake", ("db",), "one"), TableName("lake", ("d.b",), "o'ther")
NOW = 1_000_000.0


def total(hour: HourOfUsage, now: float) -> Spent:
    return Usage.of(hour.recent(now), now).spent


# --- the hour ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 3 * HOUR), st.integers(0, 100))), st.floats(0, 4 * HOUR))
def test_no_cost_is_forgotten_within_an_hour_nor_counted_a_minute_longer(
    costs: list[tuple[bool, float, int]], now: float
) -> None:
    hour = HourOfUsage()
    for first, at, size in sorted(costs, key=lambda cost: cost[1]):
        hour.charge(ONE if first else OTHER, at, Spent(size, 1, 2, 1))
    within = [size for _, at, size in costs if at > now - HOUR]
    almost = [size for _, at, size in costs if at > now - HOUR - 60]
    assert sum(within) <= total(hour, now).bytes <= sum(almost)
    usage = Usage.of(hour.recent(now), now)
    assert len(within) <= usage.commits[ONE] + usage.commits[OTHER] == usage.spent.requests <= len(almost)


def test_a_running_run_counts_with_its_grant_or_with_its_cost_if_that_is_more() -> None:
    hour = HourOfUsage()
    hour.reserve(Cost(ONE, NOW, Spent(100, 10, 12, 1)))
    assert total(hour, NOW) == Spent(100, 10, 12, 1)
    hour.charge(ONE, NOW, Spent(30, 2, 6))
    assert total(hour, NOW) == Spent(100, 10, 12, 1)
    hour.charge(ONE, NOW, Spent(90, 2, 6, 1))
    assert total(hour, NOW) == Spent(120, 10, 12, 1)
    hour.release(ONE)
    assert total(hour, NOW) == Spent(120, 4, 12, 1)


def test_a_long_run_counts_with_its_grant_however_long_it_runs() -> None:
    hour = HourOfUsage()
    hour.reserve(Cost(ONE, NOW, Spent(100, commits=1)))
    assert total(hour, NOW + 5 * HOUR).bytes == 100


def test_a_cost_from_before_the_clock_was_set_back_counts_for_one_hour() -> None:
    hour = HourOfUsage()
    hour.charge(ONE, NOW + 24 * HOUR, Spent(100))
    assert total(hour, NOW).bytes == 100
    hour.charge(ONE, NOW + 60, Spent(7))
    assert total(hour, NOW + HOUR - 1).bytes == 107
    assert total(hour, NOW + HOUR).bytes == 7
    assert total(hour, NOW + 24 * HOUR).bytes == 0


def test_the_hour_is_known_by_namespace() -> None:
    costs = [
        Cost(ONE, NOW, Spent(5, 4, 3, 2)),
        Cost(ONE, NOW - 1, Spent(1, 1, 1, 1)),
        Cost(OTHER, NOW, Spent(7, 0, 0, 0)),
    ]
    usage = Usage.of(costs, NOW, lambda table: ("all", "one") if table == ONE else ("all",))
    assert usage.by_namespace == {"all": Spent(13, 5, 4, 3), "one": Spent(6, 5, 4, 3)}
    assert usage.spent == Spent(13, 5, 4, 3)
    assert Usage.of(costs, NOW).by_namespace == {}


# --- the file ---------------------------------------------------------------------------------------------------------


COSTS = [Cost(ONE, NOW - 10, Spent(5, 4, 3, 2)), Cost(OTHER, NOW - HOUR + 1, Spent(1, 1, 1, 0))]


def file(folder: Path) -> UsageFile:
    return UsageFile(f"file://{folder}/checkpoint")


def test_the_next_process_knows_the_hour(tmp_path: Path) -> None:
    assert file(tmp_path).load(NOW) == []
    file(tmp_path).save(lambda: COSTS)
    assert file(tmp_path).load(NOW) == COSTS
    assert file(tmp_path).load(NOW + 60) == COSTS[:1]
    assert file(tmp_path).load(NOW + HOUR) == []
    assert json.loads((tmp_path / "checkpoint" / NAME).read_text())["version"] == 1


def test_a_clock_that_was_set_back_holds_nothing_back_for_longer_than_an_hour(tmp_path: Path) -> None:
    file(tmp_path).save(lambda: COSTS)
    assert {cost.at for cost in file(tmp_path).load(NOW - 5 * HOUR)} == {NOW - 5 * HOUR}


def test_it_is_written_when_it_has_changed_and_not_all_the_time(tmp_path: Path) -> None:
    steady = 0.0
    known, where = UsageFile(f"{tmp_path}/checkpoint", ticks=lambda: steady), tmp_path / "checkpoint" / NAME
    known.save(lambda: COSTS)
    assert where.exists()
    where.unlink()
    known.save(list)
    assert not where.exists()
    steady += SAVE_SECONDS
    known.save(lambda: COSTS)
    assert not where.exists(), "it has not changed"
    known.save(lambda: COSTS[:1], at_once=True)
    assert file(tmp_path).load(NOW) == COSTS[:1]
