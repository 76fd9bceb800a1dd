"""The service beside writers that never stop: does it keep up, does it grow, is every row there at the end?

    python -m tests.soak [--minutes 30] [--tables 3] [--commits-per-minute 20] [--output json]

A real broker, a catalog and `firnline run` as a process of its own; a writer per table appends with PyIceberg, tells
Kafka, and expires old snapshots, as operations do. Each minute is a line: memory, threads and open files of the
service, what is small, what waits. Afterwards the writers stop, and rows, debt, in-flight records and growth (from ten
minutes on) are judged.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pyiceberg.exceptions import CommitFailedException
from rich.console import Console
from rich.table import Table

from streaming.demo.broker import embedded_broker
from tests.benchmarks.machine import description
from tests.integration.service_process import ServiceProcess, Site, site, wait_for

PARTS = 4
ROWS = 300  # a partition and commit
KEPT_SECONDS = 120  # of snapshots, before they expire
EXPIRE_EVERY = 20  # commits
MIN_INPUT_FILES = 5
GROWTH = 1.1  # the service's Python process, last quarter against second quarter
JUDGED_FROM_SECONDS = 550.0  # before, everything grows
PATIENCE = 180.0  # for what is left of the debt


@dataclass(frozen=True)
class Minute:
    """What one look saw. Memory in MB; `waiting`: seconds that the oldest event has not been answered."""

    at: float
    commits: int
    retried: int
    replaces: int
    small_files: int
    most_small: int
    waiting: float
    lag: int
    python_mb: float
    java_mb: float
    workers_mb: float
    threads: int
    open_files: int
    checkpoint_mb: float


@dataclass
class Writer:
    """Appends to one table until told to stop; what is lost is what `rows` says and the table does not have."""

    site: Site
    table: str
    every: float
    rows: int = 0
    commits: int = 0
    retried: int = 0
    failures: list[str] = field(default_factory=list)

    def write(self, stopped: threading.Event) -> None:
        """Commit, tell Kafka, wait; a lost race is tried again, as every writer does."""
        while not stopped.wait(self.every):
            try:
                self.site.publish(*self.site.append(self.table, commits=1, parts=PARTS, rows=ROWS))
                self.rows += PARTS * ROWS
                self.commits += 1
                if self.commits % EXPIRE_EVERY == 0:
                    self._expire()
            except CommitFailedException:
                self.retried += 1
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told at the end
                self.failures.append(f"{type(error).__name__}: {error}")

    def _expire(self) -> None:
        before = dt.datetime.now(dt.UTC).replace(tzinfo=None) - dt.timedelta(seconds=KEPT_SECONDS)
        table = self.site.catalogs.catalog("lake").load_table(("db", self.table))
        table.maintenance.expire_snapshots().older_than(before).commit()


def look(site: Site, service: ServiceProcess, writers: list[Writer], started: float) -> Minute:
    """One line."""
    metrics = service.metrics()
    small = [metrics.total("firnline_table_small_files", table=f"lake.db.{each.table}") for each in writers]
    members = _below(service.pid)
    java = [pid for pid in members if "java" in _text(pid, "comm")]
    checkpoint = sum(path.stat().st_size for path in (site.folder / "checkpoint").rglob("*") if path.is_file())
    return Minute(
        at=time.monotonic() - started,
        commits=sum(each.commits for each in writers),
        retried=sum(each.retried for each in writers),
        replaces=int(metrics.total("firnline_commits_total")),
        small_files=int(sum(small)),
        most_small=int(max(small)),
        waiting=metrics.total("firnline_oldest_due_seconds"),
        lag=int(metrics.total("firnline_event_lag_offsets", query="ledger")),
        python_mb=_megabytes([service.pid]),
        java_mb=_megabytes(java),
        workers_mb=_megabytes([pid for pid in members if pid not in java]),
        threads=len(list(Path(f"/proc/{service.pid}/task").iterdir())),
        open_files=len(list(Path(f"/proc/{service.pid}/fd").iterdir())),
        checkpoint_mb=checkpoint / 1e6,
    )


def _below(pid: int) -> list[int]:
    """All processes that a process has started, and those that these have."""
    tasks = Path(f"/proc/{pid}/task").glob("*")
    children = [int(child) for task in tasks for child in _text(pid, f"task/{task.name}/children").split()]
    return [each for child in children for each in (child, *_below(child))]


def _text(pid: int, name: str) -> str:
    """What Linux tells of a process; nothing once it has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""


