"""Memory of one host, reserved before use, by all encodes and searches that run on it in processes of their own.

An encode holds one row group and the deletes of its inputs in memory, a search for deleted rows these deletes. Before
it begins, it writes down how much it may take; what others have written down and not taken yet is not free. If too
little is free, it waits in a line until others end. If no other runs, or after too long a wait, it makes do with less:
an encode writes smaller row groups. `granted` decides, pure; `HostMemory` reads the host and keeps the reservations and
the line: a locked file each, so that a process that is killed gives its reservation or place back.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

UNPACKED_RATIO: Final = 8  # most memory of rows by their compressed bytes; text compresses well
MIB = 1024 * 1024
LOOK_SECONDS = 0.5
SHARE_KEPT = 10  # one part in this many of the free memory stays free: sizes are estimates
LEAST_BYTES = 64 * MIB
"""Reserved in any case. Below, an encode gains nothing by smaller row groups."""
LINE_SECONDS = 60.0
"""For so long, all that fit may begin before an encode that came earlier and waits. Then half of what it wants will do,
and only those may begin that leave it so much once all that came before it have ended: a large encode would wait for
ever while small ones of other tables come and go. Where the host has less, three quarters of that will do."""
LONGEST_SECONDS = 600.0
"""After such a wait an encode takes what there is. Its run is stopped as one that hangs after three times as long."""
LOCK = ".lock"
FORMAT = 2
"""Of the files, in the name of their folder: processes of another version on this host cannot read them."""
WAITS = -1
"""Instead of reserved bytes, in the file of an encode that waits. A file holds four numbers: the process, the second in
which it came, the reserved bytes, and how much memory the process held before (where it waits: what it wants)."""


@dataclass(frozen=True)
class Reservation:
    """Another encode's: bytes it may take, bytes it has taken of them, and how many seconds ago it came."""

    bytes: int
    taken: int
    age: float = 0.0

    @property
    def open(self) -> int:
        """Bytes that it still may take."""
        return max(0, self.bytes - self.taken)


@dataclass(frozen=True)
class Waiting:
    """Another encode that waits: bytes that it wants, and how many seconds ago it came."""

    wanted: int
    age: float


def granted(
    wanted: int, free: int, others: Sequence[Reservation], waited: float = 0.0, ahead: Sequence[Waiting] = ()
) -> int | None:
    """Bytes that an encode may take now; None: it waits until another has ended. All in bytes.

    Alone it gets what there is, at least `LEAST_BYTES`: waiting would not help. `waited`: seconds so far. `ahead`: the
    ones that came before it and still wait. One that waits for too long hangs: it has no place.
    """
    room = free - free // SHARE_KEPT - sum(each.open for each in others)
    some = max(min(wanted, LEAST_BYTES), min(wanted, room))
    if waited >= LONGEST_SECONDS:
        return some
    most = room + sum(each.bytes for each in others)  # once all have ended
    line = [each for each in ahead if LINE_SECONDS <= each.age < LONGEST_SECONDS]
    if not all(_left_for(each, room - some, others) >= _will_do(each.wanted, most) for each in line):
        return None
    enough = _will_do(wanted, most) if waited >= LINE_SECONDS else wanted
    return some if room >= enough or not others else None


