"""What happens rarely: a first start. Closed formulas. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tests.benchmarks.scale.model import Lake, Service, UnitCosts


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
    one = costs.first_count(lake.manifests, lake.partitions)
    waits = lake.catalog_seconds + lake.store_seconds + one
    seconds = {
        "the driver's core": tables * one / services,
        "look threads": tables * waits / services / (service.looks_per_catalog * lake.catalogs),
        "the catalog": tables / lake.catalog_capacity,
    }
    bound = max(seconds, key=lambda each: seconds[each])
    return FirstStart(seconds[bound], bound, int(tables), 2 * tables * (1 + lake.manifests))
