"""A MERGE every 20 seconds on one hot partition beside the service, on a catalog without rollback, V2 and V3.

    python -m tests.soak.merges [--minutes 20] [--every 20] [--seed 1] [--output json]

Between two MERGEs the same job appends every four seconds, so that there is always something to rewrite. All this runs
twice: with `commit.hold_seconds` as it is by default, and with 0. Each table is a line: how many MERGEs a rewrite made
fail, the most small files in the partition and their bound, and the bytes that rewrites read in vain.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.demo.local_process import free_port
from tests.benchmarks.machine import description
from tests.conftest import Lake
from tests.faults.scene import Scene
from tests.services.faulty_catalog import in_front_of
from tests.soak.__main__ import SETTINGS, writers_lake
from tests.soak.writers import Merges, writing

MOST_FAILED = 0.01
MIN_INPUT_FILES = 5
APPEND_SECONDS = 4.0
LOOK_SECONDS = 5.0
HELD: dict[str, dict[str, Any]] = {"as by default": {}, "at once": {"hold_seconds": 0}}


class HotMerges(Merges):
    """One partition: an append every four seconds, and every so many commits a MERGE that changes rows of all ages."""

    def __init__(self, lake: Lake, scene: Scene, seed: int, version: int, merge_of: int) -> None:
        self.table, self.version, self.merge_of = f"merges_v{version}", version, merge_of  # type: ignore[misc]
        self.merges = 0
        super().__init__(scene.site, lake, seed)

    parts, share = 1, 0.5

    def commit(self) -> None:
        if self.commits % self.merge_of:
            ids, tag = self._new_ids(200), f"append {self.commits}"
            self.lake.sql(f"INSERT INTO {self.name} SELECT id, '{tag}', 'p0' FROM range({ids[0]}, {ids[-1] + 1})")
            self.rows.update(dict.fromkeys(ids, tag))
            return
        self.merges += 1
        super().commit()


@dataclass(frozen=True)
class Outcome:
    """Of one table in one run."""

    commits_held: str
    version: int
    merges: int
    failed: int
    writer_failures: list[str]
    most_small: int
    bound: int
    rows_equal: bool
    replaces: int

    @property
    def is_as_promised(self) -> bool:
        return self.rows_equal and not self.writer_failures and self.most_small <= self.bound


@contextmanager
def staged(folder: Path, commit: dict[str, Any], seed: int, merge_of: int) -> Iterator[tuple[Scene, list[HotMerges]]]:
    policy = {"strategy": "threshold", "min_input_files": MIN_INPUT_FILES}
    settings = {**SETTINGS, "policy": policy, "commit": {"polaris_rollback": "never", **commit}}
    scene = Scene(folder, settings, free_port())
    try:
        with in_front_of(scene.catalog_uri, "") as catalog:
            lake = writers_lake(scene, catalog)
            try:
                yield scene, [HotMerges(lake, scene, seed, version, merge_of) for version in (2, 3)]
            finally:
                lake.session.stop()
    finally:
        scene.close()


def run(folder: Path, held: str, options: argparse.Namespace) -> tuple[list[Outcome], float]:
    """One run of both tables; their outcomes, and the bytes that rewrites read in vain."""
    merge_of = max(2, round(options.every / APPEND_SECONDS))
    most = dict[str, int]()
    with staged(folder, HELD[held], options.seed, merge_of) as (scene, writers):
        ends = time.monotonic() + options.minutes * 60
        with writing(writers, len(writers) * 60 / APPEND_SECONDS):
            while time.monotonic() < ends:
                time.sleep(LOOK_SECONDS)
                scene.service.must_run()
                metrics = scene.service.metrics()
                for each in writers:
                    small = int(metrics.total("firnline_table_small_files", table=f"lake.db.{each.table}"))
                    most[each.table] = max(most.get(each.table, 0), small)
        time.sleep(3 * LOOK_SECONDS)
        metrics = scene.service.metrics()
        read, used = map(metrics.total, ("firnline_rewrite_input_bytes_total", "firnline_commit_input_bytes_total"))
        bound = small_bound(options.hold_bound, merge_of)
        return [outcome(held, each, most[each.table], bound) for each in writers], max(0.0, read - used)


def small_bound(hold_seconds: float, merge_of: int) -> int:
    """Small files of one partition: what makes it due, and what arrives while a rewrite is under way and held."""
    seconds = hold_seconds + 10
    return round(MIN_INPUT_FILES + 2 * (1 + 1 / merge_of) * seconds / APPEND_SECONDS)


def outcome(held: str, writer: HotMerges, most_small: int, bound: int) -> Outcome:
    found, count = writer.found()
    operations = writer.lake.sql(f"SELECT operation FROM {writer.name}.snapshots")
    return Outcome(
        commits_held=held,
        version=writer.version,
        merges=writer.merges,
        failed=writer.conflicts,
        writer_failures=writer.failures,
        most_small=most_small,
        bound=bound,
        rows_equal=found == writer.rows and count == len(found),
        replaces=sum(row.operation == "replace" for row in operations),
    )


def shown(outcomes: Sequence[Outcome]) -> Table:
    table = Table("commits held", "version", "MERGEs", "failed", "share", "most small files", "bound", "rows equal")
    for each in outcomes:
        share = f"{each.failed / max(1, each.merges):.1%}"
        table.add_row(each.commits_held, f"V{each.version}", str(each.merges), str(each.failed), share,
                      str(each.most_small), str(each.bound), str(each.rows_equal))  # fmt: skip
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--every", type=float, default=20, help="seconds between two MERGEs")
    parser.add_argument("--hold-bound", type=float, default=60, help="seconds that a commit may be held, for the bound")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    console = Console(stderr=True, width=160)
    outcomes: list[Outcome] = []
    wasted: dict[str, float] = {}
    for held in HELD:
        with tempfile.TemporaryDirectory(prefix="merges-") as name:
            console.print(description(Path(name)))
            found, wasted[held] = run(Path(name), held, options)
            outcomes += found
            console.print(shown(found))
    if options.output == "json":
        print(json.dumps({"outcomes": [asdict(each) for each in outcomes], "wasted_bytes": wasted}, indent=1))
    else:
        Console(width=160).print(shown(outcomes), wasted)
    default = [each for each in outcomes if each.commits_held == next(iter(HELD))]
    kept = all(each.failed <= MOST_FAILED * each.merges for each in default)
    return int(not (kept and wasted[next(iter(HELD))] == 0 and all(each.is_as_promised for each in outcomes)))


if __name__ == "__main__":
    sys.exit(main())
