"""What a group of services costs on a lake, from unit costs: closed formulas. Pure.

Every service reads the whole commit topic; tables are divided evenly among the services (rendezvous hashing). So the
cost of an event falls on each service, the cost of a look on one. All rates are averages over an hour; queues and
bursts are `queueing.py`'s. Seconds are processor seconds of one core unless a name says otherwise; sizes are bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from compactor.iceberg.tables import FileSizes
from compactor.planning.budget import CATALOG_CALLS, PART_BYTES
from compactor.planning.tiered_policy import TieredPolicy
from compactor.settings.policy import PolicyValues
from compactor.whatif.simulation import regular, replay
from streaming.ledger.catalog_tables import PAUSE_SECONDS
from streaming.ledger.rhythm import RARELY

HOUR = 3600.0
DAY = 24 * HOUR
MONTH_HOURS = 730.0
GIGABYTE = 1e9
MEBIBYTE = 1024 * 1024
ARRIVALS = 2_000
"""Commits of one partition that are replayed through the policy."""
MOST_SERVICES = 4_096


@dataclass(frozen=True)
class EventCosts:
    """One event: in JVM and decoding worker, its row in the driver, whose table it is (once, and for each member of the
    group), and, of an event of a table of the service's own, the inbox.
    """

    on_spark: float
    row: float
    owner: float
    owner_member: float
    inbox: float

    def whose(self, services: int) -> float:
        """Finding out whose table an event is."""
        return self.owner + self.owner_member * services


@dataclass(frozen=True)
class BatchCosts:
    """One micro-batch, whatever it holds."""

    driver: float
    spark: float


@dataclass(frozen=True)
class LookCosts:
    """A look that the catalog answers with "not modified"; one that finds a commit, by the number of snapshots in the
    metadata; each further commit that the same look finds.
    """

    unchanged: float
    new_snapshot: Mapping[int, float]
    further_snapshot: float

    def of(self, snapshots: float) -> float:
        """A look that finds one commit, in a table that keeps so many snapshots: on straight lines between figures."""
        pairs = list(pairwise(sorted(self.new_snapshot.items())))
        (few, cost), (more, higher) = next((pair for pair in pairs if snapshots <= pair[1][0]), pairs[-1])
        return max(0.0, cost + (snapshots - few) * (higher - cost) / (more - few))


@dataclass(frozen=True)
class CountCosts:
    """The parts of a first count."""

    table: float
    manifest: float
    partition: float

    def of(self, manifests: float, partitions: float) -> float:
        """The first count of one table."""
        return self.table + manifests * self.manifest + partitions * self.partition


@dataclass(frozen=True)
class DiskCosts:
    """The ledger's state."""

    table: float
    partition: float


@dataclass(frozen=True)
class WorkCosts:
    """A rewrite with its plan, Spark job and commit, without outputs and bytes; or each output of it."""

    driver: float
    jvm: float
    workers: float


@dataclass(frozen=True)
class SpliceCosts:
    """A splice inside the store: seconds and requests of an input, requests of an output."""

    file: float
    gets_file: float
    copies_file: float
    gets_output: float
    puts_output: float


@dataclass(frozen=True)
class MemoryCosts:
    """On the driver: a table, a partition with debt, a service without tables; and one Python worker of a rewrite."""

    table: float
    partition: float
    service: float
    slot: float


@dataclass(frozen=True)
class EncodeCosts:
    """Decoding and encoding one byte."""

    byte: float


@dataclass(frozen=True)
class UnitCosts:
    """Processor seconds, bytes and requests of one of each. The file `unit_costs.json` says where each is from: there,
    the field of a group is named `group_field`.

    `driver`: in the service's Python process, whose threads share one core (Python's lock). `spark`, `jvm`, `workers`:
    in its JVM and its Python workers, on other cores.
    """

    event: EventCosts
    batch: BatchCosts
    look: LookCosts
    first_count: CountCosts
    run: WorkCosts
    run_output: WorkCosts
    splice: SpliceCosts
    memory: MemoryCosts
    disk: DiskCosts
    encode: EncodeCosts


@dataclass(frozen=True)
class Prices:
    """List prices in US dollars: inputs, not measurements. The file `prices.json` has their date and source."""

    core_hour: float
    core_memory: float
    put_1000: float
    get_1000: float
    catalog_calls_million: float


@dataclass(frozen=True)
class TableClass:
    """Tables that are committed to equally often: how many, and which part of all commits is theirs."""

    name: str
    tables: int
    commits: float


