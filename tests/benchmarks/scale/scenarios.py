"""The questions of docs/scale.md about the reference lake. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from tests.benchmarks.scale.model import (
    HOUR,
    Bill,
    Lake,
    Limit,
    Load,
    Prices,
    Service,
    TableClass,
    UnitCosts,
    best_services,
    bill,
    divided,
    executor_cores,
    fullest,
    limits_of,
    load,
    service_cores,
    services_needed,
)
from tests.benchmarks.scale.queueing import Latency, simulate, station

SIMULATED_SECONDS = 300.0
PETABYTE = 1e15


def reference(tables: int = 100_000, commits_per_hour: float = 1e6, size: float = PETABYTE) -> Lake:
    """One table in ten gets nine commits in ten; the other tables get one commit in an hour."""
    busy = tables // 10
    return Lake((TableClass("busy", busy, 0.9), TableClass("slow", tables - busy, 0.1)), commits_per_hour, size)


@dataclass(frozen=True)
class FirstStart:
    """Counting every table once: seconds of wall time, catalog calls, reads of the store."""

    seconds: float
    bound: str
    catalog_calls: int
    gets: float


def first_start(lake: Lake, costs: UnitCosts, service: Service, services: int) -> FirstStart:
    """The first count of all tables, beside nothing else."""
    tables = lake.tables
    one = costs.first_count.of(lake.manifests, lake.partitions)
    waits = lake.catalog_seconds + lake.store_seconds + one
    seconds = {
        "the driver's core": tables * one / services,
        "look threads": tables * waits / services / (service.looks_per_catalog * lake.catalogs),
        "the catalog": tables / lake.catalog_capacity,
    }
    bound = max(seconds, key=lambda each: seconds[each])
    return FirstStart(seconds[bound], bound, int(tables), 2 * tables * (1 + lake.manifests))


@dataclass(frozen=True)
class Answer:
    """One lake with one choice of settings.

    `suffices`: whether no resource that services divide is fuller than `Service.busy`. If no number of services does
    that, the answer is for the number that comes nearest.
    """

    name: str
    suffices: bool
    lake: Lake
    service: Service
    load: Load
    limits: list[Limit]
    bill: Bill
    cores_each: int
    executor_cores: int
    latency: Latency
    first: FirstStart

    @property
    def first_limit(self) -> Limit:
        """The fullest resource."""
        return self.limits[0]

    @property
    def first_divided(self) -> Limit:
        """The fullest of those that more services divide: it sets their number."""
        return next(each for each in self.limits if divided(each))

    def document(self) -> dict[str, Any]:
        """For JSON."""
        tree = asdict(self)
        tree["limits"] = [{**asdict(each), "share": each.share} for each in self.limits]
        tree["bill"]["total"] = self.bill.total
        return tree


def answer(
    name: str, lake: Lake, costs: UnitCosts, prices: Prices, service: Service, services: int | None = None
) -> Answer:
    """Everything about one choice. `services`: None for the fewest that suffice."""
    count = services or services_needed(lake, costs, service) or best_services(lake, costs, service)
    needed = load(lake, costs, service, count)
    return Answer(
        name=name,
        suffices=fullest(lake, costs, service, count) <= service.busy,
        lake=lake,
        service=service,
        load=needed,
        limits=limits_of(lake, service, needed),
        bill=bill(costs, prices, service, needed),
        cores_each=service_cores(prices, service, needed),
        executor_cores=executor_cores(costs, prices, service, needed),
        latency=simulate(station(lake, costs, service, count), SIMULATED_SECONDS),
        first=first_start(lake, costs, service, count),
    )


def bench_fleet_case_a(costs: UnitCosts) -> Latency:
    """The model's answer for what `make bench-fleet` measures: 30 commits a second over 100 of 1,000 tables, alone."""
    classes = (TableClass("committed to", 100, 1.0), TableClass("others", 900, 0.0))
    lake = Lake(classes, 30 * HOUR, 0.0, snapshots=48, catalog_seconds=0.015, store_seconds=0.002)
    return simulate(replace(station(lake, costs, Service(), 1), background=0.0), SIMULATED_SECONDS)
