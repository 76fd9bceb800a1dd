"""What the gauges of one scrape are read from: the tables of the debt board, and the service."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from compactor.debt.board import TableDebt
from compactor.iceberg.other_compactors import DAY_SECONDS, OtherCompactor
from compactor.runs.dispatcher import Work
from compactor.runs.work_order import STARVING_SECONDS
from compactor.table_names import TableName
from metrics.service_view import Memory, ServiceView, StateSpace

Samples = Iterable[tuple[tuple[str, ...], float]]
"""Values of the labels, and the value."""
LONGEST_LABEL = 256
OTHER = "other"
_CHECKSUM_LETTERS = 12
_NAME_ESCAPES = re.compile("[.%\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # a lone surrogate cannot be written as UTF-8
_SLUG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,59}")


@dataclass(frozen=True)
class Moment:
    """The service at `now`, in seconds since the epoch. `tables`: most small files first.

    `most_named`: how many of them have series of their own.
    """

    tables: tuple[TableDebt, ...]
    service: ServiceView
    version: str
    now: float
    most_named: int

    @cached_property
    def work(self) -> Work:
        return self.service.work

    @cached_property
    def space(self) -> StateSpace | None:
        return self.service.space

    @cached_property
    def memory(self) -> Memory:
        return self.service.memory

    @cached_property
    def named(self) -> list[TableDebt]:
        """The tables with series of their own: first those that alerts are about, in the order of their trouble."""
        return sorted(self.tables, key=self._rank)[: self.most_named]

    @cached_property
    def labels(self) -> dict[TableName, tuple[str, str]]:
        """Catalog and table."""
        return {debt.table: (_escaped(debt.table.catalog), table_label(debt.table)) for debt in self.named}

    def due_seconds(self, debt: TableDebt) -> float:
        """How long the table is due, outside quiet hours and since its last pause; 0 while it waits for no person."""
        if debt.due_since is None or debt.table in self.work.working or self.service.paused(debt.table):
            return 0.0
        since = max(debt.due_since, self.service.held_until(debt.table))
        return max(0.0, self.service.open_seconds(since, self.now))

    def other_firnlines(self, debt: TableDebt) -> list[OtherCompactor]:
        """Other deployments that rewrote the table within the last day."""
        return [other for other in debt.other_firnlines if other.last > self.now - DAY_SECONDS]

    def _rank(self, debt: TableDebt) -> tuple[int, float]:
        if debt.unreadable:
            return (0, 0.0)
        if debt.acted_on and debt.due_since is not None and self.now - debt.due_since > STARVING_SECONDS:
            return (1, debt.due_since)
        return (2, 0.0)  # in the given order


def slug(text: str) -> str:
    """`text` if it is one short ASCII word, else "other", so that labels have few values. Most names of catalogs are
    such words: two that share a series would hide each other from alerts.
    """
    return text if _SLUG.fullmatch(text) else OTHER


def by_catalog(
    values: Mapping[str, float], joined: Callable[[Iterable[float]], float]
) -> Iterator[tuple[tuple[str, ...], float]]:
    """Labelled as the recorder labels catalogs, so that series can be compared: names that are no slugs share one."""
    for label in dict.fromkeys(map(slug, values)):
        yield (label,), joined(value for catalog, value in values.items() if slug(catalog) == label)


def table_label(table: TableName) -> str:
    """`catalog.namespace.name`, with dots inside a part escaped, so that two tables never share a label.

    A long label is cut; a checksum keeps it distinct.
    """
    label = ".".join(map(_escaped, (table.catalog, *table.identifier)))
    if len(label) <= LONGEST_LABEL:
        return label
    checksum = hashlib.sha256(label.encode()).hexdigest()[:_CHECKSUM_LETTERS]
    return f"{label[: LONGEST_LABEL - _CHECKSUM_LETTERS - 1]}~{checksum}"


def _escaped(text: str) -> str:
    return _NAME_ESCAPES.sub(lambda found: f"%{ord(found.group()):02X}", text)
