"""Identity of a process: who writes in-flight records or holds the lease, and whether that process is dead."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Owner:
    """Identity of a process: host, boot, pid namespace, pid and start time."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: str

    @classmethod
    def this_process(cls) -> Owner:
        """The identity of this process."""
        return cls(socket.gethostname(), *_boot_and_namespace(), os.getpid(), _start_time(os.getpid()) or "")

    def __str__(self) -> str:
        return f"{self.host} (pid {self.pid})"

    def is_dead(self) -> bool | None:
        """Whether the process is dead; None if that cannot be seen from here (another host or container)."""
        here = (socket.gethostname(), *_boot_and_namespace())
        if (self.host, self.boot, self.namespace) != here or not self.boot or not self.started:
            return None
        return _start_time(self.pid) != self.started


def _boot_and_namespace() -> tuple[str, str]:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip(), str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "", ""


def _start_time(pid: int) -> str | None:
    """The process's start in clock ticks since boot (proc(5), stat field 22); None if the process does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {"Z", "X"} else fields[19]
