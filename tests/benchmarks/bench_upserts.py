"""Measure one hour of upserts, compressed in time: how many commits do rewrites make, and what do they achieve?

A writer commits a checkpoint every `--every` seconds of simulated time, as a Flink job does (upsert_writer.py). After
each one the parts of the service decide at that time: ledger, board, policy, planner, rewriter (replayed_table.py).
Snapshots carry the simulated time, so rules by age and idleness hold; no partition is ever idle, since every
checkpoint touches all of them. A rewrite takes no simulated time: no conflicts are measured. Manifests are not
rewritten. `--by spark` calls `rewrite_data_files` with its defaults every `--spark-minutes` instead; `--by nobody`
rewrites nothing.

Delete files are counted after each checkpoint, before the decision. At the end the rows are compared with a serial
model. Counts of commits come from the snapshots' summaries alone.

    python -m tests.benchmarks.bench_upserts [--version 3] [--minutes 60] [--buckets 4]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from pyiceberg.table.snapshots import Snapshot
from rich.console import Console
from rich.progress import track

from compactor.events import Event, GroupCommitted, GroupRewritten
from compactor.iceberg.manifest_entries import Content
from compactor.manifests.cache import ManifestCache
from compactor.planning.inventory import take_inventory
from streaming.ledger.table_record import Lane
from tests.benchmarks.harness import bench_folder, local_lake, options_of, show
from tests.benchmarks.upsert_writer import ClockedTable, Upserts, UpsertWriter
from tests.conftest import Lake
from tests.integration.replayed_table import FIRST_MOMENT, FollowedTable

TABLE = "db.upserts"
HOUR = 3600.0


@dataclass(frozen=True)
class Moment:
    """The table after one checkpoint: live files, and the most equality delete files that apply to one data file."""

    data_files: int
    equality_deletes: int
    position_deletes: int
    vectors: int
    most_on_one_file: int


@dataclass
class _Followed(FollowedTable):
    """The service over one table; keeps the file groups that were committed."""

    groups: list[GroupRewritten] = field(default_factory=list)

    def publish(self, event: Event) -> None:
        super().publish(event)
        if isinstance(event, GroupCommitted):
            self.groups.append(event.rewritten)


class Hour:
    """One table, its writer, and what rewrites it. `moments`: by simulated seconds."""

    def __init__(self, lake: Lake, options: argparse.Namespace) -> None:
        self.lake = lake
        self.options = options
        upserts = Upserts(options.version, options.buckets, options.rows, options.keys, options.repeats)
        self.table = ClockedTable(lake, TABLE, upserts)
        self.writer = UpsertWriter(lake, self.table, options.seed)
        self.moments: dict[float, Moment] = {}
        self._cache = ManifestCache(1 << 26)
        self._followed = _Followed(lake, TABLE, lake.settings, stamp=self.table.stamp)

    def run(self) -> None:
        started = time.perf_counter()
        commits = int(self.options.minutes * 60 / self.options.every)
        decide: dict[str, Callable[[float], None]] = {"firnline": self._service, "spark": self._spark}
        for number in track(range(1, commits + 1), description="checkpoints", console=Console(stderr=True)):
            at = number * self.options.every
            self.writer.checkpoint(FIRST_MOMENT + at)
            self.moments[at] = self._moment()
            if self.options.by in decide:
                decide[self.options.by](at)
            if time.perf_counter() - started > self.options.at_most_seconds:
                break

    def _service(self, at: float) -> None:
        self._followed.now = FIRST_MOMENT + at
        self._followed.look(Lane.EVENT)

    def _spark(self, at: float) -> None:
        if at % (self.options.spark_minutes * 60):
            return
        self.lake.sql(f"REFRESH TABLE lake.{TABLE}")
        self.lake.sql(f"CALL lake.system.rewrite_data_files(table => '{TABLE}')")
        self.table.stamp(FIRST_MOMENT + at)

    def _moment(self) -> Moment:
        inventory = take_inventory(self.lake.view(TABLE), self._cache)
        kinds = [(delete.content, delete.file_format.lower()) for delete in inventory.deletes]
        files = [file for partition in inventory.partitions.values() for file in partition]
        equality = sum(content is Content.EQUALITY_DELETES for content, _ in kinds)
        vectors = sum(kind == "puffin" for _, kind in kinds)
        most = max(sum(delete.content is Content.EQUALITY_DELETES for delete in file.deletes) for file in files)
        return Moment(len(files), equality, len(kinds) - equality - vectors, vectors, most)

    # --- the end ------------------------------------------------------------------------------------------------------

    def show(self, console: Console) -> None:
        options = self.options
        console.print(
            f"V{options.version}, {options.buckets} buckets, rewritten by {options.by}: {len(self.moments)} "
            f"checkpoints in {max(self.moments) / 60:g} simulated minutes, "
            f"{self.writer.data_bytes / 1e6:.1f} MB of data files"
        )
        self._show_rewrites(console)
        self._show_rows(console)
        series = {at: asdict(moment) for at, moment in self.moments.items()}
        kinds = list(next(iter(series.values())))
        rows: list[list[object]] = [
            [f"{at / 60:g}", *moment.values()] for at, moment in series.items() if not at % options.series_seconds
        ]
        columns = [[moment[kind] for moment in series.values()] for kind in kinds]
        rows += [["mean", *(float(statistics.mean(each)) for each in columns)], ["most", *map(max, columns)]]
        show(console, "after a checkpoint", ("minute", *(kind.replace("_", " ") for kind in kinds)), rows)

    def _show_rewrites(self, console: Console) -> None:
        """What all rewrites did. A commit may hold several file groups."""
        snapshots = [each for each in self.lake.view(TABLE).metadata.snapshots if _operation(each) == "replace"]
        groups = self._followed.groups
        written = sum(_count(each, "added-files-size") for each in snapshots)
        data_in, data_out, deletes_out = (
            sum(_count(each, key) for each in snapshots)
            for key in ("deleted-data-files", "added-data-files", "removed-delete-files")
        )
        not_fewer = sum(_count(each, "added-data-files") >= _count(each, "deleted-data-files") for each in snapshots)
        console.print(
            f"rewrite commits: {len(snapshots)}, {len(snapshots) / (max(self.moments) / HOUR):.0f} an hour; "
            f"{not_fewer} without fewer data files\nfile groups: {len(groups)}, "
            f"{sum(group.files_out >= group.files_in for group in groups)} without fewer data files; "
            f"{dict(Counter(' '.join(_wordy(group.plan.why)) for group in groups))}\n"
            f"data files in {data_in}, out {data_out}, delete files removed {deletes_out}; {written / 1e6:.1f} MB "
            f"written, amplification {written / self.writer.data_bytes:.2f}"
        )

    def _show_rows(self, console: Console) -> None:
        self.lake.sql(f"REFRESH TABLE lake.{TABLE}")
        rows = [(row.id, row.version) for row in self.lake.sql(f"SELECT id, version FROM lake.{TABLE}")]
        equal = dict(rows) == self.writer.model and len(rows) == len(self.writer.model)
        console.print(
            f"at the end {len(rows)} rows, {'equal' if equal else 'NOT EQUAL'} to the model; "
            f"{self._dangling_vectors()} dangling vectors"
        )

    def _dangling_vectors(self) -> int:
        """Deletion vectors that name a file the table does not hold, by Iceberg's own metadata tables."""
        if self.options.version < 3:
            return 0
        live = set(self.lake.live_files(TABLE))
        named = self.lake.sql(
            f"SELECT referenced_data_file AS file FROM lake.{TABLE}.delete_files WHERE lower(file_format) = 'puffin'"
        )
        return sum(row.file not in live for row in named)


