"""Find a table that is no longer under its name, by its UUID: a rename keeps the UUID."""

from __future__ import annotations

from itertools import islice
from typing import Final

from compactor.errors import RetryError
from compactor.iceberg.tables import Catalogs, TableMissingError
from compactor.table_names import TableName

MOST_TABLES: Final = 1000
"""Of a catalog that are searched: each one is loaded."""


class TableSearch:
    """Searches catalogs. Each is listed, and its tables loaded, at most once, when it is first searched."""

    def __init__(self, catalogs: Catalogs) -> None:
        self._catalogs = catalogs
        self._tables: dict[str, dict[str, list[TableName]] | str | RetryError] = {}

    def find(self, catalog: str, uuid: str) -> TableName | str:
        """The only table of the catalog with this UUID, or a sentence why that is unknown.

        A metadata file that is registered twice makes two tables with one UUID: then neither can tell which files the
        other references.

        Raises:
            RetryError: the catalog does not answer, a namespace cannot be listed, or a table cannot be read.
        """
        if catalog not in self._tables:
            try:
                self._tables[catalog] = self._by_uuid(catalog)
            except RetryError as error:
                self._tables[catalog] = error
        tables = self._tables[catalog]
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