def _will_do(wanted: int, most: int) -> int:
    """Bytes with which an encode begins that has waited for a minute. `most`: bytes that the host can give at all."""
    return min(wanted // 2, most * 3 // 4)


def _left_for(first: Waiting, room: int, others: Sequence[Reservation]) -> int:
    """Bytes for `first` once all of `others` have ended that did not come after it."""
    return room + sum(each.bytes for each in others if each.age >= first.age)


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes that processes may still take: of the host, or of the container if that is less; None if unknown.

    From /proc/meminfo and the files of cgroup version 2 or 1. Cached file pages of the container count as free.
    """
    new, old = root / "sys/fs/cgroup", root / "sys/fs/cgroup/memory"
    found = [
        _available(root / "proc/meminfo"),
        _below_limit(new / "memory.max", new / "memory.current", new / "memory.stat", "inactive_file"),
        _below_limit(
            old / "memory.limit_in_bytes", old / "memory.usage_in_bytes", old / "memory.stat", "total_inactive_file"
        ),
    ]
    known = [each for each in found if each is not None]
    return min(known) if known else None


def _available(meminfo: Path) -> int | None:
    with suppress(OSError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _below_limit(limit: Path, used: Path, stat: Path, cached: str) -> int | None:
    try:
        most, now = limit.read_text().strip(), used.read_text()
        counts = dict(line.split() for line in stat.read_text().splitlines())
    except OSError:
        return None
    return max(0, int(most) - int(now) + int(counts.get(cached, 0))) if most.isdigit() else None


def resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


@dataclass(frozen=True)
class HostMemory:
    """The reservations of one host, a file each in `folder`. `free`: bytes that processes may still take, if known.

    `clock`: a steady clock in seconds that all processes of the host share. `sleep`: takes seconds.
    """

    folder: Path
    free: Callable[[], int | None] = free_memory
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep

    @contextmanager
    def reserved(self, wanted: int) -> Iterator[int]:
        """Reserve memory during the block; yields how many bytes, at most `wanted`. Waits while others hold too much.

        A host that does not show its memory, or a folder that cannot be written, grants everything.
        """
        file: int | None = None
        try:
            bytes_granted = wanted
            with suppress(OSError):
                file, bytes_granted = self._reserve(wanted)
            yield bytes_granted
        finally:
            if file is not None:
                os.close(file)  # the next encode removes the unlocked file

    def _reserve(self, wanted: int) -> tuple[int | None, int]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        since, mine = int(self.clock()), self.folder / uuid.uuid4().hex
        with ExitStack() as unless_granted:
            file: int | None = None
            while (free := self.free()) is not None:
                with self._alone():
                    if file is None:
                        file = _locked(mine)
                        unless_granted.callback(os.close, file)
                        _write(file, f"{os.getpid()} {since} {WAITS} {wanted}")
                    now = self.clock()
                    others, ahead = self._others(since, mine, now)
                    bytes_granted = granted(wanted, free, others, now - since, ahead)
                    if bytes_granted is not None:
                        _write(file, f"{os.getpid()} {since} {bytes_granted} {resident(os.getpid())}")
                        unless_granted.pop_all()
                        return file, bytes_granted
                self.sleep(LOOK_SECONDS)
        return None, wanted

    @contextmanager
    def _alone(self) -> Iterator[None]:
        file = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def _others(self, since: int, mine: Path, now: float) -> tuple[list[Reservation], list[Waiting]]:
        """Reservations of others, and the ones that wait and came before `mine`, which came at `since`."""
        found, ahead = list[Reservation](), list[Waiting]()
        for path in self.folder.iterdir():
            if path.name in {LOCK, mine.name} or (text := _held(path)) is None:
                continue
            pid, came, reserved, number = (int(each) for each in text.split())
            if reserved != WAITS:
                found.append(Reservation(reserved, resident(pid) - number, now - came))
            elif (came, path.name) < (since, mine.name):
                ahead.append(Waiting(number, now - came))
        return found, ahead


def _locked(path: Path) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def _write(file: int, text: str) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, text.encode(), 0)


def _held(path: Path) -> str | None:
    """The content of a locked file. A file without a lock is of an encode that has ended: it is removed."""
    file = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(file, 100).decode()
    else:
        path.unlink()
        return None
    finally:
        os.close(file)


def this_host() -> HostMemory:
    """The memory of this machine or container. Encodes of the same user share it."""
    return HostMemory(Path(tempfile.gettempdir()) / f"firnline-memory-{FORMAT}-{os.getuid()}")
