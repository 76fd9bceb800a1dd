"""Memory of the driver and bytes of state on disk, by table and by partition with debt.

python -m tests.benchmarks.scale.measured_memory FOLDER TABLES PARTITIONS   (started once for each size)
"""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog

from compactor.table_names import TableName
from streaming.ledger.table_record import Asked, Outcome
from tests.benchmarks.fleet.tables import Fleet, Shape, pointers
from tests.benchmarks.scale.measured import CATALOG, fitted, ledger, resident_bytes

SIZES = ((200, 20), (1_000, 20), (300, 100), (1_000, 100), (10_000, 20))
"""Tables, and partitions of each."""
WARM_UP = 100
"""Tables that are looked at before the memory is noted: modules, connections and arenas are then there."""


def measure(folder: Path) -> dict[str, object]:
    """Bytes."""
    found = []
    for tables, partitions in SIZES:
        command = [sys.executable, "-m", "tests.benchmarks.scale.measured_memory", str(folder), str(tables)]
        done = subprocess.run([*command, str(partitions)], capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout))
    sizes = [(1.0, float(each["tables"]), float(each["tables"] * each["partitions"])) for each in found]
    fixed, table, partition = fitted([(size, each["memory"]) for size, each in zip(sizes, found, strict=True)])
    _, disk_table, disk_partition = fitted([(size, each["disk"]) for size, each in zip(sizes, found, strict=True)])
    return {
        "memory_arenas": fixed,
        "memory_table": table,
        "memory_partition": partition,
        "disk_table": disk_table,
        "disk_partition": disk_partition,
        "memory_points": found,
    }


def _one(folder: Path, tables: int, partitions: int) -> dict[str, int]:
    own = folder / f"memory-{tables}-{partitions}"
    own.mkdir(parents=True, exist_ok=True)
    shape = Shape(tables=tables + WARM_UP, partitions=partitions, history=2, rows=5)
    fleet = Fleet.make(own, shape)
    uri = f"sqlite:///{own}/own.db"
    catalog = SqlCatalog(CATALOG, uri=uri, warehouse=fleet.warehouse)
    for namespace in sorted({namespace for namespace, _ in fleet.heads}):
        catalog.create_namespace_if_not_exists(namespace)
    catalog.close()
    with pointers(own / "own.db", CATALOG) as registered:
        registered.reset(fleet.heads)
    parts = ledger(own / "ledger", {"type": "sql", "uri": uri, "warehouse": fleet.warehouse})

    def look(names: list[tuple[str, str]]) -> None:
        for namespace, name in names:
            looked = parts.driver.look(TableName(CATALOG, (namespace,), name), Asked())
            assert looked is not None
            assert looked.outcome is Outcome.COUNTED, looked
        gc.collect()

    look(shape.names[:WARM_UP])
    before = resident_bytes()
    look(shape.names[WARM_UP:])
    grown = resident_bytes() - before
    state = parts.looker.database.file
    parts.stop(1.0)
    size = state.stat().st_size
    shutil.rmtree(own)
    return {"tables": tables, "partitions": partitions, "memory": grown, "disk": size * tables // (tables + WARM_UP)}


if __name__ == "__main__":
    print(json.dumps(_one(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
