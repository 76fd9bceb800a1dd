"""The model of docs/scale.md: more services never load one more, totals are kept, more of everything costs more."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.benchmarks.scale.files import read_figures, read_prices
from tests.benchmarks.scale.model import (
    Lake,
    Service,
    TableClass,
    UnitCosts,
    batches_second,
    best_services,
    bill,
    divided,
    fullest,
    limits_of,
    load,
    looks_of,
    services_needed,
)
from tests.benchmarks.scale.queueing import arrivals, simulate, station
from tests.benchmarks.scale.scenarios import first_start
from tests.properties.examples import examples

COSTS: UnitCosts = read_figures().costs
PRICES, _ = read_prices()
SERVICE = Service()
CHEAP_OWNER = replace(COSTS, event=replace(COSTS.event, owner_member=0.0))
"""Without the one cost that grows with the number of services."""


def lakes() -> st.SearchStrategy[Lake]:
    return st.builds(
        lambda busy, slow, part, commits: Lake(
            (TableClass("busy", busy, part), TableClass("slow", slow, 1 - part)), commits, 1e12
        ),
        st.integers(1, 20_000),
        st.integers(1, 200_000),
        st.sampled_from((0.1, 0.5, 0.9)),
        st.sampled_from((100.0, 10_000.0, 1e6)),
    )


services = st.integers(1, 300)


@settings(deadline=None, max_examples=examples(60))
@given(lakes(), services, services)
def test_more_services_never_load_one_of_them_more(lake: Lake, few: int, more: int) -> None:
    first, second = (load(lake, CHEAP_OWNER, SERVICE, few), load(lake, CHEAP_OWNER, SERVICE, few + more))
    for name in ("driver", "jvm", "task", "threads", "runs_at_once", "memory", "disk"):
        assert getattr(second, name) <= getattr(first, name) * (1 + 1e-9), name


def everywhere(lake: Lake, count: int) -> float:
    """Cores of Python that every service needs, however many there are."""
    batches = COSTS.batch.driver * batches_second(SERVICE)
    return lake.commits_per_hour / 3600 * (COSTS.event.row + COSTS.event.whose(count)) + batches


@settings(deadline=None, max_examples=examples(60))
@given(lakes(), services)
def test_what_the_tables_cause_is_divided_and_not_multiplied(lake: Lake, count: int) -> None:
    alone, one = load(lake, COSTS, SERVICE, 1), load(lake, COSTS, SERVICE, count)
    for name in ("event_looks", "sweep_looks", "requests", "rewrites", "slots"):
        assert getattr(one, name) == getattr(alone, name), name
    for name in ("threads", "runs_at_once", "disk"):
        assert getattr(one, name) * count == pytest.approx(getattr(alone, name)), name
    assert (one.memory - COSTS.memory.service) * count == pytest.approx(alone.memory - COSTS.memory.service)
    assert (one.driver - everywhere(lake, count)) * count == pytest.approx(alone.driver - everywhere(lake, 1))
    # Every service lists the catalogs; all other calls are divided.
    lists = (count - 1) * (1 + 2 * lake.namespaces) / SERVICE.sweep_seconds
    assert one.catalog_calls - lists == pytest.approx(alone.catalog_calls)


@settings(deadline=None, max_examples=examples(60))
@given(lakes(), services, st.floats(1, 100))
def test_more_tables_cost_more(lake: Lake, count: int, factor: float) -> None:
    larger = replace(lake, classes=tuple(replace(each, tables=int(each.tables * factor)) for each in lake.classes))
    assert looks_of(larger, SERVICE) >= looks_of(lake, SERVICE) * (1 - 1e-9)
    before, after = load(lake, COSTS, SERVICE, count), load(larger, COSTS, SERVICE, count)
    for name in ("sweep_looks", "memory", "disk"):
        assert getattr(after, name) >= getattr(before, name) * (1 - 1e-9), name
    assert first_start(larger, COSTS, SERVICE, count).seconds >= first_start(lake, COSTS, SERVICE, count).seconds


@settings(deadline=None, max_examples=examples(60))
@given(lakes(), services)
def test_more_commits_cost_more(lake: Lake, count: int) -> None:
    # Without settling merges, whose number depends on how long a partition is idle.
    never = replace(SERVICE, settle_after_seconds=1e12)
    more = replace(lake, commits_per_hour=3 * lake.commits_per_hour)
    before, after = load(lake, COSTS, never, count), load(more, COSTS, never, count)
    for name in ("driver", "jvm", "task", "threads", "runs_at_once", "event_looks", "catalog_calls", "slots"):
        assert getattr(after, name) >= getattr(before, name), name
    assert after.requests.gets >= before.requests.gets
    assert bill(COSTS, PRICES, never, after).total >= bill(COSTS, PRICES, never, before).total


@settings(deadline=None, max_examples=examples(30))
@given(lakes())
def test_the_services_needed_suffice_and_one_fewer_does_not(lake: Lake) -> None:
    count = services_needed(lake, COSTS, SERVICE)
    if count is None:
        assert fullest(lake, COSTS, SERVICE, best_services(lake, COSTS, SERVICE)) > SERVICE.busy
        return
    limits = limits_of(lake, SERVICE, load(lake, COSTS, SERVICE, count))
    assert all(each.share <= SERVICE.busy for each in limits if divided(each))
    if count > 1:
        assert fullest(lake, COSTS, SERVICE, count - 1) > SERVICE.busy


@settings(deadline=None, max_examples=examples(20))
@given(st.integers(1, 200), st.floats(0.1, 20), st.integers(0, 1000))
def test_the_simulation_counts_every_event_once(tables: int, rate: float, seed: int) -> None:
    lake = Lake((TableClass("all", tables, 1.0),), 3600 * rate, 0.0)
    one = station(lake, COSTS, SERVICE, 1)
    found = simulate(one, 60.0, seed)
    assert found == simulate(one, 60.0, seed)
    assert found.counted <= found.events
    assert found.p50 <= found.p99 <= found.most
    if found.counted:
        assert found.p50 >= one.batch
    sweeps = int(60.0 / one.sweep) * tables
    assert found.looks <= found.events + sweeps


def test_arrivals_have_the_rate_and_the_tables_of_their_classes() -> None:
    lake = Lake((TableClass("one", 10, 0.5), TableClass("two", 30, 0.5)), 3600.0 * 20, 0.0)
    found = arrivals(station(lake, COSTS, SERVICE, 1), 500.0, random.Random(3))
    assert found == sorted(found)
    assert len(found) == pytest.approx(10_000, rel=0.05)
    assert sum(table < 10 for _, table in found) == pytest.approx(5_000, rel=0.1)
    assert {table for _, table in found} == set(range(40))


def test_a_group_without_services_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        load(Lake((TableClass("all", 1, 1.0),), 1.0, 0.0), COSTS, SERVICE, 0)
