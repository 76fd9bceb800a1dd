"""Planted secrets, and a watch that looks for them where they must not be."""

from __future__ import annotations

import base64
import html
import json
import os
import threading
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Canaries:
    """Secrets by what they open. Each is a text that occurs nowhere else."""

    secrets: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        return self.secrets[name]

    def found_in(self, content: str | bytes) -> set[str]:
        """Names of the secrets that a content shows, in any usual spelling."""
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        return {name for name, spelling in self._spellings if spelling in data}

    @property
    def _spellings(self) -> Iterator[tuple[str, bytes]]:
        for name, secret in self.secrets.items():
            for spelling in {
                secret,
                urllib.parse.quote(secret, safe=""),
                json.dumps(secret)[1:-1],
                html.escape(secret),
                repr(secret)[1:-1],
                base64.b64encode(secret.encode()).decode().rstrip("="),
            }:
                yield name, spelling.encode()


@dataclass
class Watch:
    """Looks at all processes again and again: their command lines, and what the service's children inherited.

    Attributes:
        leaks: What was found: (where, names of the secrets).
        seen: Programs of the processes that descend from this one.
    """

    canaries: Canaries
    leaks: set[tuple[str, str]] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)

    def look(self) -> None:
        """One look at /proc."""
        parents, commands = _processes()
        for pid, command in commands.items():
            for name in self.canaries.found_in(b" ".join(command)):
                self.leaks.add((f"command line of {_program(command)}", name))
            if self._is_child(pid, parents, commands):
                self.seen.add(_program(command))
                for name in self.canaries.found_in(_read(Path(f"/proc/{pid}/environ"))):
                    self.leaks.add((f"environment of {_program(command)}", name))

    @staticmethod
    def _is_child(pid: int, parents: Mapping[int, int], commands: Mapping[int, list[bytes]]) -> bool:
        """Whether it is a lasting child of a firnline process: Spark's JVM, a Python worker."""
        if not any(mark in b" ".join(commands[pid]) for mark in (b"SparkSubmit", b"pyspark")):
            return False
        parent = parents.get(pid, 0)
        while parent > 1:
            if b"streaming.cli" in commands.get(parent, []):
                return True
            parent = parents.get(parent, 0)
        return False


@contextmanager
def watching(canaries: Canaries) -> Iterator[Watch]:
    """Watch all processes while the block runs."""
    watch, ended = Watch(canaries), threading.Event()

    def work() -> None:
        while not ended.wait(POLL_SECONDS):
            watch.look()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()


def leaks_in_files(canaries: Canaries, folders: Iterable[Path]) -> set[tuple[str, str]]:
    """Files below the folders that show a secret."""
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {(str(path), name) for path in files for name in canaries.found_in(_read(path))}


def readable_by_others(path: Path, top: Path) -> bool:
    """Whether another user could read a file, by its mode and those of its folders below `top`."""
    if not path.stat().st_mode & 0o044:
        return False
    inner = [folder for folder in path.parents if folder.is_relative_to(top) and folder != top]
    return all(folder.stat().st_mode & 0o011 for folder in inner)


def _processes() -> tuple[dict[int, int], dict[int, list[bytes]]]:
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if pid == os.getpid():
            continue
        stat = _read(folder / "stat")
        if stat:
            parents[pid] = int(stat.rpartition(b")")[2].split()[1])
            commands[pid] = _read(folder / "cmdline").split(b"\0")
    return parents, commands


def _program(command: list[bytes]) -> str:
    """The command's class or module, fit for a report."""
    words = [word.decode("utf-8", "replace") for word in command if word]
    marks = ("SparkSubmit", "pyspark.daemon", "pyspark", "streaming.cli", "ivy")
    return next((mark for mark in marks if any(mark in word for word in words)), words[0] if words else "?")


def _read(path: Path) -> Any:
    try:
        return path.read_bytes()
    except OSError:  # it has ended, or was removed
        return b""
