"""Measure one hour of upserts, compressed in time: how many commits do rewrites make, and what do they achieve?

A writer commits a checkpoint every `--every` seconds of simulated time, as a Flink job does (upsert_writer.py). After
each one the parts of the service decide at that time: ledger, board, policy, planner, rewriter (replayed_table.py).
Snapshots carry the simulated time, so rules by age and idleness hold; no partition is ever idle, since every
checkpoint touches all of them. A rewrite takes no simulated time: no conflicts are measured. Manifests are not
rewritten. `--by spark` calls `rewrite_data_files` with its defaults every `--spark-minutes` instead; `--by nobody`
rewrites nothing.

Delete files are counted after each checkpoint, before the decision. At the end the rows are compared with a serial
model. Counts of commits come from the snapshots' summaries alone.

    python -m tests.benchmarks.bench_upserts [--version 3] [--minutes 60] [--buckets 4] [--output json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pyiceberg.table.snapshots import Snapshot
from rich.console import Console
from rich.progress import track
from rich.table import Table

from compactor.events import Event, GroupCommitted, GroupRewritten
from compactor.iceberg.manifest_entries import Content
from compactor.iceberg.tables import Catalogs
from compactor.manifests.cache import ManifestCache
from compactor.planning.inventory import take_inventory
from compactor.settings.tree import Settings
from compactor.spark.session import spark_session
from streaming.ledger.table_record import Lane
from tests.benchmarks.machine import description
from tests.benchmarks.upsert_writer import ClockedTable, Upserts, UpsertWriter
from tests.conftest import Lake
from tests.integration.replayed_table import FIRST_MOMENT, FollowedTable

TABLE = "db.upserts"
HOUR = 3600.0


@dataclass(frozen=True)
class Moment:
    """The table after one checkpoint: live files, and the most equality delete files that apply to one data file."""

    seconds: float
    data_files: int
    equality_deletes: int
    position_deletes: int
    vectors: int
    most_on_one_file: int


@dataclass(frozen=True)
class Rewrites:
    """What all rewrites of the run did. `groups_...`: file groups, of which a commit may hold several."""

    commits: int
    commits_per_hour: float
    not_fewer_data_files: int
    not_fewer_files: int
    groups: int
    groups_not_fewer_data_files: int
    data_files_in: int
    data_files_out: int
    delete_files_removed: int
    bytes_written: int
    amplification: float
    whys: dict[str, int]


@dataclass(frozen=True)
class Outcome:
    """One run of the benchmark."""

    by: str
    version: int
    buckets: int
    minutes: float
    writer_commits: int
    writer_bytes: int
    rewrites: Rewrites
    mean: dict[str, float]
    most: dict[str, float]
    series: list[Moment]
    rows: int
    rows_equal_model: bool
    dangling_vectors: int
    real_seconds: float


@dataclass
class _Followed(FollowedTable):
    """The service over one table; keeps the file groups that were committed."""

    groups: list[GroupRewritten] = field(default_factory=list)

    def publish(self, event: Event) -> None:
        super().publish(event)
        if isinstance(event, GroupCommitted):
            self.groups.append(event.rewritten)


class Hour:
    """One table, its writer, and what rewrites it."""

    def __init__(self, lake: Lake, options: argparse.Namespace) -> None:
        self.lake = lake
        self.options = options
        self.upserts = Upserts(options.version, options.buckets, options.rows, options.keys, options.repeats)
        self.table = ClockedTable(lake, TABLE, self.upserts)
        self.writer = UpsertWriter(lake, self.table, options.seed)
        self.moments: list[Moment] = []
        self.groups: list[GroupRewritten] = []
        self._cache = ManifestCache(1 << 26)
        self._decide = self._decider()

    def run(self) -> Outcome:
        started = time.perf_counter()
        commits = int(self.options.minutes * 60 / self.options.every)
        for number in track(range(1, commits + 1), description="checkpoints", console=Console(stderr=True)):
            at = number * self.options.every
            self.writer.checkpoint(FIRST_MOMENT + at)
            self.moments.append(self._moment(at))
            self._decide(at)
            if time.perf_counter() - started > self.options.at_most_seconds:
                break
        return self._outcome(time.perf_counter() - started)

    def _decider(self) -> Callable[[float], None]:
        if self.options.by == "firnline":
            return self._service()
        return self._spark if self.options.by == "spark" else lambda _at: None

    def _service(self) -> Callable[[float], None]:
        followed = _Followed(self.lake, TABLE, self.lake.settings, stamp=self.table.stamp)
        self.groups = followed.groups

        def decide(at: float) -> None:
            followed.now = FIRST_MOMENT + at
            followed.look(Lane.EVENT)

        return decide

    def _spark(self, at: float) -> None:
        if at % (self.options.spark_minutes * 60):
            return
        self.lake.sql(f"REFRESH TABLE lake.{TABLE}")
        self.lake.sql(f"CALL lake.system.rewrite_data_files(table => '{TABLE}')")
        self.table.stamp(FIRST_MOMENT + at)

    def _moment(self, at: float) -> Moment:
        inventory = take_inventory(self.lake.view(TABLE), self._cache)
        kinds = [(delete.content, delete.file_format.lower()) for delete in inventory.deletes]
        files = [file for partition in inventory.partitions.values() for file in partition]
        equality = sum(content is Content.EQUALITY_DELETES for content, _ in kinds)
        vectors = sum(kind == "puffin" for _, kind in kinds)
        most = max(sum(delete.content is Content.EQUALITY_DELETES for delete in file.deletes) for file in files)
        return Moment(at, len(files), equality, len(kinds) - equality - vectors, vectors, most)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _outcome(self, seconds: float) -> Outcome:
        self.lake.sql(f"REFRESH TABLE lake.{TABLE}")
        rows = {row.id: row.version for row in self.lake.sql(f"SELECT id, version FROM lake.{TABLE}")}
        count = self.lake.sql(f"SELECT count(*) AS rows FROM lake.{TABLE}")[0].rows
        kinds = ("data_files", "equality_deletes", "position_deletes", "vectors", "most_on_one_file")
        figures = {kind: [float(getattr(moment, kind)) for moment in self.moments] for kind in kinds}
        return Outcome(
            self.options.by,
            self.upserts.version,
            self.upserts.buckets,
            self.moments[-1].seconds / 60,
            len(self.moments),
            self.writer.data_bytes,
            self._rewrites(),
            {kind: statistics.mean(values) for kind, values in figures.items()},
            {kind: max(values) for kind, values in figures.items()},
            [moment for moment in self.moments if not moment.seconds % self.options.series_seconds],
            count,
            rows == self.writer.model and count == len(rows),
            self._dangling_vectors(),
            seconds,
        )

    def _rewrites(self) -> Rewrites:
        snapshots = [each for each in self.lake.view(TABLE).metadata.snapshots if _operation(each) == "replace"]
        written = _total(snapshots, "added-files-size")
        groups = self.groups
        whys = [" ".join(_wordy(group.plan.why)) for group in groups]
        return Rewrites(
            len(snapshots),
            len(snapshots) / (self.moments[-1].seconds / HOUR),
            sum(_count(each, "added-data-files") >= _count(each, "deleted-data-files") for each in snapshots),
            sum(_added(each) >= _removed(each) for each in snapshots),
            len(groups),
            sum(group.files_out >= group.files_in for group in groups),
            _total(snapshots, "deleted-data-files"),
            _total(snapshots, "added-data-files"),
            _total(snapshots, "removed-delete-files"),
            written,
            written / self.writer.data_bytes,
            {why: whys.count(why) for why in sorted(set(whys))},
        )

    def _dangling_vectors(self) -> int:
        """Deletion vectors that name a file the table does not hold, by Iceberg's own metadata tables."""
        if self.upserts.version < 3:
            return 0
        live = set(self.lake.live_files(TABLE))
        named = self.lake.sql(
            f"SELECT referenced_data_file AS file FROM lake.{TABLE}.delete_files WHERE lower(file_format) = 'puffin'"
        )
        return sum(row.file not in live for row in named)


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        lake = _lake(Path(folder), options)
        console = Console(stderr=True, width=120)
        console.print(description(Path(folder)))
        outcome = Hour(lake, options).run()
        if options.output == "json":
            print(json.dumps(asdict(outcome)))
        else:
            _show(outcome, Console(width=120))
        lake.session.stop()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--output", choices=["text", "json"], default="text")
    return parser.parse_args()


