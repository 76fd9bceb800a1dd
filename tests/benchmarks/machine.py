"""What a figure was measured on: printed with every benchmark, since a figure without its machine says nothing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[2]
OF_TESTS = "test"
"""The extra that benchmarks need: it brings what firnline is compared with."""


def description(folder: Path) -> str:
    """Processor, cores, memory, load, file system and versions; then that firnline is installed as by default."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or "unknown processor",
    )
    memory = next((int(line.split()[1]) / 1e6 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0.0)
    free = shutil.disk_usage(folder).free / 1e9
    return (
        f"{model}, {os.cpu_count()} cores, {memory:.0f} GB memory, load {os.getloadavg()[0]:.1f}, "
        f"{_file_system(folder)} with {free:.0f} GB free, "
        f"Linux {platform.release()}, Python {platform.python_version()}\n{installation()}"
    )


def commit() -> str:
    """The commit of firnline that is measured; with "+" if files of it are changed."""
    found = [
        subprocess.run(["git", *command], cwd=PROJECT, capture_output=True, text=True, check=False).stdout.strip()
        for command in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
    ]
    return f"{found[0] or 'unknown'}{'+' if found[1] else ''}"


def installation() -> str:
    """What is measured: firnline with the packages that every user has. Others that are here are listed by extra."""
    found = sorted(
        f"{name} {version(name)} ({extra})"
        for extra, name in _optional("firnline")
        if extra != OF_TESTS and _is_installed(name)
    )
    return (
        "firnline's default installation: nothing measured here uses an extra; packages of extras that are importable: "
        f"{', '.join(found) or 'none'}"
    )


def _optional(package: str) -> Iterator[tuple[str, str]]:
    """(extra, package) of all that extras bring; an extra of another package brings what that one says."""
    for line in requires(package) or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            continue
        extra = str(requirement.marker).rpartition("extra == ")[2].strip("\"' ")
        if requirement.extras:
            yield from ((extra, name) for own, name in _optional(requirement.name) if own in requirement.extras)
        else:
            yield extra, requirement.name


def _is_installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def _file_system(folder: Path) -> str:
    mounts = [line.split() for line in _lines("/proc/mounts")]
    inside = [mount for mount in mounts if str(folder.resolve()).startswith(mount[1])]
    return max(inside, key=lambda mount: len(mount[1]))[2] if inside else "unknown file system"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
