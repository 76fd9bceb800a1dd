"""Memory of the host, reserved by encodes in processes of their own."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.reasons import Refusal
from compactor.rewrite.deletes import equality_deletes
from compactor.rewrite.deletes.equality_deletes import EncodeInput, EqualityDelete, InputFiles
from compactor.rewrite.deletes.key_search import FoundRows, search
from compactor.rewrite.deletes.position_deletes import DeleteFile
from compactor.rewrite.encode.encode import encode
from compactor.rewrite.encode.writer import EncodedFile
from compactor.rewrite.reading.memory import (
    LEAST_BYTES,
    LINE_SECONDS,
    LONGEST_SECONDS,
    LOOK_SECONDS,
    MIB,
    HostMemory,
    Reservation,
    Waiting,
    free_memory,
    granted,
)
from compactor.storage.local_store import LocalByteStore
from tests.unit.rewrite.encode_support import IDS, column, deletes, encode_task, ids_file, write

HOLDER = """
import sys, time
from pathlib import Path
from compactor.rewrite.reading.memory import HostMemory
with HostMemory(Path(sys.argv[1]), lambda: int(sys.argv[2])).reserved(int(sys.argv[3])) as found:
    print(found, flush=True)
    time.sleep(600)
"""

FREE = 1000 * MIB
sizes = st.integers(0, 2**40)
others = st.lists(st.builds(Reservation, sizes, sizes), max_size=5)


@given(sizes, sizes, others)
def test_an_encode_takes_what_is_free_and_not_promised_waits_for_others_or_makes_do(
    wanted: int, free: int, held: list[Reservation]
) -> None:
    found = granted(wanted, free, held)
    promised = sum(max(0, each.bytes - each.taken) for each in held)
    if found == wanted:
        assert wanted + promised <= free or (not held and wanted <= LEAST_BYTES)
    elif found is None:
        assert held
        assert wanted > free * 0.9 - promised - 1
    else:
        assert not held
        assert min(wanted, LEAST_BYTES) <= found < wanted


LARGE, SMALL = 2048 * MIB, [Reservation(64 * MIB, 0)]
ROOM = 1536 * MIB - 1536 * MIB // 10 - 64 * MIB


@pytest.mark.parametrize(
    ("wanted", "waited", "expected"),
    [
        (LARGE, 0.0, None),
        (LARGE, LINE_SECONDS - 1, None),
        (LARGE, LINE_SECONDS, ROOM),
        (2 * LARGE, LINE_SECONDS, ROOM),
        (2 * LARGE, LONGEST_SECONDS, ROOM),
        (MIB, LONGEST_SECONDS, MIB),
    ],
)
def test_after_a_minute_half_of_what_is_wanted_will_do_and_after_ten_minutes_what_there_is(
    wanted: int, waited: float, expected: int | None
) -> None:
    assert granted(wanted, 1536 * MIB, SMALL, waited) == expected


@given(sizes, sizes, others, st.floats(LONGEST_SECONDS, 1e6))
def test_nothing_waits_for_ever(wanted: int, free: int, held: list[Reservation], waited: float) -> None:
    found = granted(wanted, free, held, waited, [Waiting(2**50, LINE_SECONDS)])
    assert found is not None
    assert min(wanted, LEAST_BYTES) <= found <= wanted


@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        ([], 300 * MIB),
        ([LINE_SECONDS - 1], 300 * MIB),
        ([LINE_SECONDS], None),
        ([LONGEST_SECONDS + 1], 300 * MIB),
        ([LONGEST_SECONDS + 1, LINE_SECONDS, 0.0], None),
    ],
    ids=["nobody", "not for long", "for long", "one that hangs", "one that hangs and others"],
)
def test_what_fits_begins_before_one_that_waits_for_a_minute_at_most(ages: list[float], expected: int | None) -> None:
    ahead = [Waiting(1300 * MIB, age) for age in ages]
    assert granted(300 * MIB, FREE, SMALL, 0.0, ahead) == expected
    assert granted(300 * MIB, FREE, [], 0.0, ahead) == expected


@pytest.mark.parametrize(
    ("age", "wanted", "expected"),
    [(90.0, 100, 100), (90.0, 101, None), (61.0, 100, 100), (60.0, 1, None)],
    ids=["it fits beside half", "it does not", "came in the same second", "the other came later too"],
)
def test_what_leaves_half_for_the_one_that_waits_begins_before_it(
    age: float, wanted: int, expected: int | None
) -> None:
    """Of 1,000 bytes, one that came earlier holds 600, one that came later 200: 100 are left beside 700."""
    held, first = [Reservation(600, 0, age), Reservation(200, 0, 1.0)], Waiting(1400, 61.0)
    assert granted(wanted, 1111, held, 0.0, [first]) == expected


def test_one_that_wants_more_than_the_host_can_give_neither_waits_for_it_nor_holds_back_small_ones() -> None:
    gib = 1024 * MIB
    for held in ([Reservation(gib, 0, 200.0)], [Reservation(gib, gib, 200.0)], [Reservation(gib, 0, 10.0)]):
        assert granted(64 * MIB, 7 * gib, held, 0.0, [Waiting(16 * gib, 100.0)]) == 64 * MIB
        assert granted(16 * gib, 7 * gib, held, 100.0) is not None
    busy = [Reservation(4 * gib, 0, 200.0)]
    assert granted(16 * gib, 7 * gib, busy, 100.0) is None, "three quarters of what there is"
    assert granted(gib, 7 * gib, [Reservation(4 * gib, 0, 10.0)], 0.0, [Waiting(16 * gib, 100.0)]) is None


@dataclass
class Job:
    """One encode of the simulation: bytes, seconds, when it came and when it began."""

    wanted: int
    seconds: float
    came: float = 0.0
    began: float | None = None


def simulate(free: int, slots: list[list[Job]]) -> None:
    """Run the jobs of each slot one after another, with a look every half second."""
    now, left = 0.0, [list(slot) for slot in slots]
    while any(left):
        for slot in left:
            if slot and slot[0].began is not None and now >= slot[0].began + slot[0].seconds:
                slot.pop(0)
                if slot:
                    slot[0].came = now
        for job in sorted((slot[0] for slot in left if slot and slot[0].began is None), key=lambda job: job.came):
            heads = [slot[0] for slot in left if slot and slot[0] is not job]
            held = [Reservation(each.wanted, 0, now - each.came) for each in heads if each.began is not None]
            ahead = [
                Waiting(each.wanted, now - each.came) for each in heads if each.began is None and each.came < job.came
            ]
            found = granted(job.wanted, free, held, now - job.came, ahead)
            if found is not None:
                job.wanted, job.began = found, now
        now += LOOK_SECONDS


def test_large_ones_that_wait_for_each_other_do_not_hold_back_small_ones() -> None:
    large = [[Job(4096 * MIB, 60.0) for _ in range(10)] for _ in range(3)]
    small = [Job(80 * MIB, 0.3) for _ in range(1000)]
    simulate(6144 * MIB, [*large, small])
    assert small[-1].came <= 1000 * 2 * LOOK_SECONDS


def test_a_large_one_begins_although_small_ones_come_without_end() -> None:
    """Of two slots one is always taken; the jobs of a third slot are so small that they may go first."""
    large = Job(10_000 * MIB, 10.0)
    small = [[Job(1200 * MIB, first), *(Job(1200 * MIB, 4.0) for _ in range(200))] for first in (2.0, 4.0)]
    simulate(6144 * MIB, [*small, [Job(100 * MIB, 1.0) for _ in range(900)], [large]])
    assert large.began is not None
    assert LINE_SECONDS <= large.began <= LINE_SECONDS + 4.0 + LOOK_SECONDS


def test_the_free_memory_is_that_of_the_host_or_of_the_container_if_that_is_less(tmp_path: Path) -> None:
    assert free_memory(tmp_path) is None
    put(tmp_path / "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    assert free_memory(tmp_path) == 5000 * 1024
    put(tmp_path / "sys/fs/cgroup/memory.current", "3000000\n")
    put(tmp_path / "sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 500000\n")
    put(tmp_path / "sys/fs/cgroup/memory.max", "max\n")
    assert free_memory(tmp_path) == 5000 * 1024
    put(tmp_path / "sys/fs/cgroup/memory.max", "4000000\n")
    assert free_memory(tmp_path) == 4_000_000 - 3_000_000 + 500_000
    put(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n")
    put(tmp_path / "sys/fs/cgroup/memory/memory.usage_in_bytes", "900\n")
    put(tmp_path / "sys/fs/cgroup/memory/memory.stat", "total_inactive_file 50\n")
    assert free_memory(tmp_path) == 150


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has reserved 700 of 1,000 MiB."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path), str(FREE), str(700 * MIB)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == 700 * MIB
        yield process
        process.kill()


def test_an_encode_waits_for_another_process_and_a_killed_one_gives_its_memory_back(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    host, found = HostMemory(tmp_path, lambda: FREE), list[int]()
    with host.reserved(150 * MIB) as beside:
        assert beside == 150 * MIB

    def wait() -> None:
        with host.reserved(400 * MIB) as later:
            found.append(later)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(2)
    assert found == []
    holder.kill()
    waiting.join(60)
    assert found == [400 * MIB]
    with host.reserved(1):
        assert len([path for path in tmp_path.iterdir() if path.name != ".lock"]) == 1


def test_behind_one_that_has_waited_for_a_minute_only_those_begin_that_leave_it_half_of_what_it_wants(
    tmp_path: Path,
) -> None:
    now, order = [1000.0], list[str]()
    host = HostMemory(tmp_path, lambda: FREE, lambda: now[0], lambda _seconds: threading.Event().wait(0.01))

    def reserve(name: str, wanted: int) -> threading.Thread:
        def work() -> None:
            with host.reserved(wanted):
                order.append(name)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    with host.reserved(400 * MIB):
        large = reserve("large", 1200 * MIB)
        wait_until(lambda: len(list(tmp_path.iterdir())) == 3)  # with the lock's file
        reserve("at once", 400 * MIB).join(60)
        now[0] += LINE_SECONDS
        later = reserve("later", 400 * MIB)
        later.join(0.5)
        reserve("beside", 200 * MIB).join(60)
        assert order == ["at once", "beside"]
    large.join(60)
    later.join(60)
    assert order == ["at once", "beside", "large", "later"]


def test_one_that_has_waited_too_long_takes_what_there_is(tmp_path: Path) -> None:
    now = [1000.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    host = HostMemory(tmp_path, lambda: FREE, lambda: now[0], sleep)
    with host.reserved(800 * MIB), host.reserved(1000 * MIB) as found:
        assert LEAST_BYTES <= found < 500 * MIB
    assert LONGEST_SECONDS <= now[0] - 1000.0 < LONGEST_SECONDS + 2


def wait_until(done: Callable[[], bool]) -> None:
    for _ in range(6000):
        if done():
            return
        time.sleep(0.01)
    raise AssertionError


def test_where_memory_is_unknown_or_cannot_be_reserved_an_encode_goes_on(tmp_path: Path) -> None:
    with HostMemory(tmp_path / "one", lambda: None).reserved(5) as found:
        assert found == 5
    (tmp_path / "file").write_text("in the way")
    with HostMemory(tmp_path / "file" / "two", lambda: 1).reserved(5) as found:
        assert found == 5


def test_an_encode_that_does_not_fit_writes_smaller_row_groups(tmp_path: Path) -> None:
    rows = 3_000_000
    ids = np.random.default_rng(1).integers(0, 2**62, rows)
    source = write(
        tmp_path / "in.parquet", pa.table([ids], schema=pa.schema([column("id", pa.int64(), 1, nullable=False)]))
    )
    groups = {}
    for name, free in (("much", 4096 * MIB), ("little", LEAST_BYTES)):
        (tmp_path / name).mkdir()
        task = encode_task(tmp_path / name, IDS, [source])
        result = encode(task, HostMemory(tmp_path / "host", lambda free=free: free))
        assert not isinstance(result, Refusal)
        file = pq.ParquetFile(task.output)
        assert file.read().column("id").to_numpy().tolist() == ids.tolist()
        groups[name] = file.num_row_groups
    assert groups["much"] == 1
    assert groups["little"] >= 2


class Seen(LocalByteStore):
    """Local files: what is read of them, and when memory is reserved, in order."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def read(self, location: str, offset: int, length: int) -> bytes:
        self.order.append(Path(location).name)
        return super().read(location, offset, length)

    def free(self) -> int:
        self.order.append("memory")
        return 2**40


