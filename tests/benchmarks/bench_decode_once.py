"""Decode once: 500 commits of tiny files into one bucket: how often is a byte decoded, how often copied?

With `--commits 1000 --every 1 --min-input-files 2 --file-kb 8`, a thousand rewrites: how many manifests pile up?

python -m tests.benchmarks.bench_decode_once [--commits 500] [--file-kb 104] [--every 50] [--min-input-files 5]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField
from rich.console import Console
from rich.progress import track

from compactor.commit.in_flight import InFlightRecords
from compactor.iceberg.tables import Catalogs
from compactor.lease.owner import Owner
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import plan_table
from compactor.runs.rewriter import Rewriter
from compactor.runs.slots import SlotPool
from compactor.settings.tree import CommitSettings, Settings
from compactor.spark.session import spark_session
from compactor.table_names import TableName
from tests.benchmarks.machine import description

NAME = TableName("lake", ("db",), "decode_once")
BYTES_PER_ROW = 17


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=500)
    parser.add_argument("--file-kb", type=float, default=104)
    parser.add_argument("--every", type=int, default=50, help="Commits between two looks at the table.")
    parser.add_argument("--min-input-files", type=int, default=5)
    options = parser.parse_args()
    console = Console(width=120)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            catalogs={
                "lake": {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/warehouse"}
            },
            spark={"master": "local[2]"},
            policy={"min_input_files": options.min_input_files},
        )
        session = spark_session(settings, "firnline-decode-once")
        catalogs = Catalogs(settings.catalogs)
        console.print(description(Path(folder)))
        schema = Schema(
            NestedField(1, "id", LongType(), required=False),
            NestedField(2, "v", DoubleType(), required=False),
            NestedField(3, "bucket", IntegerType(), required=False),
        )
        spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "bucket"))
        catalogs.catalog("lake").create_namespace("db")
        table = catalogs.catalog("lake").create_table(NAME.identifier, schema, partition_spec=spec)
        rows = int(options.file_kb * 1000 / BYTES_PER_ROW)
        random = np.random.default_rng(1)
        cache = ManifestCache(1 << 26)
        rewriter = Rewriter(
            session,
            catalogs,
            cache,
            InFlightRecords(f"file://{folder}/in-flight", Owner.this_process(), 60, time.time),
            slots=SlotPool(2),
            lease_seconds=60,
            check_seconds=15,
            commit=CommitSettings(hold_seconds=0),
        )
        decoded = copied = runs = 0
        manifests: list[int] = []
        engines: dict[str, int] = {}
        for commit in track(range(1, options.commits + 1), description="commits", console=Console(stderr=True)):
            columns = [random.integers(0, 2**62, rows), random.random(rows), np.zeros(rows, dtype=np.int32)]
            arrow = pa.schema([("id", pa.int64()), ("v", pa.float64()), ("bucket", pa.int32())])
            table.append(pa.table(columns, schema=arrow))
            if commit % options.every:
                continue
            plan = plan_table(catalogs.load(NAME), settings.policy.for_table(NAME), cache)
            for group in rewriter.run(plan).groups:
                runs += 1
                decoded += group.rewritten.bytes_decoded
                copied += group.rewritten.bytes_in - group.rewritten.bytes_decoded
                engines[group.rewritten.reason] = engines.get(group.rewritten.reason, 0) + 1
            table.refresh()
            manifests.append(len(catalogs.load(NAME).manifests()))
        files = [task.file for task in table.scan().plan_files()]
        arrived = _arrived(table)
        groups = [
            group.total_byte_size
            for file in files
            for metadata in [pq.read_metadata(file.file_path.removeprefix("file://"))]
            for group in (metadata.row_group(index) for index in range(metadata.num_row_groups))
        ]
        assert table.scan().count() == rows * options.commits
        console.print(
            f"{options.commits} commits of {arrived / options.commits / 1000:.0f} KB = {arrived / 1e6:.1f} MB, looked "
            f"at every {options.every} commits: {runs} rewrites {engines}",
            highlight=False,
        )
        console.print(
            f"manifests after a look: {max(manifests)} at most, {manifests[-1]} in the end, over {runs} rewrites",
            highlight=False,
        )
        console.print(
            f"a byte was decoded {decoded / arrived:.2f} times (goal <= 1.1) and copied {copied / arrived:.2f} times; "
            f"{len(files)} files left, row groups of {min(groups) / 1e6:.1f} to {max(groups) / 1e6:.1f} MB",
            highlight=False,
        )
        session.stop()


def _arrived(table: object) -> int:
    """Bytes of all appends, from their snapshots' own summaries."""
    snapshots = table.metadata.snapshots  # type: ignore[attr-defined]
    return sum(
        int(snapshot.summary.additional_properties["added-files-size"])
        for snapshot in snapshots
        if snapshot.summary.operation.value == "append"
    )


if __name__ == "__main__":
    main()
