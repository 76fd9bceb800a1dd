"""Break every component that the service needs, while it compacts; check what was lost and what was left behind.

    python -m tests.faults [--only TEXT] [--list] [--output json]

Each cell makes the partitions of a new table due, breaks one real component once, repairs it, and waits until the table
is compacted. Then rows, objects of the store, uploads and in-flight records are compared. Recovery is counted from the
repair until the table is compacted.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks.machine import description
from tests.faults.cells import Cell, all_cells
from tests.faults.credential_cells import credential_cells
from tests.faults.process_cells import executor_cells, process_cells
from tests.faults.scene import Scene
from tests.integration.service_process import files_of
from tests.services.waiting import wait_for

SEEN = {
    "firnline_stream_ends_total": "FirnlineIntakeBroken",
    "firnline_lost_events_total": "FirnlineIntakeBroken",
    "firnline_run_failures_total": "FirnlineRunsFailing",
    "firnline_dropped_groups_total": "FirnlineRunsFailing",
    "firnline_ledger_recounts_total": "FirnlineRecountStorm",
}
"""Metrics that show a fault, and the alert on each."""


@dataclass
class Outcome:
    """What a cell found. `lost`: rows that are missing or changed; `left`: objects, uploads, records without owner."""

    cell: str
    lost: int = 0
    left: list[str] = field(default_factory=list)
    recovery_seconds: float | None = None
    lives: int = 1
    metrics: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def well(self) -> bool:
        return not self.lost and not self.left and not self.error


def counters(scene: Scene) -> Mapping[tuple[str, frozenset[tuple[str, str]]], float]:
    try:
        samples = scene.service.metrics().samples
    except AssertionError:
        return {}
    return {key: value for key, value in samples.items() if key[0] in SEEN}


def tried(scene: Scene, cell: Cell) -> Outcome:
    """Run one cell."""
    scene.tables += 1
    table, outcome = f"t{scene.tables:03d}", Outcome(cell.name)
    cell.prepare(scene)
    scene.site.create(table)
    before, lives = counters(scene), len(scene.site.services)
    expected = None
    try:
        cell.act(scene, table)
        repaired = time.monotonic()
        expected = scene.site.rows(table)
        wait_for("the table to be compacted", lambda: scene.site.is_compacted(table))
        outcome.recovery_seconds = time.monotonic() - repaired
        wait_for("nothing to be left behind", lambda: not leftovers(scene, table))
        scene.service.wait_ready()
    except Exception as error:  # noqa: BLE001 - a cell that fails is a finding, and the others go on
        outcome.error = f"{type(error).__name__}: {error}"[:300]
        scene.well()
    outcome.lives = 1 + len(scene.site.services) - lives
    after = counters(scene)
    known = before if outcome.lives == 1 else {}
    changed = [key for key, value in after.items() if value > known.get(key, 0)]
    outcome.metrics = sorted({shown(key) for key in changed})
    if expected is not None:
        found = scene.site.rows(table)
        outcome.lost = len(set(expected) ^ set(found)) + abs(len(expected) - len(found))
        outcome.left = leftovers(scene, table)
    return outcome


def shown(key: tuple[str, frozenset[tuple[str, str]]]) -> str:
    name, labels = key
    wanted = [value for label, value in sorted(labels) if label in ("cause", "reason")]
    return f"{name.removeprefix('firnline_').removesuffix('_total')} {' '.join(wanted)}".strip()


def leftovers(scene: Scene, table: str) -> list[str]:
    view = scene.site.view(table)
    objects = scene.objects(table) - files_of(view)
    records = [
        record.run_id
        for record in scene.records.all()
        if record.name == table and not (record.swept and time.time() < record.late_until)
    ]
    uploads = scene.uploads()
    return [*sorted(objects), *(f"record {each}" for each in records), *([f"{uploads} uploads"] if uploads else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", default=[], help="Cells whose name contains this, or one of these: TEXT,TEXT."
    )
    parser.add_argument("--list", action="store_true", help="Print the names of the cells.")
    parser.add_argument("--output", choices=["text", "json"], default="text")
    parser.add_argument("--folder", type=Path, help="Folder for everything; else a temporary one.")
    options = parser.parse_args()
    cells = [
        cell
        for cell in (*all_cells(), *process_cells(), *credential_cells(), *executor_cells())
        if not options.only or any(text in cell.name for only in options.only for text in re.split(",(?! )", only))
    ]
    if options.list:
        print("\n".join(cell.name for cell in cells))
        return
    console = Console(width=200, stderr=options.output == "json")
    with tempfile.TemporaryDirectory(dir=options.folder, ignore_cleanup_errors=True) as folder:
        console.print(description(Path(folder)))
        outcomes = list(all_tried(cells, Path(folder), console))
    if options.output == "json":
        print(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    else:
        console.print(table_of(outcomes))
    failed = [outcome for outcome in outcomes if not outcome.well]
    console.print(f"{len(outcomes)} cells, {len(failed)} failed")
    sys.exit(bool(failed) or len(outcomes) < len(cells))


def all_tried(cells: Sequence[Cell], folder: Path, console: Console) -> Iterator[Outcome]:
    """Run one cell after the other beside one service; Ctrl-C ends it with what was found until then."""
    scene = Scene(folder)
    try:
        for number, cell in enumerate(cells, 1):
            started = time.monotonic()
            outcome = tried(scene, cell)
            yield outcome
            verdict = "ok" if outcome.well else f"FAILED {outcome.lost} rows, {outcome.left}, {outcome.error}"
            seconds = time.monotonic() - started
            console.print(f"{number}/{len(cells)} {cell.name}: {verdict} ({seconds:.0f} s)", highlight=False)
            if not outcome.well:
                (folder / "site").joinpath("failed").mkdir(exist_ok=True)
                console.print(scene.service.log_text[-1500:], highlight=False, markup=False)
            if outcome.error and scene.service._process.poll() is not None:
                scene.start_service()
    except KeyboardInterrupt:
        console.print("stopped")
    finally:
        scene.close()


def table_of(outcomes: list[Outcome]) -> Table:
    table = Table(title="Faults", show_lines=False)
    for heading in ("fault", "rows lost", "left behind", "recovery", "starts", "seen in"):
        table.add_column(heading, overflow="fold")
    for one in outcomes:
        recovery = "-" if one.recovery_seconds is None else f"{one.recovery_seconds:.1f} s"
        seen = ", ".join(one.metrics) or "nothing had to be done"
        table.add_row(one.cell, str(one.lost), str(len(one.left)), recovery, str(one.lives), one.error or seen)
    return table


if __name__ == "__main__":
    main()
