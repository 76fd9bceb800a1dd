"""Memory of the service's processes, as Linux shows it in /proc: the driver, its JVM, and Spark's Python workers."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

from compactor.rewrite.reading.memory import free_memory, resident
from metrics.service_view import Memory


def memory_now(pid: int | None = None) -> Memory:
    """The memory of a process (default: this one) and of all below it. A process that ends meanwhile counts nothing."""
    driver = os.getpid() if pid is None else pid
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found, line = Counter[str](), [driver] if children else []
    while line:
        each = line.pop()
        line += children.get(each, [])
        found["driver" if each == driver else _kind(each)] += resident(each)
    return Memory(found, free_memory())


def _kind(pid: int) -> str:
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if command[0].endswith(b"java"):
            return "jvm"
        if any(part.startswith(b"pyspark.") for part in command):
            return "workers"
    return "other"
