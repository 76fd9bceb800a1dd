"""What the decoders of other systems' events read, what they check, and what they ignore."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from streaming.commit_events.decoder import (
    BadEvent,
    Decoded,
    LocationChanged,
    MalformedError,
    NotACommit,
    Several,
    TableChanged,
    bad_of,
    changes_of,
)
from streaming.commit_events.dotted_names import catalog_namespace_name, namespace_name
from streaming.commit_events.strict_json import Fields
from tests.contracts.commit_event_fixtures import BY_NAME, Fixture, ask, assert_usable, reason_of, written

REMOVED = object()


def read(name: str, *edits: tuple[str, Any]) -> Decoded:
    """The result of a fixture after edits: a path with dots (numbers are places in lists), and the new value."""
    fixture = BY_NAME[name]
    event = json.loads(fixture.value)
    for path, value in edits:
        *way, last = (int(part) if part.isdigit() else part for part in path.split("."))
        where = event
        for part in way:
            where = where[part]
        if value is REMOVED:
            del where[last]
        else:
            where[last] = value
    return ask(fixture.with_value(json.dumps(event).encode()))


@pytest.mark.parametrize(
    ("name", "path", "value", "reason"),
    [
        ("commit_report_commit_report", "report-type", 7, "wrong_type"),
        ("commit_report_commit_report", "table-name", REMOVED, "missing_field"),
        ("commit_report_commit_report", "table-name", "events", "no_namespace"),
        ("commit_report_commit_report", "table-name", "prod..events", "invalid_text"),
        ("commit_report_commit_report", "table-name", "prod.db.", "invalid_text"),
        ("commit_report_commit_report", "table-name", "hdfs://host:8020/warehouse/db.db/events", "no_identifier"),
        ("commit_report_commit_report", "table-name", "thrift://metastore:9083/db.events", "no_identifier"),
        ("commit_report_commit_report", "snapshot-id", 2**63, "out_of_range"),
        ("commit_report_commit_report", "firnline-timestamp-ms", -1, "out_of_range"),
        ("polaris_after_update_table", "event_id", REMOVED, "missing_field"),
        ("polaris_after_update_table", "namespace", [], "no_namespace"),
        ("polaris_after_update_table", "namespace", "db", "wrong_type"),
        ("polaris_after_update_table", "table_name", "", "invalid_text"),
        ("polaris_after_update_table", "timestamp", "yesterday", "invalid_text"),
        ("polaris_after_update_table", "timestamp", "2026-08-21T14:17:47", "invalid_text"),
        ("polaris_after_update_table", "timestamp", "1969-12-31T23:59:59Z", "out_of_range"),
        ("polaris_after_rename_table", "destination", ["renamed"], "no_namespace"),
        ("s3_aws_metadata_file", "Records", {"eventSource": "aws:s3"}, "wrong_type"),
        ("s3_aws_several", "Records.2.eventSource", "aws:sns", "unrecognised"),
        ("s3_aws_several", "Records.2.eventName", REMOVED, "missing_field"),
        ("s3_aws_metadata_file", "Records.0.s3.object.key", "db/%FF/v1.metadata.json", "invalid_text"),
        ("s3_aws_metadata_file", "Records.0.s3.object.key", "db/%0A/v1.metadata.json", "invalid_text"),
        ("s3_aws_metadata_file", "Records.0.s3.object.key", "x" * 5000 + "/v1.metadata.json", "invalid_text"),
        ("s3_sns_metadata_file", "Message", 'not JSON, "aws:s3"', "invalid_json"),
        ("glue_update_table", "account", REMOVED, "missing_field"),
        ("glue_update_table", "region", 7, "wrong_type"),
        ("lakekeeper_update_table", "updates", {}, "wrong_type"),
        ("lakekeeper_update_table", "updates.0.snapshot", REMOVED, "missing_field"),
        ("lakekeeper_rename_table", "destination.namespace", [], "no_namespace"),
        ("openlineage_rest_catalog", "eventTime", REMOVED, "missing_field"),
        ("openlineage_rest_catalog", "eventTime", "2022-08-01T06:15:49.671", "invalid_text"),
        ("openlineage_rest_catalog", "outputs", {}, "wrong_type"),
        ("openlineage_rest_catalog", "outputs.0.facets.symlinks.identifiers.0.name", "events", "no_namespace"),
        ("openlineage_rest_catalog", "outputs.0.facets.symlinks.identifiers.0.name", "a..b", "invalid_text"),
        ("openlineage_rest_catalog", "outputs.0.facets.symlinks.identifiers.0.name", "`a.b", "invalid_text"),
        ("openlineage_glue_catalog", "outputs.0.facets.symlinks.identifiers.0.name", "table/events", "no_namespace"),
        ("nessie_content_stored", "id", REMOVED, "missing_field"),
        ("nessie_content_stored", "repositoryId", 7, "wrong_type"),
        ("nessie_content_stored", "eventCreationTimestamp", "+10000-01-01T00:00:00Z", "invalid_text"),
    ],
)
def test_what_is_read_is_checked(name, path, value, reason):
    bad = bad_of(read(name, (path, value)))
    assert bad is not None
    assert bad.reason == reason
    assert path.split(".")[-1] in bad.detail or reason in {"invalid_json", "no_namespace", "invalid_text"}


AT = "2024-09-26T00:00:00Z"
MINIMAL: dict[str, dict[str, Any]] = {
    "commit_report": {"report-type": "commit-report", "table-name": "db.t", "snapshot-id": 1},
    "polaris": {
        "event_type": "AFTER_UPDATE_TABLE", "event_id": "e", "timestamp": AT, "realm_id": "r", "catalog_name": "c",
        "namespace": ["db"], "table_name": "t",
    },
    "s3": {
        "Records": [
            {
                "eventSource": "aws:s3",
                "eventName": "ObjectCreated:Put",
                "s3": {"bucket": {"name": "b"}, "object": {"key": "db/t/v1.metadata.json"}},
            }
        ]
    },
    "glue": {
        "id": "e", "source": "aws.glue", "detail-type": "Glue Data Catalog Table State Change", "account": "1",
        "region": "r", "detail": {"typeOfChange": "UpdateTable", "databaseName": "db", "tableName": "t"},
    },
    "openlineage": {
        "eventTime": AT, "eventType": "COMPLETE", "producer": "p", "schemaURL": "u", "run": {"runId": "r"},
        "outputs": [{"name": "c.db.t", "outputFacets": {"icebergCommitReport": {"snapshotId": 1}}}],
    },
    "nessie": {
        "type": "CONTENT_STORED", "id": "e", "repositoryId": "", "eventCreationTimestamp": AT,
        "reference": {"name": "main"}, "contentKey": {"elements": ["db", "t"]}, "content": {"type": "ICEBERG_TABLE"},
    },
}  # fmt: skip


@pytest.mark.parametrize("source", MINIMAL)
def test_the_least_that_a_format_needs(source):
    """Each of its fields is needed: without it the event is one dead letter."""
    (change,) = changes_of(ask(written(MINIMAL[source])))
    assert change.source == source
    if isinstance(change, TableChanged):
        assert (change.namespace, change.name) == (("db",), "t")
    else:
        assert change.metadata_location == "s3://b/db/t/v1.metadata.json"
    for field in MINIMAL[source]:
        answer = ask(written({key: value for key, value in MINIMAL[source].items() if key != field}))
        optional = {("openlineage", "eventType"), ("openlineage", "outputs")}
        assert isinstance(answer, NotACommit if (source, field) in optional else BadEvent), field


@pytest.mark.parametrize(
    ("path", "taken"),
    [
        ("db/t/metadata/00000-6c97e413-d51b-4538-ac70-12fe2a85cb83.metadata.json", True),
        ("db/t/metadata/00000-6c97e413-d51b-4538-ac70-12fe2a85cb83.gz.metadata.json", True),
        ("db/t/metadata/v1.metadata.json", True),
        ("db/t/metadata/v1.gz.metadata.json", True),
        ("db/t/metadata/v1.metadata.json.gz", True),
        ("db/t/metadata/6c97e413-d51b-4538-ac70-12fe2a85cb83.metadata.json", True),
        ("elsewhere/00001-x.metadata.json", True),
        ("v1.metadata.json", True),
        ("db/t/metadata/.metadata.json", False),
        ("db/t/metadata/metadata.json", False),
        ("db/t/metadata/.v1.metadata.json.crc", False),
        ("db/t/metadata/version-hint.text", False),
        ("db/t/metadata/snap-1-2-x.avro", False),
        ("db/t/metadata/v1.metadata.json/x", False),
        ("db/t/data/00000-0-x.parquet", False),
        ("db/a\nb", False),
        ("\x7f", False),
        ("db/t/metadata/v1.metadata.json\n", False),
    ],
)
def test_only_metadata_files_are_announced(path, taken):
    for name, key in (
        ("s3_eventbridge_metadata_file", "detail.object.key"),
        ("s3_aws_metadata_file", "Records.0.s3.object.key"),
        ("s3_ceph_metadata_file", "Records.0.s3.object.key"),
    ):
        answer = read(name, (key, path))
        if taken:
            assert isinstance(answer, LocationChanged)
            assert answer.metadata_location.endswith("/" + path)
        else:
            assert answer == NotACommit("s3", "no new metadata file")


@pytest.mark.parametrize("edit", [("eventName", REMOVED), ("s3.object.key", "%FF/v1.metadata.json"), ("s3", [])])
def test_a_bad_record_drops_no_other(edit):
    whole = BY_NAME["s3_aws_several"].answer
    assert isinstance(whole, Several)
    answer = read("s3_aws_several", (f"Records.2.{edit[0]}", edit[1]))
    assert isinstance(answer, Several)
    assert answer.changes == whole.changes[:1]
    assert isinstance(answer.bad, BadEvent)


@pytest.mark.parametrize("kind", ["ObjectCreated:Put", "s3:ObjectCreated:Copy", "s3:ObjectCreated:NewerThanThis"])
def test_every_way_to_create_an_object_counts(kind):
    assert isinstance(read("s3_aws_metadata_file", ("Records.0.eventName", kind)), LocationChanged)


@pytest.mark.parametrize(
    "kind",
    ["ObjectRemoved:Delete", "s3:ObjectAccessed:Get", "ObjectRestore:Completed", "s3:ObjectCreated:PutRetention"],
)
def test_other_events_of_an_object_are_ignored(kind):
    for prefix in ("", "s3:"):
        assert isinstance(read("s3_minio_metadata_file", ("Records.0.eventName", prefix + kind)), NotACommit)


def test_a_notification_without_time_or_sequence_is_read():
    answer = read("s3_aws_metadata_file", ("Records.0.eventTime", REMOVED), ("Records.0.s3.object.sequencer", REMOVED))
    assert isinstance(answer, LocationChanged)
    assert answer.timestamp_ms == BY_NAME["s3_aws_metadata_file"].event.timestamp_ms
    assert answer.event_id == answer.metadata_location


@pytest.mark.parametrize(
    ("change", "taken"),
    [("CreateTable", True), ("UpdateTable", True), ("DeleteTable", False), ("UpdatePartition", False), ("New", False)],
)
def test_changes_of_glue(change, taken):
    for name in ("glue_update_table", "glue_create_table"):
        answer = read(name, ("detail.typeOfChange", change))
        assert bool(changes_of(answer)) is taken
        assert taken or answer == NotACommit("glue", f"'{change}'")


def test_a_table_of_glue_that_is_named_twice_is_announced_once():
    (one,) = changes_of(read("glue_create_tables", ("detail.changedTables", ["t1", "t1"])))
    assert isinstance(one, TableChanged)
    assert one.name == "t1"


def headed(name: str, **headers: str | None) -> Decoded:
    """The result of a fixture with other headers; None: without it."""
    fixture = BY_NAME[name]
    kept = [header for header in fixture.event.headers if header[0] not in headers]
    more = [(header, text.encode()) for header, text in headers.items() if text is not None]
    return ask(replace(fixture.event, headers=tuple(kept + more)))


def test_headers_of_lakekeeper_are_read():
    name = "lakekeeper_update_table"
    (least,) = changes_of(headed(name, **{"ce_tabular-type": None, "ce_tabular-id": None, "ce_actor": None}))
    assert least == replace(BY_NAME[name].answer, table_uuid=None)
    assert reason_of(headed(name, ce_namespace="")) == "no_namespace"
    assert reason_of(headed(name, ce_namespace="a\x1f\x1fb")) == "invalid_text"
    assert reason_of(headed(name, ce_name=None)) == "missing_field"
    assert reason_of(headed(name, ce_id=None)) == "missing_field"
    assert reason_of(headed(name, **{"ce_tabular-id": "orders"})) == "invalid_text"
    assert reason_of(headed(name, **{"ce_warehouse-id": None})) == "unrecognised"
    assert headed(name, ce_type="aTypeOfALaterVersion") == NotACommit("lakekeeper", "'aTypeOfALaterVersion'")


def test_a_staged_table_of_lakekeeper_is_ignored_until_its_first_commit():
    answer = read("lakekeeper_create_table", ("stage-create", True))
    assert answer == NotACommit("lakekeeper", "'createTable' of a staged table")


def test_a_dot_in_a_namespace_of_lakekeeper_is_kept_in_updates():
    (update,) = changes_of(headed("lakekeeper_update_table", ce_namespace="a.b\x1fc"))
    (create,) = changes_of(headed("lakekeeper_create_table", ce_namespace="a.b"))
    assert isinstance(update, TableChanged)
    assert isinstance(create, TableChanged)
    assert (update.namespace, create.namespace) == (("a.b", "c"), ("a", "b"))


def test_the_last_snapshot_of_a_commit_counts():
    body = json.loads(BY_NAME["lakekeeper_update_table"].value)
    later = deepcopy(body["updates"][0])
    later["snapshot"] |= {"snapshot-id": 5, "summary": {"operation": "replace"}}
    (change,) = changes_of(read("lakekeeper_update_table", ("updates", [*body["updates"], later])))
    assert isinstance(change, TableChanged)
    assert (change.snapshot_id, change.operation) == (5, "replace")


@pytest.mark.parametrize("kind", ["START", "FAIL", "ABORT", "OTHER", "complete"])
def test_only_runs_that_committed_count(kind):
    assert read("openlineage_rest_catalog", ("eventType", kind)) == NotACommit("openlineage", f"'{kind}'")


def test_an_output_without_a_commit_report_is_ignored():
    for value in (None, {}, REMOVED):
        answer = read("openlineage_rest_catalog", ("outputs.0.outputFacets.icebergCommitReport", value))
        assert answer == NotACommit("openlineage", "a run event without a commit report")


def test_outputs_by_path_are_left_out_beside_others():
    both = BY_NAME["openlineage_several"].answer
    assert isinstance(both, Several)
    answer = read("openlineage_several", ("outputs.0.facets.symlinks", REMOVED))
    assert answer == both.changes[1]
    damaged = read("openlineage_several", ("outputs.3.facets.symlinks.identifiers.0.name", "events"))
    assert isinstance(damaged, Several)
    assert damaged.changes == both.changes[:1]
    assert reason_of(damaged.bad) == "no_namespace"


LINKS = "outputs.0.facets.symlinks.identifiers"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("OPEN.DB.EVENTS", ("OPEN", ("DB",), "EVENTS")),
        ("OPEN.A.B.`2024_EVENTS`", ("OPEN", ("A", "B"), "2024_EVENTS")),
        ("DB.EVENTS", (None, ("DB",), "EVENTS")),
    ],
)
@pytest.mark.parametrize("location", ["warehouse/db/events", "warehouse/db.db/events", "events"])
def test_at_snowflake_the_dataset_names_the_table(name, expected, location):
    catalog, namespace, table = expected
    link = {"namespace": "s3://lake", "name": location, "type": "TABLE"}
    edits = (("outputs.0.namespace", "snowflake://org-account"), ("outputs.0.name", name), (LINKS, [link]))
    for facet, called in ((REMOVED, catalog), ({"name": "ice"}, "ice")):
        (change,) = changes_of(read("openlineage_rest_catalog", *edits, ("outputs.0.facets.catalog", facet)))
        assert isinstance(change, TableChanged)
        assert (change.catalog, change.namespace, change.name) == (called, namespace, table)


def test_a_symlink_to_a_location_names_no_table():
    (whole,) = changes_of(BY_NAME["openlineage_rest_catalog"].answer)
    location = {"namespace": "s3://lake", "name": "warehouse/db.db/events", "type": "TABLE"}
    links = json.loads(BY_NAME["openlineage_rest_catalog"].value)["outputs"][0]["facets"]["symlinks"]["identifiers"]
    assert changes_of(read("openlineage_rest_catalog", (LINKS, [location, *links]))) == (whole,)
    assert reason_of(read("openlineage_rest_catalog", (LINKS, [location]))) == "no_identifier"


@pytest.mark.parametrize("written", ["table/db/`2024_events`", "table/db/2024_events", "table/`db`/`2024_events`"])
def test_a_name_of_glue_may_be_quoted(written):
    (change,) = changes_of(read("openlineage_glue_catalog", (f"{LINKS}.0.name", written)))
    assert isinstance(change, TableChanged)
    assert (change.namespace, change.name) == (("db",), "2024_events")


def test_a_table_without_a_snapshot_has_none_at_nessie():
    (change,) = changes_of(read("nessie_content_stored", ("content.snapshotId", None)))
    assert isinstance(change, TableChanged)
    assert change.snapshot_id is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prod.db.events", ("prod", ("db",), "events")),
        ("prod.a.b.events", ("prod", ("a", "b"), "events")),
        ("db.events", (None, ("db",), "events")),
        ("prod.db.`events`", ("prod", ("db",), "`events`")),
        ('db."page_views"', (None, ("db",), "page_views")),  # Trino
        ('"my-db"."a""b.c/d"', (None, ("my-db",), 'a"b.c/d')),
        ('"a.b".events', (None, ("a", "b"), "events")),
        ('prod.db."events"', ("prod", ("db",), '"events"')),  # Iceberg, which quotes nothing
        ('db."a"b"', (None, ("db",), '"a"b"')),
        ("my catalog.db.täble", ("my catalog", ("db",), "täble")),
    ],
)
def test_a_full_name_has_parts(text, expected):
    assert catalog_namespace_name(text, "name") == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [("events", "no_namespace"), ('"a..b".events', "invalid_text"), ('"a\nb".events', "invalid_text"),
     ("db..events", "invalid_text"), ('s3://lake/db."events"', "no_identifier"), ('"' * 4001, "no_namespace")],
)  # fmt: skip
def test_what_is_no_full_name(text, reason):
    with pytest.raises(MalformedError) as error:
        catalog_namespace_name(text, "name")
    assert error.value.bad.reason == reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("db.events", (("db",), "events")),
        ("a.b.c", (("a", "b"), "c")),
        ("`a.b`.c", (("a.b",), "c")),
        ("`a``b`.`c.`", (("a`b",), "c.")),
        ("my-db.my table", (("my-db",), "my table")),
        ("`.`.`/`", ((".",), "/")),
    ],
)
def test_a_spark_identifier_has_parts(text, expected):
    assert namespace_name(text, "name") == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [("a", "no_namespace"), ("`a.b`", "no_namespace"), ("", "invalid_text"), ("a.", "invalid_text"),
     (".a", "invalid_text"), ("a`b.c", "invalid_text"), ("`a`b.c", "invalid_text"), ("``.a", "invalid_text"),
     ("`" * 4000, "no_namespace"), ("`" + "``" * 2000 + ".a", "invalid_text")],
)  # fmt: skip
def test_what_is_no_spark_identifier(text, reason):
    with pytest.raises(MalformedError) as error:
        namespace_name(text, "name")
    assert error.value.bad.reason == reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2024-09-26T00:00:00.123456789Z", 1727308800123),
        ("2024-09-26T02:00:00+02:00", 1727308800000),
        ("2024-09-25T23:30:00.5-00:30", 1727308800500),
        ("2015-06-03T17:43:27.123+0000", 1433353407123),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    ],
)
def test_instants_are_milliseconds(text, expected):
    assert Fields({"t": text}).instant_ms("t") == expected


@pytest.mark.parametrize("fixture", [f for f in BY_NAME.values() if changes_of(f.answer)], ids=lambda f: f.name)
def test_every_announced_change_is_usable(fixture: Fixture) -> None:
    assert_usable(fixture.answer)
