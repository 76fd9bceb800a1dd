"""Memory of one host, reserved before use, by all encodes that run on it in processes of their own.

An encode holds one row group in memory. Before it begins, it writes down how much it may take; what others have written
down and not taken yet is not free. If too little is free, it waits until another ends. If no other runs, it writes
smaller row groups. `granted` decides, pure; `HostMemory` reads the host and keeps the reservations: a locked file each,
so that a process that is killed gives its reservation back.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024
LOOK_SECONDS = 0.5
SHARE_KEPT = 10  # one part in this many of the free memory stays free: sizes are estimates
LEAST_BYTES = 64 * MIB
"""Reserved in any case. Below, an encode gains nothing by smaller row groups."""
LOCK = ".lock"


@dataclass(frozen=True)
class Reservation:
    """Another encode's: bytes it may take, and bytes it has taken of them."""

    bytes: int
    taken: int

    @property
    def open(self) -> int:
        """Bytes that it still may take."""
        return max(0, self.bytes - self.taken)


def granted(wanted: int, free: int, others: Sequence[Reservation]) -> int | None:
    """Bytes that an encode may take now; None: it waits until another has ended. All in bytes.

    Alone it gets what there is, at least `LEAST_BYTES`: waiting would not help.
    """
    room = free - free // SHARE_KEPT - sum(each.open for each in others)
    if wanted <= room:
        return wanted
    return None if others else max(min(wanted, LEAST_BYTES), room)


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
    """The reservations of one host, a file each in `folder`. `free`: bytes that processes may still take, if known."""

    folder: Path
    free: Callable[[], int | None] = free_memory

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
        while (free := self.free()) is not None:
            with self._alone():
                bytes_granted = granted(wanted, free, self._others())
                if bytes_granted is not None:
                    return self._written(bytes_granted), bytes_granted
            time.sleep(LOOK_SECONDS)
        return None, wanted

    @contextmanager
    def _alone(self) -> Iterator[None]:
        file = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def _written(self, wanted: int) -> int:
        pid = os.getpid()
        file = os.open(self.folder / uuid.uuid4().hex, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        os.write(file, f"{pid} {wanted} {resident(pid)}".encode())
        return file

    def _others(self) -> list[Reservation]:
        found = []
        for path in self.folder.iterdir():
            if path.name != LOCK and (text := _held(path)) is not None:
                pid, reserved, before = (int(each) for each in text.split())
                found.append(Reservation(reserved, resident(pid) - before))
        return found


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
    return HostMemory(Path(tempfile.gettempdir()) / f"firnline-memory-{os.getuid()}")