def _lake(folder: Path, options: argparse.Namespace) -> Lake:
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/warehouse"}
    settings = Settings(
        catalogs={"lake": properties},
        spark={"master": "local[2]"},
        tables={"include": ("*",)},
        service={"manifest_disk_bytes": 0},
        policy=options.policy,
    )
    session = spark_session(settings, "firnline-bench-upserts")
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.db")
    return Lake(folder, settings, session, Catalogs(settings.catalogs))


def _operation(snapshot: Snapshot) -> str:
    return snapshot.summary.operation.value if snapshot.summary else ""


def _count(snapshot: Snapshot, key: str) -> int:
    assert snapshot.summary is not None
    return int(snapshot.summary.additional_properties.get(key, 0))


def _total(snapshots: Sequence[Snapshot], key: str) -> int:
    return sum(_count(each, key) for each in snapshots)


def _added(snapshot: Snapshot) -> int:
    return _count(snapshot, "added-data-files") + _count(snapshot, "added-delete-files")


def _removed(snapshot: Snapshot) -> int:
    return _count(snapshot, "deleted-data-files") + _count(snapshot, "removed-delete-files")


def _wordy(why: str) -> list[str]:
    """The reason without its numbers, so that reasons can be counted."""
    return [word for word in why.split() if not any(sign.isdigit() for sign in word)]


