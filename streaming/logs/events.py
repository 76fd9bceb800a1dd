"""Log typed events: rewrites, commits and failures. Frequent events are only counted in metrics."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final

from compactor import events
from compactor.partitions import partition_text
from compactor.table_names import TableName

LOG: Final = logging.getLogger("firnline")
LOGGED: Final = 10  # paths in one line

INFO, WARNING = logging.INFO, logging.WARNING
LINES: Final[Mapping[type[events.Event], tuple[int, str, str]]] = {
    events.GroupCommitted: (
        INFO,
        "rewritten",
        (
            "run_id=rewritten.run_id table=rewritten.table partition=rewritten.plan.partition "
            "reason=rewritten.plan.why engine=rewritten.engine engine_reason=rewritten.reason "
            "files_in=rewritten.files_in files_out=rewritten.files_out bytes_in=rewritten.bytes_in "
            "bytes_out=rewritten.bytes_out rows_deleted=rewritten.rows_deleted rows_out=rewritten.rows_out "
            "rows_carried rows_rebased seconds=rewritten.seconds snapshot_id"
        ),
    ),
    events.RunCommitted: (
        INFO,
        "committed",
        (
            "run_id table snapshot_id groups files_in files_out bytes_in bytes_out delete_files_removed plan_seconds "
            "rewrite_seconds commit_seconds"
        ),
    ),
    events.RunWouldRewrite: (INFO, "would rewrite", "table groups files_in=files files_out=files_after bytes_in=bytes"),
    events.CommitWaits: (
        INFO,
        "finished, waits to commit right after another writer",
        "run_id table seconds_at_most=seconds",
    ),
    events.CommitRolledBack: (
        INFO,
        "the catalog rolled the commit back for a writer",
        "run_id table snapshot_id",
    ),
    events.ManifestsRewritten: (INFO, "manifests rewritten", "run_id table before after seconds"),
    events.EqualityDeletesConverted: (
        INFO,
        "equality deletes converted",
        "run_id table snapshot_id delete_files rows files bytes_read seconds",
    ),
    events.FileDeleted: (INFO, "deleted", "path run_id table reason"),
    events.RunFailed: (WARNING, "run failed", "run_id table stage reason reaction error=message"),
    events.GroupDropped: (
        WARNING,
        "file group not rewritten",
        "run_id table partition=plan.partition reason error=message",
    ),
    events.TableUnreadable: (WARNING, "table unreadable", "table reason error=message"),
    events.DeletionRefused: (
        WARNING,
        (
            "files that the record of a run names are not deleted: they are not the run's own. Find out who wrote the "
            "record; if no table references them, remove them by hand"
        ),
        "run_id table why paths",
    ),
    events.EventsLost: (
        WARNING,
        "events were skipped; all tables are looked at",
        "query offsets=count",
    ),
    events.PartitionsSkipped: (logging.DEBUG, "skipped", "table reason"),
}
"""Level, message and fields of the line of each event: `name`, or `name=attribute`."""


def log_event(event: events.Event) -> None:
    """Log one line per event. `--verbose` also logs the events without a line of their own."""
    if type(event) in LINES:
        level, message, names = LINES[type(event)]
        if LOG.isEnabledFor(level):
            LOG.log(level, message, extra=_fields(event, names))
    elif LOG.isEnabledFor(logging.DEBUG):
        LOG.debug(type(event).__name__, extra={"detail": str(event)})


def _fields(event: events.Event, names: str) -> dict[str, Any]:
    pairs = (name.partition("=") for name in names.split())
    return {name: _shown(attrgetter(attribute or name)(event)) for name, _, attribute in pairs}


def _shown(value: Any) -> Any:
    match value:
        case float():
            return round(value, 3)
        case TableName():
            return str(value)
        case Mapping():
            return partition_text(value)
        case tuple():
            return ", ".join(value[:LOGGED])
        case _:
            return value
