"""Decode once: 500 commits of tiny files into one bucket: how often is a byte decoded, how often copied?

With `--commits 1000 --every 1 --min-input-files 2 --file-kb 8`, a thousand rewrites: how many manifests pile up?

python -m tests.benchmarks.bench_decode_once [--commits 500] [--file-kb 104] [--every 50] [--min-input-files 5]
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import track

from compactor.locations import plain_path
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import plan_table
from compactor.table_names import TableName
from tests.benchmarks.harness import bench_folder, local_lake, options_of, rewriter_of

NAME = TableName("lake", ("db",), "decode_once")
BYTES_PER_ROW = 17
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.float64()), ("bucket", pa.int32())])


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--commits", type=int, default=500)
    parser.add_argument("--file-kb", type=float, default=104)
    parser.add_argument("--every", type=int, default=50, help="Commits between two looks at the table.")
    parser.add_argument("--min-input-files", type=int, default=5)
    options = parser.parse_args()
    with (
        bench_folder(options.folder) as (folder, console),
        local_lake(folder, policy={"min_input_files": options.min_input_files}) as lake,
    ):
        lake.sql(f"CREATE TABLE {NAME} (id bigint, v double, bucket int) USING iceberg PARTITIONED BY (bucket)")
        table = lake.catalog.load_table(NAME.identifier)
        rows, random = int(options.file_kb * 1000 / BYTES_PER_ROW), np.random.default_rng(1)
        cache = ManifestCache(1 << 26)
        rewriter, policy = rewriter_of(lake, cache), lake.settings.policy.for_table(NAME)
        decoded = copied = 0
        manifests: list[int] = []
        engines: Counter[str] = Counter()
        for commit in track(range(1, options.commits + 1), description="commits", console=Console(stderr=True)):
            columns = [random.integers(0, 2**62, rows), random.random(rows), np.zeros(rows, dtype=np.int32)]
            table.append(pa.table(columns, schema=SCHEMA))
            if commit % options.every:
                continue
            for group in rewriter.run(plan_table(lake.view(str(NAME)), policy, cache)).groups:
                decoded += group.rewritten.bytes_decoded
                copied += group.rewritten.bytes_in - group.rewritten.bytes_decoded
                engines[group.rewritten.reason] += 1
            table.refresh()
            manifests.append(len(lake.view(str(NAME)).manifests()))
        files = [plain_path(task.file.file_path) for task in table.scan().plan_files()]
        metadata = [pq.read_metadata(file) for file in files]
        groups = [each.row_group(index).total_byte_size for each in metadata for index in range(each.num_row_groups)]
        arrived = _arrived(table)
        assert table.scan().count() == rows * options.commits
        console.print(
            f"{options.commits} commits of {arrived / options.commits / 1000:.0f} KB = {arrived / 1e6:.1f} MB, looked "
            f"at every {options.every} commits: {engines.total()} rewrites {dict(engines)}\n"
            f"manifests after a look: {max(manifests)} at most, {manifests[-1]} in the end\n"
            f"a byte was decoded {decoded / arrived:.2f} times (goal <= 1.1) and copied {copied / arrived:.2f} times; "
            f"{len(files)} files left, row groups of {min(groups) / 1e6:.1f} to {max(groups) / 1e6:.1f} MB"
        )


def _arrived(table: Any) -> int:
    """Bytes of all appends, from their snapshots' own summaries."""
    summaries = (snapshot.summary for snapshot in table.metadata.snapshots)
    return sum(int(each["added-files-size"] or 0) for each in summaries if each.operation.value == "append")


if __name__ == "__main__":
    main()