def with_deletes(folder: Path) -> EncodeInput:
    source, keys = ids_file(folder / "in.parquet", 0, 100), ids_file(folder / "keys.parquet", 10, 5)
    return replace(
        source,
        position_deletes=(deletes(folder / "positions.parquet", [(source.location, 3)]),),
        equality_deletes=(EqualityDelete(keys.location, keys.size, 1, (1,)),),
    )


def test_memory_is_reserved_before_deletes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, seen = with_deletes(tmp_path), Seen()
    host = HostMemory(tmp_path / "host", seen.free)
    monkeypatch.setattr(equality_deletes, "byte_store_for", lambda *_: seen)
    written = encode(encode_task(tmp_path, IDS, [source]), host)
    assert isinstance(written, EncodedFile)
    assert (written.rows, written.rows_deleted) == (94, 6)
    deletes_read = {"keys.parquet", "positions.parquet"}
    assert deletes_read <= set(seen.order)
    assert deletes_read.isdisjoint(seen.order[: seen.order.index("memory")])
    seen.order.clear()
    found = search(InputFiles((source,), IDS.model_dump_json()), host)
    assert isinstance(found, FoundRows)
    assert deletes_read <= set(seen.order)
    assert seen.order[0] == "memory"


def memory_of(*inputs: EncodeInput) -> int:
    return InputFiles(inputs, "").deletes_memory


def test_deletes_count_once_with_eight_times_their_bytes_and_positions_with_eight_bytes_at_most() -> None:
    keys = EqualityDelete("keys", 1000, 2, (1,))
    plain = EncodeInput("a", 10**9, 10**6, equality_deletes=(keys,))
    assert memory_of(plain, replace(plain, location="b")) == 8 * 1000
    shared = DeleteFile("positions", 10**6)
    named = [EncodeInput(name, 10**9, 3000, position_deletes=(shared,)) for name in "ab"]
    assert memory_of(*named) == 8 * 2 * 3000
    assert memory_of(replace(named[0], records=10**9), *named[1:]) == 8 * 10**6
    assert memory_of(replace(plain, equality_deletes=())) == 0
