"""Compaction inside S3: how many bytes pass through the compactor, and how long it takes beside a plain copy.

A real S3 server (TEST_S3 with http, else s3proxy on this machine) behind a relay that counts every byte on the wire.
112 Parquet files become 4. Each round measures in turn: the splice shares of one table as `firnline compact` runs them
(footers read, row groups copied inside the store, indexes and footer written), and a plain copy of the same files.
Medians of the rounds; s3proxy copies through its own memory on the same two cores, so its seconds say little about S3.

    python -m tests.benchmarks.bench_s3 [--rounds 3] [--file-mb 7.6] [--files 112] [--outputs 4] [--folder DIR]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from compactor.rewrite.parquet.footer import read_footer
from compactor.rewrite.splice.splice import SpliceInput, SpliceLimits, splice
from compactor.storage.s3_objects import Transferred
from compactor.storage.s3_store import S3ByteStore
from tests.benchmarks.machine import description
from tests.services.counting_proxy import Wire, counting_proxy
from tests.services.s3_server import S3Server, s3_server, s3_source

GOAL = 0.02
TASKS = 2  # outputs at the same time, as two cores would have it
ROW_BYTES = 420


@dataclass
class Round:
    """Seconds, and bytes as the client and as the wire counted them."""

    seconds: list[float] = field(default_factory=list)
    transferred: list[Transferred] = field(default_factory=list)
    carried: list[int] = field(default_factory=list)


def parquet_file(file_bytes: float, seed: int) -> bytes:
    """Ten columns with field ids and page indexes, half of the bytes incompressible."""
    noise = random.Random(seed)
    rows = int(file_bytes / ROW_BYTES)
    columns = {
        "id": pa.array(range(rows), pa.int64()),
        "payload": pa.array([noise.randbytes(348) for _ in range(rows)]),
    }
    columns |= {f"n{number}": pa.array([noise.random() for _ in range(rows)]) for number in range(8)}
    fields = [
        pa.field(name, column.type, metadata={b"PARQUET:field_id": str(number).encode()})
        for number, (name, column) in enumerate(columns.items(), 1)
    ]
    sink = BytesIO()
    pq.write_table(
        pa.table(list(columns.values()), schema=pa.schema(fields)), sink, compression="zstd", write_page_index=True
    )
    return sink.getvalue()


def compact(server: S3Server, shares: Sequence[Sequence[SpliceInput]], folder: str) -> Transferred:
    """Every share into one output, as the splice task does it; a store of its own each."""

    def one(number: int) -> Transferred:
        store, inputs = S3ByteStore(server.properties), shares[number]
        footers = [read_footer(store, source.location, source.size) for source in inputs]
        splice(store, inputs, f"{folder}/{number}.parquet", SpliceLimits(), footers=footers)
        return store.transferred

    with ThreadPoolExecutor(TASKS) as pool:
        return sum(pool.map(one, range(len(shares))), Transferred())


def plain_copy(server: S3Server, inputs: Sequence[SpliceInput], folder: str) -> Transferred:
    """Every file fetched and put elsewhere, with as many requests at the same time as a splice has."""
    store = S3ByteStore(server.properties)

    def one(source: SpliceInput) -> None:
        file = store.create(f"{folder}/{source.location.rpartition('/')[2]}")
        file.write(store.read(source.location, 0, source.size))
        file.finish()

    with ThreadPoolExecutor(8 * TASKS) as pool:
        list(pool.map(one, inputs))
    return store.transferred


def remove(server: S3Server, folder: str) -> None:
    store = S3ByteStore(server.properties)
    for location in server.keys(folder):
        store.delete(location)


def contents_equal(server: S3Server, inputs: Sequence[SpliceInput], outputs: Sequence[str]) -> bool:
    """Rows of all files, in order, column by column."""
    before = pa.concat_tables([pq.read_table(BytesIO(server.get(source.location))) for source in inputs])
    after = pa.concat_tables([pq.read_table(BytesIO(server.get(location))) for location in outputs])
    return bool(before.equals(after))


def measure(
    server: S3Server, wire: Wire, shares: Sequence[Sequence[SpliceInput]], rounds: int, console: Console
) -> dict[str, Round]:
    """Interleaved rounds after one that warms up."""
    results = {"firnline": Round(), "GET + PUT": Round()}
    inputs = [source for share in shares for source in share]
    for number in range(rounds + 1):
        for name, result in results.items():
            folder = server.folder()
            carried, started = wire.total, time.perf_counter()
            moved = compact(server, shares, folder) if name == "firnline" else plain_copy(server, inputs, folder)
            seconds = time.perf_counter() - started
            console.print(f"round {number}: {name} {seconds:.2f} s, {moved}, {wire.total - carried} on the wire")
            if number:
                result.seconds.append(seconds)
                result.transferred.append(moved)
                result.carried.append(wire.total - carried)
            elif name == "firnline":
                outputs = [f"{folder}/{share}.parquet" for share in range(len(shares))]
                assert contents_equal(server, inputs, outputs), "rows differ"
                console.print("rows of inputs and outputs equal: True")
            remove(server, folder)
    return results


def report(results: dict[str, Round], total: int, console: Console) -> None:
    table = Table(title=f"{total / 1e6:.0f} MB, medians of {len(results['firnline'].seconds)} interleaved rounds")
    for heading in ("", "median s", "min s", "max s", "MB through", "MB on the wire", "% of bytes"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, result in results.items():
        through = statistics.median(moved.read + moved.sent for moved in result.transferred)
        carried = statistics.median(result.carried)
        table.add_row(
            name,
            f"{statistics.median(result.seconds):.2f}", f"{min(result.seconds):.2f}", f"{max(result.seconds):.2f}",
            f"{through / 1e6:.2f}", f"{carried / 1e6:.2f}", f"{100 * carried / total:.2f}",
        )  # fmt: skip
    console.print(table)
    share = statistics.median(results["firnline"].carried) / total
    console.print(f"goal: {100 * share:.2f} % of the bytes compacted through the compactor (<= {100 * GOAL:.0f} %)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--file-mb", type=float, default=7.6)
    parser.add_argument("--files", type=int, default=112)
    parser.add_argument("--outputs", type=int, default=4)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    console = Console(width=120)
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch, s3_server(Path(scratch)) as direct:
        host, _, port = direct.endpoint.rpartition("/")[2].partition(":")
        with counting_proxy(host, int(port or 80)) as wire:
            folder = direct.folder()
            distinct = [parquet_file(options.file_mb * 1e6, seed) for seed in range(4)]
            inputs = []
            for number in range(options.files):
                data = distinct[number % len(distinct)]
                inputs.append(SpliceInput(direct.put(f"{folder}/{number:04d}.parquet", data), len(data)))
            each = -(-len(inputs) // options.outputs)
            shares = [inputs[start : start + each] for start in range(0, len(inputs), each)]
            total = sum(source.size for source in inputs)
            console.print(description(Path(scratch)))
            console.print(f"S3: {s3_source()}; {len(inputs)} files into {len(shares)}, {total / 1e6:.0f} MB")
            report(measure(direct.behind(wire.endpoint), wire, shares, options.rounds, console), total, console)


if __name__ == "__main__":
    main()
