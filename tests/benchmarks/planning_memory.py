"""Memory that a plan of one large table takes, above a process that has planned a small one; run by bench_planning."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from compactor.iceberg.tables import Catalogs
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import Request, plan_table
from compactor.settings.policy import PolicyValues
from compactor.table_names import TableName


def resident() -> float:
    """Megabytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def highest() -> float:
    """Megabytes; of this process alone (`ru_maxrss` remembers the parent's)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024 * 1.048576


def main() -> None:
    folder, name, limit = sys.argv[1:]
    catalogs = Catalogs(
        {"lake": {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}}
    )
    view = catalogs.load(TableName.parse(name, catalogs.names))
    ManifestCache(int(limit)).read(view, view.manifests()[:1])
    before = resident()
    made = plan_table(view, PolicyValues(), ManifestCache(int(limit)), Request(explained=False))
    after, peak = resident(), highest()
    print(
        f"memory: {before:.0f} MB before, {after - before:+.0f} MB after, "
        f"{peak - before:+.0f} MB at the peak, {len(made.groups)} groups planned"
    )


if __name__ == "__main__":
    main()
