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


def group_members(group: int) -> list[int]:
    """Live processes of a process group."""
    return _living(2, group)


def session_members(session: int) -> list[int]:
    """Live processes of a session."""
    return _living(3, session)


def _living(field: int, wanted: int) -> list[int]:
    """Processes that are no zombies, by a field of their state: 1 the parent, 2 the group, 3 the session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        fields = told(int(folder.name), "stat").rpartition(b")")[2].split()
        if fields and int(fields[field]) == wanted and fields[0] not in (b"Z", b"X"):
            found.append(int(folder.name))
    return found