def _megabytes(pids: list[int]) -> float:
    """Resident memory."""
    lines = [line for pid in pids for line in _text(pid, "status").splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


def growth(minutes: list[Minute], of: Callable[[Minute], float]) -> float:
    """The last quarter against the second one: caches fill in the first."""
    quarter = max(1, len(minutes) // 4)
    early, late = minutes[quarter : 2 * quarter] or minutes[:1], minutes[-quarter:]
    return statistics.mean(map(of, late)) / max(1.0, statistics.mean(map(of, early)))


def judged(site: Site, service: ServiceProcess, writers: list[Writer], minutes: list[Minute]) -> dict[str, str]:
    """What is wrong, by what was asked."""
    wrong: dict[str, str] = {}
    for writer in writers:
        if writer.failures:
            wrong[f"{writer.table}: the writer never fails"] = writer.failures[0]
        rows = site.catalogs.catalog("lake").load_table(("db", writer.table)).scan(selected_fields=("id",)).to_arrow()
        ids = rows.column("id").unique()
        if (len(rows), len(ids)) != (writer.rows, writer.rows):
            wrong[f"{writer.table}: every row once"] = f"{len(rows)} rows, {len(ids)} ids, {writer.rows} written"
    try:
        wait_for("the debt to be settled", lambda: settled(service, writers), PATIENCE)
    except AssertionError as error:
        wrong["no partition is due at the end"] = str(error)
    if records := site.in_flight().all():
        wrong["no in-flight record is left"] = f"{len(records)} left"
    if service.metrics().total("firnline_run_failures_total"):
        wrong["no run failed"] = str(service.metrics().total("firnline_run_failures_total"))
    if minutes[-1].at >= JUDGED_FROM_SECONDS:
        grown = {"memory": growth(minutes, lambda each: each.python_mb)}
        grown["memory of the JVM"] = growth(minutes, lambda each: each.java_mb)
        grown["memory of Python workers"] = growth(minutes, lambda each: each.workers_mb)
        grown["threads"] = growth(minutes, lambda each: each.threads)
        grown["open files"] = growth(minutes, lambda each: each.open_files)
        wrong |= {f"{name} does not grow": f"{by:.2f} x" for name, by in grown.items() if by > GROWTH}
    return wrong


def settled(service: ServiceProcess, writers: list[Writer]) -> bool:
    """No partition is due, by the service's own word."""
    metrics = service.metrics()
    return all(metrics.total("firnline_table_due_partitions", table=f"lake.db.{each.table}") == 0 for each in writers)


def shown(minutes: list[Minute]) -> Table:
    """A line a minute."""
    names = list(asdict(minutes[0]))
    table = Table(*(name.replace("_", " ") for name in names))
    for minute in minutes:
        table.add_row(*(f"{value:.0f}" for value in asdict(minute).values()))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--tables", type=int, default=3)
    parser.add_argument("--commits-per-minute", type=float, default=20, help="of each table; 4 files each")
    parser.add_argument("--look-seconds", type=float, default=60)
    parser.add_argument("--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    console = Console(stderr=True, width=180)
    with tempfile.TemporaryDirectory(prefix="soak-") as name, embedded_broker(Path(name) / "broker") as broker:
        folder = Path(name) / "site"
        sections = {
            "policy": {"min_row_group_size": 0, "strategy": "threshold", "min_input_files": MIN_INPUT_FILES},
            # A small cache is full in minutes: what grows then is no cache.
            "service": {"trigger_seconds": 2, "sweep_seconds": 30, "manifest_cache_bytes": 8 * 2**20},
        }
        console.print(description(Path(name)))
        with site(folder, broker, **sections) as made:
            minutes, wrong = soak(made, options, console)
    if options.output == "json":
        print(json.dumps({"minutes": [asdict(each) for each in minutes], "wrong": wrong}, indent=2))
    else:
        Console(width=180).print(shown(minutes))
        for what, seen in wrong.items():
            console.print(f"[red]wrong[/] {what}: {seen}", highlight=False)
        last = minutes[-1]
        python, java = growth(minutes, lambda each: each.python_mb), growth(minutes, lambda each: each.java_mb)
        console.print(
            f"{last.commits} commits, {last.replaces} rewrites, at most {max(each.most_small for each in minutes)} "
            f"small files in a table; Python grew by {python:.2f}, the JVM by {java:.2f}"
        )
    return int(bool(wrong))


def soak(site: Site, options: argparse.Namespace, console: Console) -> tuple[list[Minute], dict[str, str]]:
    """Run it all; returns the lines and what is wrong."""
    properties = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "20"}
    writers = [Writer(site, f"soak_{number}", 60 / options.commits_per_minute) for number in range(options.tables)]
    for writer in writers:
        site.create(writer.table, **properties)
    service = site.start()
    service.wait_ready()
    stopped = threading.Event()
    threads = [threading.Thread(target=writer.write, args=(stopped,), daemon=True) for writer in writers]
    for thread in threads:
        thread.start()
    started = time.monotonic()
    minutes: list[Minute] = []
    with console.status("soaking") as status:
        while time.monotonic() - started < options.minutes * 60:
            time.sleep(options.look_seconds)
            service.must_run()
            minutes.append(look(site, service, writers, started))
            status.update(" ".join(f"{name} {value:.0f}" for name, value in asdict(minutes[-1]).items()))
    stopped.set()
    for thread in threads:
        thread.join()
    return minutes, judged(site, service, writers, minutes)


if __name__ == "__main__":
    sys.exit(main())