@dataclass(frozen=True)
class Lake:
    """What happens on the lake.

    Attributes:
        commits_per_hour: Writers' commits to all tables; each publishes one event.
        partitions: Of a table; all with debt, which is the worst for memory.
        commit_partitions: Partitions that a commit writes to, one file each.
        file_bytes: Size of such a file.
        snapshots: That a table's metadata keeps.
        manifests: Of a table.
        encoded: How often a byte is decoded and encoded over its life; all other rewrites of it are copies.
        catalog_capacity: Calls a second that all catalogs together answer.
        catalog_seconds, store_seconds: Wall time of one catalog call, and of the reads of one look.
        copy_bytes_second: What one slot copies inside the store, wall time: an assumption.
        run_seconds: Wall time of a small run, from plan to commit: an assumption until case h is measured.
        batch_seconds: Wall time of a small micro-batch on an idle machine: an assumption until case a is measured.
        catalogs: Number of catalogs; each has its own look threads.
    """

    classes: tuple[TableClass, ...]
    commits_per_hour: float
    bytes: float
    partitions: int = 20
    commit_partitions: int = 2
    file_bytes: int = 512 * 1024
    target_bytes: int = 512 * MEBIBYTE
    snapshots: int = 100
    manifests: int = 30
    encoded: float = 1.0
    catalog_capacity: float = 2_000.0
    catalog_seconds: float = 0.010
    store_seconds: float = 0.060
    copy_bytes_second: float = 100e6
    run_seconds: float = 3.0
    batch_seconds: float = 0.5
    catalogs: int = 1
    namespaces: int = 100

    @property
    def tables(self) -> int:
        return sum(each.tables for each in self.classes)

    def rate(self, kind: TableClass) -> float:
        """Commits a second to one table of this class."""
        return self.commits_per_hour / HOUR * kind.commits / kind.tables if kind.tables else 0.0


@dataclass(frozen=True)
class Service:
    """Settings of each service, and the pod that it runs in. `busy`: how full a resource may be on average."""

    trigger_seconds: float = 1.0
    sweep_seconds: float = 300.0
    looks_per_catalog: int = 4
    concurrent_runs: int = 16
    settle_after_seconds: float = 600.0
    growth: float = 8.0
    memory: float = 8 * GIGABYTE
    busy: float = 0.6


@dataclass(frozen=True)
class Rewrites:
    """Rewrites of all tables, by second."""

    runs: float = 0.0
    outputs: float = 0.0
    files: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Rewrites) -> Rewrites:
        return Rewrites(
            self.runs + other.runs, self.outputs + other.outputs, self.files + other.files, self.bytes + other.bytes
        )


@dataclass(frozen=True)
class Requests:
    """Requests to the store a second. The last four cost as much as a PUT, the first as a GET."""

    gets: float
    copies: float
    outputs: float
    encoded_parts: float
    metadata: float

    @property
    def puts(self) -> float:
        return self.copies + self.outputs + self.encoded_parts + self.metadata


@dataclass(frozen=True)
class Load:
    """What the lake asks of `services` services together, and of one of them. Rates are by second.

    Of one service: `driver`: cores of Python in its process, at most one; `task`: cores of its query's only task;
    `jvm`: cores of its JVM and its query; `threads`: look threads of a catalog; `runs_at_once`; `memory`; `disk`.
    Of all: looks, calls, requests, rewrites and `slots`, the cores of all executors.
    """

    services: int
    driver: float
    task: float
    jvm: float
    threads: float
    runs_at_once: float
    memory: float
    disk: float
    event_looks: float
    sweep_looks: float
    catalog_calls: float
    requests: Requests
    rewrites: Rewrites
    slots: float


def rewrites_of(lake: Lake, service: Service) -> Rewrites:
    """What the policy rewrites, by a replay of one partition of each class.

    Every rewrite of a partition counts as a run of its own, which is the most there can be: a run takes all partitions
    of its table that are due.
    """
    total = Rewrites()
    for kind in lake.classes:
        rate = lake.rate(kind)
        if not rate:
            continue
        interval = lake.partitions / (rate * lake.commit_partitions)
        idle = interval > service.settle_after_seconds
        one = _replayed(lake.file_bytes, lake.target_bytes, service.growth, idle=idle)
        files = rate * kind.tables * lake.commit_partitions
        total += Rewrites(files * one.runs, files * one.outputs, files * one.files, files * one.bytes)
    return total


