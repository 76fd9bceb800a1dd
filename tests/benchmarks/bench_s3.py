"""Compaction inside S3: how many bytes pass through the compactor, and how long it takes beside a plain copy.

A real S3 server (TEST_S3 with http, else s3proxy on this machine) behind a relay that counts every byte on the wire.
112 Parquet files become 4. Each round measures in turn: the splice shares of one table as `firnline compact` runs them
(footers read, row groups copied inside the store, indexes and footer written), and a plain copy of the same files.
Medians of the rounds; s3proxy copies through its own memory on the same two cores, so its seconds say little about S3.

    python -m tests.benchmarks.bench_s3 [--rounds 3] [--file-mb 7.6] [--files 112] [--outputs 4] [--folder DIR]
"""

from __future__ import annotations

import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from compactor.rewrite.parquet.footer import read_footer
from compactor.rewrite.splice.splice import SpliceInput, SpliceLimits, splice
from compactor.storage.s3_store import S3ByteStore
from tests.benchmarks.harness import bench_folder, options_of, rounds, show, show_rounds
from tests.services.counted_store import CountedStore
from tests.services.counting_proxy import Wire, counting_proxy
from tests.services.s3_server import S3Server, s3_server, s3_source

GOAL = 0.02
TASKS = 2  # outputs at the same time, as two cores would have it
ROW_BYTES = 420


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


def compact(server: S3Server, shares: Sequence[Sequence[SpliceInput]], folder: str) -> Counter[str]:
    """Every share into one output, as the splice task does it; a store of its own each."""

    def one(number: int) -> Counter[str]:
        store, inputs = CountedStore(server.properties), shares[number]
        footers = [read_footer(store, source.location, source.size) for source in inputs]
        splice(store, inputs, f"{folder}/{number}.parquet", SpliceLimits(), footers=footers)
        return store.moved

    with ThreadPoolExecutor(TASKS) as pool:
        return sum(pool.map(one, range(len(shares))), Counter[str]())


def plain_copy(server: S3Server, inputs: Sequence[SpliceInput], folder: str) -> Counter[str]:
    """Every file fetched and put elsewhere, with as many requests at the same time as a splice has."""
    store = CountedStore(server.properties)

    def one(source: SpliceInput) -> None:
        file = store.create(f"{folder}/{source.location.rpartition('/')[2]}")
        file.write(store.read(source.location, 0, source.size))
        file.finish()

    with ThreadPoolExecutor(8 * TASKS) as pool:
        list(pool.map(one, inputs))
    return store.moved


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
    server: S3Server, wire: Wire, shares: Sequence[Sequence[SpliceInput]], count: int, console: Console
) -> None:
    """Interleaved rounds after one that warms up."""
    inputs = [source for share in shares for source in share]
    total = sum(source.size for source in inputs)
    through: dict[str, list[tuple[int, int]]] = defaultdict(list)
    noted = wire.total
    folder = server.folder()

    def after(number: int, name: str, seconds: float, moved: Counter[str]) -> None:
        nonlocal noted
        console.print(f"round {number}: {name} {seconds:.2f} s, {moved}, {wire.total - noted} on the wire")
        through[name].append((moved["read"] + moved["sent"], wire.total - noted))
        if name == "firnline" and not number:
            outputs = [f"{folder}/{share}.parquet" for share in range(len(shares))]
            assert contents_equal(server, inputs, outputs), "rows differ"
        remove(server, folder)
        noted = wire.total

    rivals: dict[str, Callable[[], Counter[str]]] = {
        "firnline": lambda: compact(server, shares, folder),
        "GET + PUT": lambda: plain_copy(server, inputs, folder),
    }
    show_rounds(console, f"{total / 1e6:.0f} MB, {count} interleaved rounds", rounds(rivals, count, after))
    middle = {
        name: [statistics.median(column) for column in zip(*moved[1:], strict=True)] for name, moved in through.items()
    }
    rows = [(name, moved / 1e6, wired / 1e6, 100 * wired / total) for name, (moved, wired) in middle.items()]
    show(console, "bytes", ("", "MB through", "MB on the wire", "% of bytes"), rows)
    share = 100 * middle["firnline"][1] / total
    console.print(f"rows equal; {share:.2f} % of the bytes compacted passed through (goal <= {100 * GOAL:.0f} %)")


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--file-mb", type=float, default=7.6)
    parser.add_argument("--files", type=int, default=112)
    parser.add_argument("--outputs", type=int, default=4)
    options = parser.parse_args()
    with bench_folder(options.folder) as (scratch, console), s3_server(scratch) as direct:
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
            console.print(f"S3: {s3_source()}; {len(inputs)} files into {len(shares)}")
            measure(direct.behind(wire.endpoint), wire, shares, options.rounds, console)


if __name__ == "__main__":
    main()
