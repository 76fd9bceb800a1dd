"""Plays histories one after the other, in memory if the machine has a folder there."""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from tests.late_commits.broken import believed
from tests.late_commits.histories import History, NotReadableError

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - thousands of small files


def play(seeds: range, rule: str = "") -> tuple[Counter[str], list[str]]:
    """How histories ended, up to the first that failed, and that one. With a wrong rule, only what is lost counts."""
    log, ends, failed = logging.getLogger("firnline"), Counter[str](), list[str]()
    level = log.level
    log.setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        for seed in seeds:
            history = History(seed, Path(folder) / "history")
            try:
                with believed(rule, history) if rule else nullcontext():
                    history.play()
            except NotReadableError as error:
                failed.append(str(error))
            except AssertionError as error:
                if not rule:
                    failed.append(str(error))
            ends[history.end] += 1
            if failed:
                break
    log.setLevel(level)
    return ends, failed
