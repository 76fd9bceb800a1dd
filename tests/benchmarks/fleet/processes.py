"""Processor time and memory of a process and all its descendants, from /proc."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
MEGABYTE = 1e6
JVM, DRIVER, WORKERS = "JVM", "driver", "Python workers"


@dataclass(frozen=True)
class Memory:
    """Megabytes. `rss` counts pages that several processes share in each of them, `pss` counts them once."""

    rss: float = 0.0
    pss: float = 0.0

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.rss + other.rss, self.pss + other.pss)


@dataclass
class Tree:
    """The process `root`, which is a Python driver with a JVM and Python workers below it.

    Spark's daemon ignores the end of its workers, so the kernel adds their time to no parent. Therefore the tree is
    looked at every second, and what was last seen of a process that has ended still counts.
    """

    root: int
    _used: dict[tuple[int, str], tuple[str, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

    def pids(self) -> list[int]:
        children = defaultdict(list)
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, ValueError, IndexError):
                children[int(_fields(stat)[1])].append(int(stat.parent.name))
        found, waiting = [], [self.root]
        while waiting:
            pid = waiting.pop()
            found.append(pid)
            waiting += children[pid]
        return found

    def watch(self) -> None:
        """Look every second from now on, until `leave`."""

        def look() -> None:
            while not self._ended.wait(1.0):
                self.processor_by_name()

        threading.Thread(target=look, daemon=True).start()

    def leave(self) -> None:
        self._ended.set()

    def processor_seconds(self) -> float:
        """User and system time of all processes that were ever seen."""
        return sum(self.processor_by_name().values())

    def processor_by_name(self) -> dict[str, float]:
        with self._lock:
            for pid in self.pids():
                with suppress(OSError):
                    stat = _fields(Path(f"/proc/{pid}/stat"))
                    self._used[pid, stat[19]] = (self._name(pid), processor_seconds(pid))
            found: dict[str, float] = defaultdict(float)
            for name, seconds in self._used.values():
                found[name] += seconds
            return dict(found)

    def memory(self, *, shared: bool = True) -> dict[str, Memory]:
        """By name of process. `shared`: also measure `pss`, which takes milliseconds for a JVM."""
        found: dict[str, Memory] = defaultdict(Memory)
        for pid in self.pids():
            with suppress(OSError):
                rss = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / MEGABYTE
                found[self._name(pid)] += Memory(rss, _pss(pid) if shared else 0.0)
        return dict(found)

    def _name(self, pid: int) -> str:
        if pid == self.root:
            return DRIVER
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if Path(os.fsdecode(command[0])).name == "java":
            return JVM
        return WORKERS if b"pyspark.daemon" in command or b"pyspark/daemon" in b" ".join(command) else "others"


@dataclass
class Peaks:
    """The most memory seen at once, by name of process, and in total."""

    rss: dict[str, float] = field(default_factory=dict)
    total_rss: float = 0.0
    total_pss: float = 0.0

    def note(self, memory: dict[str, Memory]) -> None:
        for name, each in memory.items():
            self.rss[name] = max(self.rss.get(name, 0.0), each.rss)
        total = sum(memory.values(), Memory())
        self.total_rss = max(self.total_rss, total.rss)
        self.total_pss = max(self.total_pss, total.pss)


@contextmanager
def peaks(tree: Tree, every: float = 0.5) -> Iterator[Peaks]:
    """Look at the tree's memory until the end of the block."""
    found, ended = Peaks(), threading.Event()

    def look() -> None:
        while not ended.wait(every):
            found.note(tree.memory())

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        ended.set()
        watcher.join()
        found.note(tree.memory())


def settle(tree: Tree, seconds: float, share: float = 0.25) -> bool:
    """Wait until the tree uses less than `share` of a core for five seconds; False if it does not come to that."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        before = tree.processor_seconds()
        time.sleep(5)
        if tree.processor_seconds() - before < share * 5:
            return True
    return False


def machine_seconds() -> float:
    """Processor time of all processes of the machine: it tells whether others worked beside a measurement."""
    user, nice, system, _, _, irq, softirq, *_ = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(map(int, (user, nice, system, irq, softirq))) / TICKS


def processor_seconds(pid: int) -> float:
    """User and system time of one process so far."""
    fields = _fields(Path(f"/proc/{pid}/stat"))
    return (int(fields[11]) + int(fields[12])) / TICKS


def _fields(stat: Path) -> list[str]:
    """Fields of /proc/PID/stat from the third on (man 5 proc)."""
    return stat.read_text().rpartition(")")[2].split()


def _pss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / MEGABYTE
    return 0.0