@cache
def _replayed(size: int, target: int, growth: float, *, idle: bool) -> Rewrites:
    """For each file that a writer adds to one partition. `idle`: each is the last one for long enough to settle."""
    values = PolicyValues(growth=growth)
    sizes = FileSizes(target, int(target * values.min_file_size_ratio))
    settle_after = values.settle_after_seconds
    arrivals = regular(ARRIVALS, [size], 2 * settle_after if idle else settle_after / 2)
    outcome = replay(arrivals, TieredPolicy(values, sizes), sizes.is_small, settle_after=settle_after)
    return Rewrites(
        outcome.rewrites / ARRIVALS,
        outcome.files_written / ARRIVALS,
        outcome.files_rewritten / ARRIVALS,
        (outcome.bytes_rewritten + outcome.bytes_settled) / ARRIVALS,
    )


def looks_of(lake: Lake, service: Service) -> float:
    """Looks a second that events cause: a table that several events name within a batch is looked at once."""
    window = max(service.trigger_seconds, PAUSE_SECONDS)
    return sum(kind.tables * -math.expm1(-lake.rate(kind) * window) / window for kind in lake.classes)


def beside_looks(lake: Lake, costs: UnitCosts, service: Service, services: int) -> float:
    """Cores of Python that one service's driver needs for all but the looks of events and sweeps."""
    events, rewrites = lake.commits_per_hour / HOUR, rewrites_of(lake, service)
    own = (
        rewrites.runs * (costs.look.of(lake.snapshots) + costs.run.driver) + rewrites.outputs * costs.run_output.driver
    )
    return (
        events * (costs.event.row + costs.event.whose(services))
        + costs.batch.driver * batches_second(service)
        + (events * costs.event.inbox + own) / services
    )


def batches_second(service: Service) -> float:
    """Micro-batches a second."""
    return 1 / service.trigger_seconds


def load(lake: Lake, costs: UnitCosts, service: Service, services: int) -> Load:
    """The load of a group of so many services."""
    if services < 1:
        raise ValueError("a group has at least one service")
    events, share = lake.commits_per_hour / HOUR, 1 / services
    rewrites = rewrites_of(lake, service)
    event_looks = looks_of(lake, service)
    sweep_looks = lake.tables / (RARELY * service.sweep_seconds)  # events announce every commit
    looks = event_looks + rewrites.runs  # a service looks at its own commits too
    one_look, further = costs.look.of(lake.snapshots), max(0.0, events - event_looks)
    core = event_looks * one_look + further * costs.look.further_snapshot + sweep_looks * costs.look.unchanged
    waits = looks * (lake.catalog_seconds + lake.store_seconds) + sweep_looks * lake.catalog_seconds
    lists = services * (1 + 2 * lake.namespaces) / service.sweep_seconds
    return Load(
        services=services,
        driver=beside_looks(lake, costs, service, services) + share * core,
        task=events * costs.event.on_spark,
        jvm=events * costs.event.on_spark
        + costs.batch.spark * batches_second(service)
        + share * rewrites.runs * costs.run.jvm,
        threads=share * (waits + core + rewrites.runs * one_look) / lake.catalogs,
        runs_at_once=share * rewrites.runs * lake.run_seconds,
        memory=costs.memory.service
        + share * lake.tables * (costs.memory.table + lake.partitions * costs.memory.partition),
        disk=share * lake.tables * (costs.disk.table + lake.partitions * costs.disk.partition),
        event_looks=event_looks,
        sweep_looks=sweep_looks,
        catalog_calls=looks + sweep_looks + lists + CATALOG_CALLS * rewrites.runs,
        requests=requests_of(lake, costs, rewrites, looks + further),
        rewrites=rewrites,
        slots=slots_of(lake, costs, rewrites),
    )


def encoded_bytes(lake: Lake, rewrites: Rewrites) -> float:
    """Bytes a second that are decoded and encoded; the others are copied."""
    arriving = lake.commits_per_hour / HOUR * lake.commit_partitions * lake.file_bytes
    return min(rewrites.bytes, lake.encoded * arriving)


def requests_of(lake: Lake, costs: UnitCosts, rewrites: Rewrites, commits_read: float) -> Requests:
    """What looks and rewrites ask of the store.

    A commit is read as a manifest list and a manifest, each with a HEAD and a GET (PyArrow asks for the size first). A
    run reads the same twice and writes two manifests, a list and the metadata.
    """
    encoded = encoded_bytes(lake, rewrites)
    copied = 1 - encoded / rewrites.bytes if rewrites.bytes else 0.0
    files, outputs = rewrites.files, rewrites.outputs
    return Requests(
        gets=4 * commits_read + 8 * rewrites.runs + costs.splice.gets_file * files + costs.splice.gets_output * outputs,
        copies=costs.splice.copies_file * files * copied,
        outputs=costs.splice.puts_output * outputs,
        encoded_parts=encoded / PART_BYTES,
        metadata=4 * rewrites.runs,
    )


