"""What all writers have in common: tables, a journal, a start, an end, and what went wrong in between."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.services.waiting import PATIENCE, wait_for
from tests.writers.stage import Stage, Target

RETRIED = "Retrying task after failure"
"""What Iceberg's Java library logs before it makes a commit again."""


class Writer(ABC):
    """A program that commits, as its users run it. Errors that it reports are collected, not raised."""

    targets: tuple[Target, ...]

    @abstractmethod
    def start(self) -> None:
        """Start it; return without waiting for its first commit."""

    @abstractmethod
    def finish(self) -> None:
        """Write nothing new, and wait until everything is committed."""

    @abstractmethod
    def close(self) -> None:
        """Leave nothing running. Also called when it was never started."""

    @property
    @abstractmethod
    def rows(self) -> Mapping[int, str]:
        """What each of its tables must hold: the journal."""

    @property
    @abstractmethod
    def failures(self) -> list[str]:
        """What it has reported so far, and why it ended if it did."""

    @property
    @abstractmethod
    def retries(self) -> int:
        """Commits that it made again by itself, because another commit came first. Of all its tables."""


@dataclass
class Ended:
    """Waits for conditions that a writer must reach; what is not reached becomes a failure of the writer."""

    failures: list[str] = field(default_factory=list)

    def wait(self, what: str, is_so: Callable[[], bool], seconds: float = PATIENCE) -> None:
        try:
            wait_for(what, is_so, seconds, every=0.5)
        except AssertionError as error:
            self.failures.append(str(error))


def wait_for_rows(stage: Stage, ended: Ended, table: str, count: Callable[[], int]) -> None:
    """Wait until the table has as many rows as were written."""
    ended.wait(f"all rows in {table}", lambda: stage.total_records(table) >= count())


def retries_in(log: Path) -> int:
    """Commits made again, by the log of a Java program."""
    return log.read_text(errors="replace").count(RETRIED)