def main() -> None:
    options = _options()
    sections = {"tables": {"include": ("*",)}, "service": {"manifest_disk_bytes": 0}, "policy": options.policy}
    with bench_folder(options.folder) as (folder, console), local_lake(folder, **sections) as lake:
        hour = Hour(lake, options)
        hour.run()
        hour.show(console)


def _options() -> argparse.Namespace:
    parser = options_of(__doc__)
    parser.add_argument("--version", type=int, choices=[2, 3], default=2, help="Format version of the table.")
    parser.add_argument("--by", choices=["firnline", "spark", "nobody"], default="firnline")
    parser.add_argument("--minutes", type=float, default=60, help="Simulated minutes.")
    parser.add_argument("--at-most-seconds", type=float, default=float("inf"), help="Real seconds; then it ends early.")
    parser.add_argument("--every", type=float, default=5, help="Simulated seconds between checkpoints.")
    parser.add_argument("--spark-minutes", type=float, default=10)
    parser.add_argument("--series-seconds", type=float, default=300)
    parser.add_argument("--buckets", type=int, default=4, help="1: the table is not partitioned.")
    parser.add_argument("--rows", type=int, default=300, help="Rows of a checkpoint in a bucket.")
    parser.add_argument("--keys", type=int, default=20_000, help="Keys of a bucket.")
    parser.add_argument("--repeats", type=float, default=0.3, help="Share of rows superseded in their checkpoint.")
    parser.add_argument("--policy", type=json.loads, default={}, help="Settings of the policy, as JSON.")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def _operation(snapshot: Snapshot) -> str:
    return snapshot.summary.operation.value if snapshot.summary else ""


def _count(snapshot: Snapshot, key: str) -> int:
    assert snapshot.summary is not None
    return int(snapshot.summary.additional_properties.get(key, 0))


def _wordy(why: str) -> list[str]:
    """The reason without its numbers, so that reasons can be counted."""
    return [word for word in why.split() if not any(sign.isdigit() for sign in word)]


if __name__ == "__main__":
    main()
