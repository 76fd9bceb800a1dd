"""Commit reports of Iceberg's metrics: the body of `ReportMetricsRequest`, which Java clients send to a REST catalog.

Source: `ReportMetricsRequestParser` and `CommitReportParser` in Iceberg's core. A report has neither an id nor a time.
firnline's own reporter adds `firnline-timestamp-ms`.
"""

from __future__ import annotations

from streaming.commit_events.decoder import TIMESTAMP_MS_MAX, Decoded, NotACommit, TableChanged, shown
from streaming.commit_events.dotted_names import catalog_namespace_name
from streaming.commit_events.strict_json import Fields, JsonDecoder, checked_text, mark, parse_object

SOURCE = "commit_report"
COMMIT = "commit-report"
TIMESTAMP = "firnline-timestamp-ms"


def with_table(
    value: bytes, catalog: str | None, namespace: tuple[str, ...], name: str, arrived_ms: int
) -> TableChanged | None:
    """A report whose table is known otherwise, as from the path of a request; None: no report of a commit.

    Raises:
        MalformedError: the report cannot be read, or the names are no names of a table.
    """
    report = Fields(parse_object(value))
    if report.text("report-type") != COMMIT:
        return None
    for part in (*namespace, name, *(() if catalog is None else (catalog,))):
        checked_text(part, "the path")
    return _changed(report, catalog, namespace, name, arrived_ms)


def _read(report: Fields, arrived_ms: int) -> Decoded:
    kind = report.text("report-type")
    if kind != COMMIT:
        return NotACommit(SOURCE, shown(kind))
    return _changed(report, *catalog_namespace_name(report.text("table-name"), "table-name"), arrived_ms)


def _changed(
    report: Fields, catalog: str | None, namespace: tuple[str, ...], name: str, arrived_ms: int
) -> TableChanged:
    snapshot_id = report.integer("snapshot-id")
    timestamp_ms = report.optional_integer(TIMESTAMP, 0, TIMESTAMP_MS_MAX)
    return TableChanged(
        source=SOURCE,
        event_id=str(snapshot_id),
        catalog=catalog,
        namespace=namespace,
        name=name,
        timestamp_ms=arrived_ms if timestamp_ms is None else timestamp_ms,
        snapshot_id=snapshot_id,
        operation=report.optional_text("operation"),
    )


DECODER = JsonDecoder(SOURCE, ((mark("report-type"),),), _read)
