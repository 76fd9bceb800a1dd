"""What happens rarely: a first start, a lake that was never compacted, a lost service. Closed formulas. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from compactor.planning.budget import PART_BYTES
from tests.benchmarks.scale.model import HOUR, Lake, Prices, Service, UnitCosts, load


@dataclass(frozen=True)
class FirstStart:
    """Counting every table once: seconds of wall time, catalog calls, reads of the store."""

    seconds: float
    bound: str
    catalog_calls: int
    gets: float


def first_start(
    lake: Lake, costs: UnitCosts, service: Service, services: int, tables: float | None = None
) -> FirstStart:
    """The first count of all tables, or of so many of them, beside nothing else."""
    tables = lake.tables if tables is None else tables
    one = costs.first_count(lake.manifests, lake.partitions)
    waits = lake.catalog_seconds + lake.store_seconds + one
    seconds = {
        "the driver's core": tables * one / services,
        "look threads": tables * waits / services / (service.looks_per_catalog * lake.catalogs),
        "the catalog": tables / lake.catalog_capacity,
    }
    bound = max(seconds, key=lambda each: seconds[each])
    return FirstStart(seconds[bound], bound, int(tables), 2 * tables * (1 + lake.manifests))


@dataclass(frozen=True)
class Backlog:
    """Merging all bytes of a lake that was never compacted, once: files, processor seconds, requests, dollars."""

    files: float
    counting_seconds: float
    core_seconds: float
    gets: float
    puts: float
    dollars: float


def backlog(lake: Lake, costs: UnitCosts, prices: Prices) -> Backlog:
    """All bytes lie in files as writers add them. A partition's sum reaches the target, so each byte moves once."""
    files, outputs = lake.bytes / lake.file_bytes, lake.bytes / lake.target_bytes
    work = lake.bytes * costs.encode_byte + files * costs.splice_file
    work += outputs * (costs.run_output_jvm + costs.run_output_workers)
    gets, puts = costs.splice_gets_file * files, lake.bytes / PART_BYTES + costs.splice_puts_output * outputs
    paid = work / HOUR * prices.core_hour + (gets * prices.get_1000 + puts * prices.put_1000) / 1000
    return Backlog(files, files * costs.file_entry, work, gets, puts, paid)


@dataclass(frozen=True)
class Lost:
    """A service is gone: seconds until its tables are others', and until those have counted them."""

    silent_seconds: float
    counting_seconds: float
    driver_after: float


def lost_service(lake: Lake, costs: UnitCosts, service: Service, services: int, silent_seconds: float) -> Lost | None:
    """One of several services ends without a word. None: it was the only one."""
    if services < 2:
        return None
    after = load(lake, costs, service, services - 1)
    spare = max(0.0, 1.0 - after.driver)
    work = first_start(lake, costs, service, services - 1, lake.tables / services)
    if spare == 0.0:
        return Lost(silent_seconds, math.inf, after.driver)
    return Lost(silent_seconds, work.seconds / spare, after.driver)
