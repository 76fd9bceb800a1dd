"""Planning a table of a million files, beside Iceberg's Java and Spark's `files` table, in one run.

The metadata is written by Iceberg's own writers, with 20 columns of statistics; the data files do not exist. "Cold"
means that nothing of the table is decoded yet; its bytes are in the page cache, for everybody alike. Medians.

    python -m tests.benchmarks.bench_planning [--manifests 1000] [--rounds 5] [--delay-ms 50]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from compactor.events import Event, ManifestsRead
from compactor.manifests.cache import ManifestCache
from compactor.manifests.disk import ManifestDisk
from compactor.planning.plan_table import Request, TablePlan, plan_table
from compactor.settings.policy import PolicyValues
from streaming.garbage_collection import collect_rarely
from tests.benchmarks.harness import bench_folder, medians, options_of, rounds, show, timed
from tests.benchmarks.planning_table import PlanningTable
from tests.services.counting_proxy import counting_proxy
from tests.services.s3_server import s3_server, s3_source

FILES = 1000
PARTITIONS = 1000
SMALL_EVERY = 100  # of the partitions: where there is something to do
NEW_MANIFESTS = 10
MEMORY = 512 * 1024 * 1024
S3_MANIFESTS = 100
WARM_ROUNDS = 3  # for each cold one: a tenth of a second long, so that any disturbance shows
REQUEST = Request(explained=False)


@dataclass
class Reads:
    """Listens to a cache."""

    last: ManifestsRead | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, ManifestsRead):
            self.last = event


def plan(table: PlanningTable, cache: ManifestCache, request: Request = REQUEST) -> TablePlan:
    """From the catalog to the groups."""
    return plan_table(table.view, PolicyValues(), cache, request)


def cold(table: PlanningTable, count: int, console: Console) -> float:
    """Everybody in turn, round by round; returns firnline's seconds."""
    entries = table.manifests * FILES
    work: dict[str, Callable[[], object]] = {
        "firnline plan": lambda: plan(table, ManifestCache(MEMORY)),
        "Iceberg Java planFiles": table.java_plan,
        "Spark files table": table.spark_files,
    }
    middle = medians(rounds(work, count))
    ours = middle["firnline plan"]
    rows = [(name, each, f"{entries / each:,.0f}", each / ours) for name, each in middle.items()]
    show(console, f"{entries:,} entries", ("cold", "seconds", "entries/s", "firnline is faster by"), rows)
    console.print("goals: Java 1, Spark 1")
    return ours


def warm(table: PlanningTable, count: int, folder: Path, cold_seconds: float, console: Console) -> None:
    """After one more commit of ten manifests; after nothing; after a restart with the disk cache."""
    reads = Reads()
    disk = ManifestDisk(folder / "kept", 4 * MEMORY)
    cache = ManifestCache(MEMORY, reads, disk=disk)
    plan(table, cache)
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(WARM_ROUNDS * count):
        table.append(NEW_MANIFESTS, FILES, scattered=False, small_every=SMALL_EVERY)
        found[f"after a commit of {NEW_MANIFESTS} manifests (goal 5 %)"].append(timed(plan, table, cache)[0])
        assert reads.last is not None
        assert reads.last.misses == NEW_MANIFESTS
        found["nothing new: the fixed cost"].append(timed(plan, table, cache)[0])
        cache.flush()  # as a process that ends does
        restarted, _ = timed(lambda: plan(table, ManifestCache(MEMORY, reads, disk=disk)))
        found["after a restart, from the disk cache (goal 10 %)"].append(restarted)
        assert reads.last.misses == 0
    rows = [(name, f"{each:.3f}", f"{each / cold_seconds:.1%}") for name, each in medians(found).items()]
    show(console, "", ("warm", "seconds", "of cold"), rows)


def one_partition(table: PlanningTable, console: Console) -> None:
    """A filter on one of 1,000 partitions."""
    day, bucket = "2024-01-03", 5
    user = next(number for number in range(10_000) if table.bucket_of(number) == bucket)
    where = f"ts >= '{day} 00:00:00' AND ts < '{day} 23:00:00' AND user_id = {user}"
    made = plan(table, ManifestCache(MEMORY), Request(where=where, force=True))
    total = sum(manifest.manifest_length for manifest in table.view.manifests())
    read = sum(each.bytes_read for each in made.reads)
    misses = sum(each.misses for each in made.reads)
    console.print(
        f"one partition of {PARTITIONS:,}: {misses} of {len(table.view.manifests()):,} manifests, "
        f"{read:,} of {total:,} bytes ({read / total:.2%}), {made.seconds:.3f} s"
    )


def far_away(table: PlanningTable, folder: Path, delay: float, console: Console) -> None:
    """100 manifests in S3, every request delayed: one after the other, and as the cache reads them."""
    folder.mkdir()
    with s3_server(folder) as server, counting_proxy(*server.address, delay_seconds=delay) as wire:
        behind = server.behind(wire.endpoint)
        view = table.in_s3(behind, server, S3_MANIFESTS)
        manifests = view.manifests()
        serial, _ = timed(lambda: [view.io.new_input(each.manifest_path).open().read() for each in manifests])
        ours, _ = timed(lambda: ManifestCache(MEMORY).read(view, manifests))
    console.print(
        f"{s3_source()}, {delay * 1000:.0f} ms a request: {len(manifests)} manifests read one after the other "
        f"{serial:.2f} s, by firnline and decoded {ours:.2f} s ({ours / serial:.1%}; goal 10 %)"
    )


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--manifests", type=int, default=1000, help=f"of {FILES:,} files each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--delay-ms", type=float, default=50)
    options = parser.parse_args()
    with bench_folder(options.folder) as (folder, console):
        table = PlanningTable.make(folder, PARTITIONS)
        taken, _ = timed(lambda: table.append(options.manifests, FILES, scattered=False, small_every=SMALL_EVERY))
        size = sum(manifest.manifest_length for manifest in table.view.manifests())
        console.print(f"{options.manifests:,} manifests, {size / 1e6:,.0f} MB, written in {taken:.0f} s")
        collect_rarely()  # as the command line does
        cold_seconds = cold(table, options.rounds, console)
        warm(table, options.rounds, folder, cold_seconds, console)
        one_partition(table, console)
        far_away(table, folder / "s3", options.delay_ms / 1000, console)


if __name__ == "__main__":
    main()
