"""Events by HTTP, on a real broker: what is answered with 2xx is on the commit topic, and nothing else is."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient, NewTopic

from compactor.events import Event, HttpEventAnswered, ignore
from compactor.settings.kafka import KafkaSettings
from streaming.commit_events import canonical
from streaming.commit_events.decoder import RawEvent, TableChanged
from streaming.intake.event_intake import MOST_WAITING, EventIntake, is_events_path
from streaming.intake.event_sources import EventSources
from streaming.kafka.clients import ensure_topics
from tests.services.kafka_topics import records

pytestmark = pytest.mark.kafka

KEY, EVENT = canonical.encode(TableChanged("test", "e-1", "lake", ("db",), "t", 5))


@pytest.fixture
def kafka(broker: str) -> KafkaSettings:
    """The topic is compacted: such a topic refuses records without a key."""
    name = f"intake-{uuid.uuid4().hex[:8]}"
    with closing(KafkaAdminClient(bootstrap_servers=broker)) as admin:
        admin.create_topics([NewTopic(name, topic_configs={"cleanup.policy": "compact"})], wait_for_metadata=True)
    made = KafkaSettings(bootstrap_servers=broker, commit_topic=name, dead_letter_topic=f"{name}-dead")
    ensure_topics(made, create=True)
    return made


@pytest.fixture
def intake(kafka: KafkaSettings) -> Iterator[EventIntake]:
    made = intake_of(kafka)
    yield made
    made.close()


def intake_of(kafka: KafkaSettings, told: list[Event] | None = None) -> EventIntake:
    listener = ignore if told is None else told.append
    return EventIntake(kafka, EventSources(("lake",)), listener)


def on_topic(kafka: KafkaSettings) -> list[Any]:
    return records(kafka.commit_topic, bootstrap_servers=kafka.bootstrap_servers.split(","))


def test_an_accepted_event_is_on_the_topic_byte_for_byte(intake: EventIntake, kafka: KafkaSettings) -> None:
    answer = intake("/v1/events?from=here", {"CE-Type": "updateTable", "Content-Type": "application/json"}, EVENT)
    assert (answer.status, json.loads(answer.body)) == (202, {"result": "accepted"})
    (record,) = on_topic(kafka)
    assert (record.key, record.value, record.headers) == (KEY, EVENT, [("ce_type", b"updateTable")])


def test_what_cannot_be_used_is_refused_with_the_reason(intake: EventIntake, kafka: KafkaSettings) -> None:
    for body, reason in ((b"", "unrecognised"), (b"rubbish", "unrecognised"), (b'{"event-id": 5}', "wrong_type")):
        answer = intake("/v1/events", {}, body)
        assert (answer.status, json.loads(answer.body)["reason"]) == (400, reason)
    ignored = intake("/v1/events", {}, b'{"event-id": "e", "operation-type": "drop-table"}')
    assert (ignored.status, json.loads(ignored.body)) == (202, {"result": "ignored"})
    assert on_topic(kafka) == []


REPORT = {"report-type": "commit-report", "table-name": "any", "snapshot-id": 7, "operation": "append"}


def test_a_report_of_a_rest_client_names_its_table_by_the_path(intake: EventIntake, kafka: KafkaSettings) -> None:
    path = "/v1/prod/namespaces/a.b%1Fc/tables/t%20x/metrics"
    assert intake(path, {}, json.dumps(REPORT).encode()).status == 204
    (record,) = on_topic(kafka)
    decoded = canonical.DECODER.decode(RawEvent(record.key, record.value, (), 1))
    assert isinstance(decoded, TableChanged)
    assert (decoded.catalog, decoded.namespace, decoded.name) == ("lake", ("a.b", "c"), "t x")
    assert (decoded.snapshot_id, decoded.operation) == (7, "append")
    scan = {**REPORT, "report-type": "scan-report"}
    assert intake(path, {}, json.dumps(scan).encode()).status == 204
    for wrong in (b"", b"[]", b"{}", json.dumps({**REPORT, "snapshot-id": "x"}).encode()):
        assert intake(path, {}, wrong).status == 400
    assert intake("/v1/namespaces/db/tables/%00/metrics", {}, json.dumps(REPORT).encode()).status == 400
    assert len(on_topic(kafka)) == 1


def test_what_became_of_each_event_is_told(kafka: KafkaSettings) -> None:
    told: list[Event] = []
    intake, path = intake_of(kafka, told), "/v1/prod/namespaces/db/tables/t/metrics"
    intake("/v1/events", {}, EVENT)
    intake("/v1/events", {}, b'{"event-id": "e", "operation-type": "drop-table"}')
    intake("/v1/events", {}, b"rubbish")
    for report in (REPORT, {**REPORT, "report-type": "scan-report"}, {}):
        intake(path, {}, json.dumps(report).encode())
    intake.close()
    intake_of(KafkaSettings(bootstrap_servers="127.0.0.1:1", options={"bootstrap.timeout.ms": 500}), told)(
        "/v1/events", {}, EVENT
    )
    results = [event.result for event in told if isinstance(event, HttpEventAnswered)]
    assert results == ["accepted", "ignored", "refused", "accepted", "ignored", "refused", "busy"]


def test_without_a_broker_the_sender_is_asked_to_come_again() -> None:
    intake = intake_of(KafkaSettings(bootstrap_servers="127.0.0.1:1", options={"bootstrap.timeout.ms": 500}))
    answer = intake("/v1/events", {}, EVENT)
    assert answer.status == 503
    assert ("Retry-After", "5") in answer.headers
    assert "127.0.0.1:1" in json.loads(answer.body)["detail"]


def test_requests_that_wait_for_the_broker_are_bounded(intake: EventIntake, kafka: KafkaSettings) -> None:
    for _ in range(MOST_WAITING):
        intake._waiting.acquire()
    assert intake("/v1/events", {}, EVENT).status == 503
    intake._waiting.release()
    assert intake("/v1/events", {}, EVENT).status == 202
    assert len(on_topic(kafka)) == 1


@pytest.mark.parametrize(
    ("path", "taken"),
    [
        ("/v1/events", True),
        ("/v1/events?a=b", True),
        ("/v1/namespaces/db/tables/t/metrics", True),
        ("/v1/prefix/namespaces/a%1Fb/tables/t/metrics", True),
        ("/v1/a/b/namespaces/db/tables/t/metrics", True),
        ("/v1/namespaces/db/tables/t", False),
        ("/v1/namespaces/db/tables/t/metrics/x", False),
        ("/v1/events/x", False),
        ("/metrics", False),
    ],
)
def test_paths(path: str, taken: bool) -> None:
    assert is_events_path(path) is taken