def slots_of(lake: Lake, costs: UnitCosts, rewrites: Rewrites) -> float:
    """Slots in use: time of executors' cores, and of those that wait for the store to copy."""
    encoded = encoded_bytes(lake, rewrites)
    return (
        encoded * costs.encode.byte
        + (rewrites.bytes - encoded) / lake.copy_bytes_second
        + rewrites.files * costs.splice.file
        + rewrites.runs * costs.run.workers
        + rewrites.outputs * (costs.run_output.jvm + costs.run_output.workers)
    )


@dataclass(frozen=True)
class Limit:
    """One resource of one service (or of all): how much of it is used, and what gives more of it."""

    resource: str
    used: float
    of: float
    remedy: str

    @property
    def share(self) -> float:
        return self.used / self.of if self.of else math.inf


def limits_of(lake: Lake, service: Service, needed: Load) -> list[Limit]:
    """Every resource, the fullest first."""
    found = [
        Limit("driver: one core of Python", needed.driver, 1.0, "one more service (`service.shard`)"),
        Limit("query: one task decodes all events", needed.task, 1.0, "fewer events: no setting, no service helps"),
        Limit("look threads", needed.threads, service.looks_per_catalog, "`service.looks_per_catalog`"),
        Limit("runs at once", needed.runs_at_once, service.concurrent_runs, "`service.concurrent_runs`"),
        Limit(
            "memory of a service, GB", needed.memory / GIGABYTE, service.memory / GIGABYTE,
            "memory of the pod; one more service",
        ),
        Limit(
            "catalog", needed.catalog_calls, lake.catalog_capacity,
            "fewer runs: `policy.settle_after_seconds`, `limits.catalog_calls_per_hour`; `service.sweep_seconds`",
        ),
    ]  # fmt: skip
    return sorted(found, key=lambda each: -each.share)


def divided(limit: Limit) -> bool:
    """Whether more services leave each of them less of it to do."""
    return limit.resource not in {"query: one task decodes all events", "catalog"}


def services_needed(lake: Lake, costs: UnitCosts, service: Service) -> int | None:
    """The fewest services of which none is fuller than `busy`; None: no number suffices."""

    def suffices(services: int) -> bool:
        return fullest(lake, costs, service, services) <= service.busy

    few, many = 0, 1
    while not suffices(many):
        few, many = many, 2 * many
        if many > MOST_SERVICES:
            return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if suffices(middle) else (middle, many)
    return many


def fullest(lake: Lake, costs: UnitCosts, service: Service, services: int) -> float:
    """How full the fullest resource of one service is, of those that services divide."""
    limits = limits_of(lake, service, load(lake, costs, service, services))
    return max(each.share for each in limits if divided(each))


def best_services(lake: Lake, costs: UnitCosts, service: Service) -> int:
    """Where no number suffices: the power of two whose services are least full."""
    counts = [2**power for power in range(MOST_SERVICES.bit_length())]
    return min(counts, key=lambda count: fullest(lake, costs, service, count))


@dataclass(frozen=True)
class Bill:
    """Dollars per month. Storage is not in it: the lake is stored with and without firnline."""

    services: float
    executors: float
    requests: float
    catalog: float

    @property
    def total(self) -> float:
        return self.services + self.executors + self.requests + self.catalog


def bill(costs: UnitCosts, prices: Prices, service: Service, needed: Load) -> Bill:
    """What the load costs at list prices."""
    cores = service_cores(prices, service, needed)
    month = MONTH_HOURS * HOUR
    return Bill(
        services=needed.services * cores * prices.core_hour * MONTH_HOURS,
        executors=executor_cores(costs, prices, service, needed) * prices.core_hour * MONTH_HOURS,
        requests=month * (needed.requests.gets * prices.get_1000 + needed.requests.puts * prices.put_1000) / 1000,
        catalog=month * needed.catalog_calls * prices.catalog_calls_million / 1e6,
    )


def service_cores(prices: Prices, service: Service, needed: Load) -> int:
    """Cores of one service's pod: for its Python and its JVM; and as many as its memory comes with."""
    work = (needed.driver + needed.jvm) / service.busy
    return max(2, math.ceil(work), math.ceil(needed.memory / prices.core_memory))


def executor_cores(costs: UnitCosts, prices: Prices, service: Service, needed: Load) -> int:
    """Cores of all executors: one for each slot, at most `busy`; more if the slots' memory needs them."""
    slots = math.ceil(needed.slots / service.busy)
    return max(slots, math.ceil(slots * costs.memory.slot / prices.core_memory))
