"""The questions of docs/scale.md: the reference lake, its variations, and each setting one at a time. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from streaming.kafka.membership import HEARTBEAT_SECONDS, SESSION_SECONDS, SETTLE_SECONDS
from tests.benchmarks.scale.incidents import Backlog, FirstStart, Lost, backlog, first_start, lost_service
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
SILENT_SECONDS = SESSION_SECONDS + HEARTBEAT_SECONDS + SETTLE_SECONDS
HOT_COMMITS_SECOND = 10.0
PETABYTE = 1e15


def reference(tables: int = 100_000, commits_per_hour: float = 1e6, size: float = PETABYTE) -> Lake:
    """One table in ten gets nine commits in ten; the other tables get one commit in an hour."""
    busy = tables // 10
    return Lake((TableClass("busy", busy, 0.9), TableClass("slow", tables - busy, 0.1)), commits_per_hour, size)


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
    backlog: Backlog
    lost: Lost | None

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
        backlog=backlog(lake, costs, prices),
        lost=lost_service(lake, costs, service, count, SILENT_SECONDS),
    )


def variations(lake: Lake) -> list[tuple[str, Lake]]:
    """What happens when the lake grows."""
    larger = tuple(replace(each, tables=10 * each.tables) for each in lake.classes)
    return [
        ("10 times the commits", replace(lake, commits_per_hour=10 * lake.commits_per_hour)),
        ("10 times the tables, as many commits", replace(lake, classes=larger, bytes=10 * lake.bytes)),
        ("commits to one partition, not two", replace(lake, commit_partitions=1)),
        ("files of 8 MiB, not 0.5", replace(lake, file_bytes=16 * lake.file_bytes)),
        ("1,000 snapshots kept, not 100", replace(lake, snapshots=1000)),
    ]


def settings(service: Service) -> list[tuple[str, Service]]:
    """Each setting one at a time."""
    return [
        ("`service.trigger_seconds` 1 → 10", replace(service, trigger_seconds=10.0)),
        ("`service.sweep_seconds` 300 → 60", replace(service, sweep_seconds=60.0)),
        ("`service.sweep_seconds` 300 → 1800", replace(service, sweep_seconds=1800.0)),
        ("`service.looks_per_catalog` 4 → 1", replace(service, looks_per_catalog=1)),
        ("`service.looks_per_catalog` 4 → 16", replace(service, looks_per_catalog=16)),
        ("`service.concurrent_runs` 16 → 4", replace(service, concurrent_runs=4)),
        ("`service.concurrent_runs` 16 → 48", replace(service, concurrent_runs=48)),
        ("`policy.settle_after_seconds` 600 → 86400", replace(service, settle_after_seconds=86_400.0)),
        ("`policy.growth` 8 → 4", replace(service, growth=4.0)),
    ]


@dataclass(frozen=True)
class Hot:
    """One table with many commits a second beside the reference lake. Only its own service notices it.

    `driver`: cores of Python of that service, `alone`: of which for this table; `commits_a_look`.
    """

    commits_second: float
    commits_a_look: float
    alone: float
    driver: float
    latency: Latency


def hot_table(lake: Lake, costs: UnitCosts, service: Service, services: int) -> Hot:
    """The service that owns the hot table."""
    rate = HOT_COMMITS_SECOND
    looks = 1 / service.trigger_seconds
    alone = looks * costs.look(lake.snapshots) + (rate - looks) * costs.look_further_snapshot
    one = station(lake, costs, service, services)
    hot = replace(one, classes=(*one.classes, (1, rate)))
    return Hot(
        commits_second=rate,
        commits_a_look=rate / looks,
        alone=alone,
        driver=load(lake, costs, service, services).driver + alone,
        latency=simulate(hot, SIMULATED_SECONDS),
    )


def by_services(lake: Lake, costs: UnitCosts, service: Service, counts: tuple[int, ...]) -> list[Load]:
    """The load of one service in groups of several sizes."""
    return [load(lake, costs, service, count) for count in counts]


def bench_fleet_case_a(costs: UnitCosts) -> Latency:
    """The model's answer for what `make bench-fleet` measures: 30 commits a second over 100 of 1,000 tables, alone."""
    classes = (TableClass("committed to", 100, 1.0), TableClass("others", 900, 0.0))
    lake = Lake(classes, 30 * HOUR, 0.0, snapshots=48, catalog_seconds=0.015, store_seconds=0.002)
    return simulate(replace(station(lake, costs, Service(), 1), background=0.0), SIMULATED_SECONDS)
