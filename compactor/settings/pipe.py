"""Settings files that are pipes, as `-c <(sops -d FILE)` gives them: their text can be read once, and is kept."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from compactor.errors import InputError
from compactor.reasons import Reason

_KEPT: Final[dict[tuple[Path, int], bytes]] = {}
"""What the pipes of this process held, by path and inode."""


def is_pipe(path: Path | None) -> bool:
    """Whether the path leads to a pipe. What does not exist is none."""
    try:
        return path is not None and stat.S_ISFIFO(path.stat().st_mode)
    except OSError:
        return False


def read_text(path: Path, what: str) -> str:
    """The text of a file. Each caller gets the same text of a pipe: a second read would find it empty.

    Raises:
        InputError: it is a pipe without text. `what`: the file, in messages.
        OSError, UnicodeDecodeError: it cannot be read.
    """
    if not is_pipe(path):
        return path.read_text(encoding="utf-8")
    place = (path, path.stat().st_ino)
    if place not in _KEPT:
        _KEPT[place] = path.read_bytes()
    text = _KEPT[place].decode("utf-8")
    if not text.strip():
        problem = "is a pipe without text: see why the command that writes to it failed"
        raise InputError(f"{what} {path} {problem}", reason=Reason.BAD_SETTING)
    return text
