"""Processes as Linux shows them in /proc. A process that has ended in between has no text and no children."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def told(pid: int, name: str) -> bytes:
    """A file of Linux about a process; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def descendants(pid: int) -> list[int]:
    """The processes below one, each before those below it; also those that have left its process group."""
    tasks = Path(f"/proc/{pid}/task").glob("*")
    children = [int(child) for task in tasks for child in told(pid, f"task/{task.name}/children").split()]
    return [each for child in children for each in (child, *descendants(child))]


def python_workers(pid: int) -> list[int]:
    """Spark's Python daemon below a process, and then the workers that the daemon has forked."""
    return [each for each in descendants(pid) if b"pyspark.daemon" in told(each, "cmdline")]


def kill(pids: Iterable[int]) -> None:
    """kill -9 to those that still run."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
