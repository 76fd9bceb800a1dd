"""List the tables of the catalogs that firnline watches."""

from __future__ import annotations

from functools import partial

from compactor.errors import RetryError
from compactor.iceberg.tables import Catalogs
from compactor.settings.tree import Settings, TableRules
from compactor.table_names import TableName

NO_TABLES = "No table of the catalogs is watched. See tables.include, tables.observe and tables.exclude."


def raise_unless_excluded(tables: TableRules, catalog: str, namespace: tuple[str, ...], error: RetryError) -> None:
    """For namespaces that cannot be listed: without those that are excluded, a list is complete.

    Raises:
        RetryError: `error`: the namespace is not excluded.
    """
    if not tables.excludes_namespace(catalog, namespace):
        raise error


def watched_tables(settings: Settings, catalogs: Catalogs) -> list[TableName]:
    """All tables of the catalogs that the settings do not ignore, in name order.

    Raises:
        RetryError: a catalog cannot be listed, or a namespace that `tables.exclude` does not name.
    """
    found = [
        table
        for name in catalogs.names
        for table in catalogs.list_tables(name, partial(raise_unless_excluded, settings.tables, name))
    ]
    return [table for table in sorted(found) if not settings.tables.ignores(table)]
