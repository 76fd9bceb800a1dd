"""Run events of OpenLineage whose outputs carry Iceberg's commit report: Spark jobs with OpenLineage's listener.

Source: `IcebergCommitReportOutputDatasetFacet.json` in the registry of the specification; the dataset names of
`IcebergHandler` and its catalog types in `integration/spark`; `KafkaTransport` in `client/java`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from streaming.commit_events.decoder import (
    BadEvent,
    BadEventReason,
    Decoded,
    MalformedError,
    NotACommit,
    TableChanged,
    shown,
    together,
)
from streaming.commit_events.dotted_names import catalog_namespace_name, namespace_name
from streaming.commit_events.strict_json import Fields, JsonDecoder, mark

SOURCE = "openlineage"
FACET = "icebergCommitReport"
GLUE_NAME = "table/"  # table/db/name, in the namespace arn:aws:glue:…: Spark's spelling, with / for each dot
SNOWFLAKE = "snowflake:"
COMMITTED = frozenset({"COMPLETE", "RUNNING"})
NO_RUN = "no run event"  # but one about a job or a dataset
NO_COMMIT = "a run event without a commit report"

_GLUE_ARN = re.compile(r"arn:[^:]+:glue:")
_STORE = re.compile(r"(?:s3[an]?|gs|gcs|abfss?|wasbs?|adls?|hdfs|viewfs|file|oss|cosn?|obs):")

Name = tuple[str | None, tuple[str, ...], str]


def _read(event: Fields, _arrived_ms: int) -> Decoded:
    event.text("schemaURL"), event.text("producer")
    kind = event.optional_text("eventType")
    if kind is None:
        return NotACommit(SOURCE, NO_RUN)
    if kind not in COMMITTED:
        return NotACommit(SOURCE, shown(kind))
    outputs = [
        (output, report)
        for output in event.optional_records("outputs")
        if (report := output.optional_record("outputFacets").optional_record(FACET)).values
    ]
    return together(SOURCE, _parts(event, outputs), NO_COMMIT)


def _parts(event: Fields, outputs: list[tuple[Fields, Fields]]) -> Iterator[TableChanged | BadEvent]:
    """The tables of these outputs. An output that was written by path is left out, unless all outputs were."""
    by_path: BadEvent | None = None
    found = False
    for output, report in outputs:
        try:
            yield _changed(event, output, report)
        except MalformedError as malformed:
            if malformed.bad.reason is BadEventReason.NO_IDENTIFIER:
                by_path = malformed.bad
                continue
            yield malformed.bad
        found = True
    if by_path is not None and not found:
        yield by_path


def _changed(event: Fields, output: Fields, report: Fields) -> TableChanged:
    catalog, namespace, name = _name(output)
    return TableChanged(
        source=SOURCE,
        event_id=event.record("run").text("runId"),
        catalog=catalog,
        namespace=namespace,
        name=name,
        timestamp_ms=event.instant_ms("eventTime"),
        snapshot_id=report.optional_integer("snapshotId"),
        operation=report.optional_text("operation"),
    )


def _name(output: Fields) -> Name:
    """Catalog, namespace and name: from the symlink, which names the table in its catalog, else from the dataset."""
    facets = output.optional_record("facets")
    catalog = facets.optional_record("catalog").optional_text("name")
    if (output.optional_text("namespace") or "").startswith(SNOWFLAKE):
        return _of_snowflake(output, catalog)
    for link in facets.optional_record("symlinks").optional_records("identifiers"):
        if link.text("type") == "TABLE" and not _is_location(link):
            return catalog, *_linked(link)
    return catalog_namespace_name(output.text("name"), f"{output.path}name")


def _of_snowflake(output: Fields, catalog: str | None) -> Name:
    """Of Snowflake Open Catalog: the dataset is `WAREHOUSE.DB.NAME` in Spark's spelling, its symlink a location."""
    namespace, name = namespace_name(output.text("name"), f"{output.path}name")
    if len(namespace) > 1:
        catalog, namespace = catalog or namespace[0], namespace[1:]
    return catalog, namespace, name


def _is_location(link: Fields) -> bool:
    """Whether the symlink is a table's location. Catalogs in a store give names in the warehouse's location."""
    return _STORE.match(link.text("namespace")) is not None and "/" in link.text("name")


def _linked(link: Fields) -> tuple[tuple[str, ...], str]:
    name, where = link.text("name"), f"{link.path}name"
    if _GLUE_ARN.match(link.text("namespace")) and name.startswith(GLUE_NAME):
        name = name.removeprefix(GLUE_NAME).replace("/", ".")
    return namespace_name(name, where)


DECODER = JsonDecoder(SOURCE, ((mark("schemaURL"), mark("producer")),), _read)
