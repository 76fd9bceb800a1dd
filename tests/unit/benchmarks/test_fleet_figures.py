"""How `make bench-fleet` reads calls and events: kinds of calls, latency of each event, percentiles."""

from __future__ import annotations

import math

import pytest

from tests.benchmarks.fleet.catalog_calls import Call
from tests.benchmarks.fleet.catalog_proxy import kind_of
from tests.benchmarks.fleet.commits import Commit
from tests.benchmarks.fleet.latency import Spread, latencies
from tests.benchmarks.fleet.site import Published

TABLE = ("db0", "t1")


@pytest.mark.parametrize(
    ("method", "target", "kind", "table"),
    [
        ("GET", "/v1/config?warehouse=x", "config", ""),
        ("GET", "/v1/namespaces", "list namespaces", ""),
        ("GET", "/v1/namespaces?parent=db0", "list namespaces", ""),
        ("GET", "/v1/namespaces/db0/tables", "list tables", ""),
        ("GET", "/v1/namespaces/db0/tables/t1?snapshots=all", "load table", "db0.t1"),
        ("HEAD", "/v1/some/prefix/namespaces/a%1Fb/tables/t1", "check table", "a.b.t1"),
        ("POST", "/v1/namespaces/db0/tables/t1", "commit", "db0.t1"),
        ("POST", "/v1/namespaces/db0/tables/t1/metrics", "report metrics", "db0.t1"),
        ("POST", "/v1/transactions/commit", "POST commit", ""),
    ],
)
def test_calls_have_a_kind(method: str, target: str, kind: str, table: str) -> None:
    assert kind_of(method, target) == (kind, table)


def published(number: int, at: float) -> Published:
    return Published(Commit(TABLE, number, 100 + number, f"m{number}"), at)


def update(number: int, at: float, catalog: str = "fleet") -> dict[str, object]:
    return {"table": f"{catalog}.db0.t1", "snapshot_id": 100 + number, "at": at}


def test_an_event_is_counted_by_the_first_look_at_its_commit_or_a_later_one() -> None:
    events = [published(0, 10.0), published(1, 11.0), published(2, 12.0), published(3, 20.0)]
    updates = [update(0, 10.5, "other"), update(-5, 10.6), update(1, 12.5), update(1, 13.0), update(2, 15.0)]
    times = [(9.0, 9.1), (9.9, 10.1), (12.0, 12.1)]
    calls = [Call(started, answered, 200, "load table", "db0.t1") for started, answered in times]
    found = latencies(events, updates, calls, until=30.0)
    assert found.event_to_ledger == Spread(4, 2.5, 10.0, 10.0, 10.0)
    assert found.missing == 1
    assert found.event_to_catalog.max == 2.0
    assert found.catalog_to_ledger.p50 == pytest.approx(0.4)


def test_percentiles_are_measured_values() -> None:
    assert Spread.of(range(1, 101)) == Spread(100, 50, 95, 99, 100)
    assert math.isnan(Spread.of([]).p50)
