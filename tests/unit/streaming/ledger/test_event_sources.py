"""What sources of events call the catalogs, and formats of topics."""

from __future__ import annotations

import re

import pytest

from compactor.settings.kafka import CommitTopic, KafkaSettings, format_of
from compactor.table_names import TableName
from streaming.commit_events.decoder import BadEvent, BadEventReason, NotACommit, RawEvent, TableChanged
from streaming.intake.event_sources import EventSources
from streaming.kafka.clients import source_options

NAMES = {"POLARIS/prod": "lake", "4f6a": "attic", "test": ""}
TWO = EventSources(("lake", "attic"), NAMES)


def changed(catalog: str | None, realm: str | None = None, source: str = "polaris") -> TableChanged:
    return TableChanged(source, "e-1", catalog, ("db",), "t", 5, realm=realm)


@pytest.mark.parametrize(
    ("sources", "event", "catalog"),
    [
        (TWO, changed("prod", "POLARIS"), "lake"),
        (TWO, changed("4f6a"), "attic"),
        (TWO, changed("4f6a", "any realm"), "attic"),
        (TWO, changed("lake"), "lake"),
        (TWO, changed("lake", "POLARIS"), "lake"),
        (EventSources(("lake",)), changed("prod", "POLARIS"), "lake"),
        (EventSources(("lake",)), changed(None), "lake"),
        (EventSources(("lake",), NAMES), changed(None), "lake"),
        (EventSources(("lake", "attic"), {"elsewhere": "attic"}), changed("elsewhere", source="canonical"), "attic"),
    ],
)
def test_a_name_means_a_configured_catalog(sources: EventSources, event: TableChanged, catalog: str) -> None:
    assert sources.table(event) == TableName(catalog, ("db",), "t")


@pytest.mark.parametrize("names", [{"prod": "lake", "lake": "attic"}, {"prod": "lake", "lake": ""}])
def test_a_name_is_translated_once(names: dict[str, str]) -> None:
    """What firnline writes itself (requests, announcements, reports by HTTP) has the names of its settings."""
    sources, table = EventSources(("lake", "attic"), names), TableName("lake", ("db",), "t")
    assert sources.table(changed("prod")) == table
    assert sources.table(changed("lake", source="canonical")) == table
    assert sources.table(changed("lake")) != table


def test_events_of_a_catalog_without_a_meaning_are_ignored() -> None:
    assert TWO.table(changed("test")) is None


@pytest.mark.parametrize(
    ("sources", "event", "reason", "named"),
    [
        (TWO, changed("prod"), BadEventReason.AMBIGUOUS_CATALOG, "{'prod': <one of them>}"),
        (TWO, changed("dev", "POLARIS"), BadEventReason.AMBIGUOUS_CATALOG, "{'POLARIS/dev': <one of them>}"),
        (EventSources(("lake",), NAMES), changed("dev"), BadEventReason.UNKNOWN_CATALOG, "{'dev': <one of them>}"),
        (TWO, changed("dev", source="canonical"), BadEventReason.UNKNOWN_CATALOG, "{'dev': <one of them>}"),
    ],
)
def test_a_letter_names_the_setting_to_add(
    sources: EventSources, event: TableChanged, reason: BadEventReason, named: str
) -> None:
    found = sources.table(event)
    assert isinstance(found, BadEvent)
    assert found.reason is reason
    assert found.detail.endswith(f"set kafka.catalog_names: {named}")


def test_the_format_of_a_topic_is_set_or_found() -> None:
    kafka = KafkaSettings(
        commit_topics=(
            "control",
            "mixed",
            {"topic": "ours", "format": "canonical"},
            {"pattern": "sink-.*", "format": "kafka_connect"},
        ),
    )
    sources = EventSources.of(kafka, ("lake",))
    event = RawEvent(None, b'{"event-id": "e", "operation-type": "drop-table"}', (), 5)
    for topic in ("iceberg-commits", "mixed", "ours", "unheard-of", "control"):
        assert sources.decoded(event, topic) == NotACommit("canonical", "'drop-table'")
    for topic in ("sink-a", "sink-b"):
        assert sources.decoded(event, topic).reason is BadEventReason.UNRECOGNISED


def test_a_name_counts_before_a_pattern() -> None:
    items = ({"pattern": "lake-.*", "format": "s3"}, {"topic": "lake-glue", "format": "glue"}, {"pattern": ".*"})
    topics = KafkaSettings(commit_topics=items).topics
    found = [format_of(topic, topics) for topic in ("lake-glue", "lake-minio", "other", "iceberg-commits")]
    assert found == ["glue", "s3", "detect", "detect"]


@pytest.mark.parametrize(
    ("value", "looks"),
    [
        (b'{"event-id": "e", "operation-type": "drop-table"}', "the event looks like canonical"),
        (b'{"id": "e"}', 'no decoder recognises an event that begins with b\'{"id": "e"}\''),
    ],
)
def test_a_format_that_is_set_and_does_not_fit_is_named(value: bytes, looks: str) -> None:
    sources = EventSources(("lake",), topics=(CommitTopic(topic="p", format="polaris"),))
    found = sources.decoded(RawEvent(None, value, (), 5), "p")
    assert found == BadEvent(
        BadEventReason.UNRECOGNISED,
        f"topic p is set to format polaris; {looks}; correct kafka.commit_topics, or the sender",
    )


def test_sparks_pattern_reads_the_topics_that_the_settings_say() -> None:
    kafka = KafkaSettings(commit_topic="commits", commit_topics=({"pattern": ".*"}, {"topic": "__own"}))
    read = re.compile(source_options(kafka, 10)["subscribePattern"])
    topics = ("commits", "others", "__own", "__consumer_offsets", "__debezium-heartbeat.db", kafka.dead_letter_topic)
    assert [bool(read.fullmatch(topic)) for topic in topics] == [kafka.reads(topic) for topic in topics]
    assert [kafka.reads(topic) for topic in topics] == [True, True, True, False, False, False]


@pytest.mark.parametrize(
    ("source", "named", "catalogs", "expected"),
    [
        ("canonical", "lake", ["lake", "ice"], "lake"),
        ("canonical", "else", ["lake", "ice"], "unknown_catalog"),
        ("canonical", "else", ["lake"], "unknown_catalog"),
        ("canonical", None, ["lake"], "lake"),
        ("canonical", None, ["lake", "ice"], "ambiguous_catalog"),
        ("canonical", None, [], "ambiguous_catalog"),
        ("kafka_connect", "ice", ["lake", "ice"], "ice"),
        ("kafka_connect", "connector", ["lake"], "lake"),
        ("kafka_connect", "connector", ["lake", "ice"], "ambiguous_catalog"),
        ("polaris", None, ["lake"], "lake"),
    ],
)
def test_without_names_an_event_means_one_configured_table_or_none(
    source: str, named: str | None, catalogs: list[str], expected: str
) -> None:
    answer = EventSources(tuple(catalogs)).table(changed(named, source=source))
    if expected in set(BadEventReason):
        assert isinstance(answer, BadEvent)
        assert answer.reason == expected
        assert all(catalog in answer.detail for catalog in catalogs)
    else:
        assert answer == TableName(expected, ("db",), "t")