def _show(outcome: Outcome, console: Console) -> None:
    done = outcome.rewrites
    console.print(
        f"V{outcome.version}, {outcome.buckets} buckets, rewritten by {outcome.by}: {outcome.writer_commits} "
        f"checkpoints in {outcome.minutes:g} simulated minutes, {outcome.writer_bytes / 1e6:.1f} MB of data files\n"
        f"rewrite commits: {done.commits}, {done.commits_per_hour:.0f} an hour; {done.not_fewer_data_files} without "
        f"fewer data files, {done.not_fewer_files} without fewer files of any kind\n"
        f"file groups: {done.groups}, {done.groups_not_fewer_data_files} without fewer data files; {done.whys}\n"
        f"data files in {done.data_files_in}, out {done.data_files_out}, delete files removed "
        f"{done.delete_files_removed}; {done.bytes_written / 1e6:.1f} MB written, amplification "
        f"{done.amplification:.2f}\n"
        f"at the end {outcome.rows} rows, {'equal' if outcome.rows_equal_model else 'NOT EQUAL'} to the model; "
        f"{outcome.dangling_vectors} dangling vectors; took {outcome.real_seconds:.0f} s",
        highlight=False,
    )
    shown = Table()
    kinds = ("data_files", "equality_deletes", "position_deletes", "vectors", "most_on_one_file")
    for heading in ("minute", *(kind.replace("_", " ") for kind in kinds)):
        shown.add_column(heading, justify="right")
    for moment in outcome.series:
        shown.add_row(f"{moment.seconds / 60:g}", *(str(getattr(moment, kind)) for kind in kinds))
    shown.add_row("mean", *(f"{outcome.mean[kind]:.1f}" for kind in kinds))
    shown.add_row("most", *(f"{outcome.most[kind]:.0f}" for kind in kinds))
    console.print(shown)


if __name__ == "__main__":
    main()
