"""What the service looks like once a minute, and how much it grows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.scene import Scene
from tests.services.processes import descendants, told
from tests.soak.writers import Writer

WARM_SECONDS = 600.0
"""Of a life: before, everything grows."""


@dataclass(frozen=True)
class Minute:
    """One look. Memory is resident, in MB; `due_seconds`: age of the oldest due partition; `life_seconds`: since the
    service was started; `fault`: the one of the minute before.
    """

    at: float
    life_seconds: float
    fault: str
    commits: int
    replaces: int
    small_files: int
    most_small: int
    due_seconds: float
    python_mb: float
    java_mb: float
    workers_mb: float
    threads: int
    open_files: int
    checkpoint_mb: float


GROWING = ("python_mb", "java_mb", "workers_mb", "threads", "open_files")


def look(scene: Scene, writers: Sequence[Writer], started: float, life: float, fault: str) -> Minute:
    """Look once. `started`, `life`: of the soak and of the service's life, on the monotonic clock."""
    service, now = scene.service, time.monotonic()
    metrics = service.metrics()
    small = [metrics.total("firnline_table_small_files", table=f"lake.db.{each.table}") for each in writers]
    members = descendants(service.pid)
    java = [pid for pid in members if b"java" in told(pid, "comm")]
    files = (path for path in (scene.volume / "checkpoint").rglob("*") if path.is_file())
    return Minute(
        at=now - started,
        life_seconds=now - life,
        fault=fault,
        commits=sum(each.commits for each in writers),
        replaces=int(metrics.total("firnline_commits_total")),
        small_files=int(sum(small)),
        most_small=int(max(small)),
        due_seconds=metrics.total("firnline_oldest_due_seconds"),
        python_mb=_megabytes([service.pid]),
        java_mb=_megabytes(java),
        workers_mb=_megabytes([pid for pid in members if pid not in java]),
        threads=sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in (service.pid, *java)),
        open_files=sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in (service.pid, *java)),
        checkpoint_mb=sum(path.stat().st_size for path in files) / 1e6,
    )


def _megabytes(pids: Sequence[int]) -> float:
    lines = [line for pid in pids for line in told(pid, "status").splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith(b"VmRSS")) / 1000


def warm(minutes: Sequence[Minute]) -> list[Minute]:
    """Looks at the last life, from ten minutes on."""
    last: list[Minute] = []
    for minute in minutes:
        if last and minute.life_seconds < last[-1].life_seconds:
            last = []
        last.append(minute)
    return [each for each in last if each.life_seconds >= WARM_SECONDS]


def growth(minutes: Sequence[Minute], of: Callable[[Minute], float]) -> float:
    """Median of the last half by median of the first half: 1.0 is flat.

    What leaks stays, so a median shows it. A worker that lives for one look, as after a fault, is no growth.
    """
    half = max(1, len(minutes) // 2)
    return statistics.median(map(of, minutes[-half:])) / max(1.0, statistics.median(map(of, minutes[:half])))


def slope(minutes: Sequence[Minute], of: Callable[[Minute], float]) -> float:
    """Change per hour, by least squares."""
    hours = [each.at / 3600 for each in minutes]
    return statistics.linear_regression(hours, [of(each) for each in minutes]).slope
