"""Resolve the table of an event; list the tables of the catalogs."""

from __future__ import annotations

from collections.abc import Collection

from compactor.iceberg.tables import Catalogs
from compactor.settings.tree import Settings
from compactor.table_names import TableName
from streaming.commit_events import canonical
from streaming.commit_events.decoder import BadEvent, BadEventReason, TableChanged, shown


def resolve(changed: TableChanged, catalogs: Collection[str]) -> TableName | BadEvent:
    """The table of an event, in a configured catalog.

    A canonical event uses firnline's catalog names, so an unknown name is an error. Other formats use names of their
    own (of the connector or the warehouse): use such a name if it is configured; else the catalog is only known if a
    single catalog is configured.
    """
    if changed.catalog is not None and changed.catalog in catalogs:
        return TableName(changed.catalog, changed.namespace, changed.name)
    configured = ", ".join(sorted(catalogs)) or "none"
    if changed.catalog is not None and changed.source == canonical.SOURCE:
        detail = f"the event names catalog {shown(changed.catalog)}; configured catalogs: {configured}"
        return BadEvent(BadEventReason.UNKNOWN_CATALOG, detail)
    if len(catalogs) == 1:
        return TableName(next(iter(catalogs)), changed.namespace, changed.name)
    named = "no catalog" if changed.catalog is None else f"catalog {shown(changed.catalog)}"
    return BadEvent(BadEventReason.AMBIGUOUS_CATALOG, f"the event names {named}; configured catalogs: {configured}")


def watched_tables(settings: Settings, catalogs: Catalogs) -> list[TableName]:
    """All tables of the catalogs that the settings do not ignore, in name order.

    Raises:
        RetryError: a catalog cannot be listed.
    """
    found = [table for name in catalogs.names for table in catalogs.list_tables(name)]
    return [table for table in sorted(found) if not settings.tables.ignores(table)]
