"""List the tables of the catalogs that firnline watches."""

from __future__ import annotations

from compactor.iceberg.tables import Catalogs
from compactor.settings.tree import Settings
from compactor.table_names import TableName


def watched_tables(settings: Settings, catalogs: Catalogs) -> list[TableName]:
    """All tables of the catalogs that the settings do not ignore, in name order.

    Raises:
        RetryError: a catalog cannot be listed.
    """
    found = [table for name in catalogs.names for table in catalogs.list_tables(name)]
    return [table for table in sorted(found) if not settings.tables.ignores(table)]
