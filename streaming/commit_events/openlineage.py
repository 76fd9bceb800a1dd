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
GLUE_NAME = "table/"  # table/db/name, in the namespace arn:aws:glue:…
COMMITTED = frozenset({"COMPLETE", "RUNNING"})
NO_RUN = "no run event"  # but one about a job or a dataset
NO_COMMIT = "a run event without a commit report"

_GLUE_ARN = re.compile(r"arn:[^:]+:glue:")

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
    for link in facets.optional_record("symlinks").optional_records("identifiers"):
        if link.text("type") == "TABLE":
            return catalog, *_linked(link)
    return catalog_namespace_name(output.text("name"), f"{output.path}name")


def _linked(link: Fields) -> tuple[tuple[str, ...], str]:
    name, where = link.text("name"), f"{link.path}name"
    if _GLUE_ARN.match(link.text("namespace")) and name.startswith(GLUE_NAME):
        return Fields({where: name.removeprefix(GLUE_NAME).split("/")}).identifier(where)
    return namespace_name(name, where)


DECODER = JsonDecoder(SOURCE, ((mark("schemaURL"), mark("producer")),), _read)
