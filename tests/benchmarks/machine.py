"""What a figure was measured on: printed with every benchmark, since a figure without its machine says nothing."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path


def description(folder: Path) -> str:
    """Processor, cores, memory, file system and versions, in one line."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or "unknown processor",
    )
    memory = next((int(line.split()[1]) / 1e6 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0.0)
    free = shutil.disk_usage(folder).free / 1e9
    return (
        f"{model}, {os.cpu_count()} cores, {memory:.0f} GB memory, {_file_system(folder)} with {free:.0f} GB free, "
        f"Linux {platform.release()}, Python {platform.python_version()}"
    )


def _file_system(folder: Path) -> str:
    mounts = [line.split() for line in _lines("/proc/mounts")]
    inside = [mount for mount in mounts if str(folder.resolve()).startswith(mount[1])]
    return max(inside, key=lambda mount: len(mount[1]))[2] if inside else "unknown file system"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
