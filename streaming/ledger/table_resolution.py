"""Which tables are meant: by an event, or by a command that names none."""

from __future__ import annotations

from collections.abc import Collection

from compactor.iceberg.tables import Catalogs
from compactor.settings.tree import Settings
from compactor.table_names import TableName
from streaming.commit_events import canonical
from streaming.commit_events.decoder import BadEvent, TableChanged, shown


def resolve(changed: TableChanged, catalogs: Collection[str]) -> TableName | BadEvent:
    """The table an event names, in terms of the configured catalogs.

    A canonical event speaks our catalog names, so an unknown one is a mistake. Other formats carry names of their own
    (the connector's, the warehouse's): such a name counts if it happens to be configured; else only a single configured
    catalog leaves no doubt.
    """
    if changed.catalog is not None and changed.catalog in catalogs:
        return TableName(changed.catalog, changed.namespace, changed.name)
    configured = ", ".join(sorted(catalogs)) or "none"
    if changed.catalog is not None and changed.source == canonical.SOURCE:
        detail = f"the event names catalog {shown(changed.catalog)}; configured catalogs: {configured}"
        return BadEvent("unknown_catalog", detail)
    if len(catalogs) == 1:
        return TableName(next(iter(catalogs)), changed.namespace, changed.name)
    named = "no catalog" if changed.catalog is None else f"catalog {shown(changed.catalog)}"
    return BadEvent("ambiguous_catalog", f"the event names {named}; configured catalogs: {configured}")


def watched_tables(settings: Settings, catalogs: Catalogs) -> list[TableName]:
    """Every table of the catalogs that the settings do not ignore, in name order.

    Raises:
        RetryError: a catalog cannot be listed.
    """
    found = [table for name in catalogs.names for table in catalogs.list_tables(name)]
    return [table for table in sorted(found) if not settings.tables.ignores(table)]
