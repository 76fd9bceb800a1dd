"""How unit costs are measured: processor seconds of a process, never wall time, because the machine may be shared."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from compactor.debt.board import DebtBoard
from compactor.events import ignore
from compactor.iceberg.tables import Catalogs
from compactor.manifests.cache import ManifestCache
from compactor.settings.tree import Settings
from streaming.ledger.driver_ledger import DriverLedger

CATALOG = "fleet"
PAGE_KB = 1024


def processor_seconds(work: Callable[[], object], times: int, rounds: int = 3) -> float:
    """Processor seconds of one of the `times` pieces of `work`: user and system, all threads; median of the rounds."""
    found = []
    for _ in range(rounds):
        gc.collect()
        started = time.process_time()
        work()
        found.append((time.process_time() - started) / times)
    return statistics.median(found)


def resident_bytes() -> int:
    """Resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * PAGE_KB
    raise OSError("/proc/self/status names no resident memory")


def fitted(points: list[tuple[tuple[float, ...], float]]) -> list[float]:
    """Least squares: the cost of one of each, from (how many of each, cost) pairs. Never below 0."""
    matrix, costs = np.array([each for each, _ in points]), np.array([cost for _, cost in points])
    weights = 1 / costs  # relative errors count, not absolute ones
    found, *_ = np.linalg.lstsq(matrix * weights[:, None], costs * weights, rcond=None)
    return [max(0.0, float(each)) for each in found]


def ledger(folder: Path, properties: dict[str, str], **sections: dict[str, object]) -> DriverLedger:
    """The service's ledger with its own state, not started: its looks are called one by one."""
    settings = Settings.model_validate(
        {
            "catalogs": {CATALOG: properties},
            "state": {"checkpoint": f"file://{folder}/checkpoint"},
            "service": {"manifest_disk_bytes": 0},
            **sections,
        }
    )
    return DriverLedger(
        settings=settings,
        catalogs=Catalogs(settings.catalogs),
        board=DebtBoard(),
        plans=ManifestCache(0),
        checkpoint=settings.state.checkpoint,
        listener=ignore,
    )
