"""Find a table that is no longer under its name, by its UUID: a rename keeps the UUID."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from compactor.errors import RetryError
from compactor.iceberg.tables import Catalogs, TableMissingError
from compactor.table_names import TableName

MOST_TABLES: Final = 1000
"""Of a catalog that are searched: each one is loaded."""


VALID_SECONDS: Final = 600.0
"""How long an answer of a catalog counts, and a failure."""


@dataclass(frozen=True)
class _Answer:
    """What a search of a catalog found, and until when it is not searched again."""

    tables: Mapping[str, Sequence[TableName]] | str | RetryError
    until: float


class TableSearch:
    """Searches catalogs: lists one, and loads its tables. Then its answer counts for a while, a failure too."""

    def __init__(self, catalogs: Catalogs, ticks: Callable[[], float] = time.monotonic) -> None:
        self._catalogs = catalogs
        self._ticks = ticks
        self._answers: dict[str, _Answer] = {}

    def waits(self, catalog: str) -> bool:
        """Whether the last search of the catalog has failed, and it is too early for the next."""
        answer = self._answers.get(catalog)
        return answer is not None and isinstance(answer.tables, RetryError) and self._ticks() < answer.until

    def find(self, catalog: str, uuid: str) -> TableName | str:
        """The only table of the catalog with this UUID, or a sentence why that is unknown.

        A metadata file that is registered twice makes two tables with one UUID: then neither can tell which files the
        other references.

        Raises:
            RetryError: the catalog does not answer, a namespace cannot be listed, or a table cannot be read.
        """
        tables = self._answer(catalog).tables
        if isinstance(tables, RetryError):
            raise tables
        if isinstance(tables, str):
            return tables
        names = tables.get(uuid, [])
        if len(names) == 1:
            return names[0]
        if names:
            return f"{' and '.join(map(str, names))} have its UUID"
        return f"no table of catalog {catalog} has its UUID: it was dropped"

    def _answer(self, catalog: str) -> _Answer:
        known = self._answers.get(catalog)
        if known is not None and self._ticks() < known.until:
            return known
        found: Mapping[str, Sequence[TableName]] | str | RetryError
        try:
            found = self._by_uuid(catalog)
        except RetryError as error:
            found = error
        self._answers[catalog] = answer = _Answer(found, self._ticks() + VALID_SECONDS)
        return answer

    def _by_uuid(self, catalog: str) -> dict[str, list[TableName]] | str:
        """The names of all tables by UUID, or why not all are known. Raises as `find`."""
        names = list(islice(self._catalogs.list_tables(catalog), MOST_TABLES + 1))
        if len(names) > MOST_TABLES:
            return f"catalog {catalog} has more than {MOST_TABLES} tables, which are not searched"
        found: dict[str, list[TableName]] = {}
        for name in names:
            try:
                found.setdefault(self._catalogs.load(name).uuid, []).append(name)
            except TableMissingError:
                continue  # dropped since, or not a table of Iceberg
        return found
