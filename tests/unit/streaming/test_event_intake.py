"""Events by HTTP without a broker: what reaches the producer, and what is answered."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.errors import (
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)

from compactor.errors import RetryError
from compactor.events import Event, HttpEventAnswered
from compactor.settings.kafka import KafkaSettings
from compactor.table_names import TableName
from streaming.commit_events.decoder import RawEvent
from streaming.intake.event_intake import MOST_WAITING, EventIntake, Headers
from streaming.intake.event_sources import EventSources
from streaming.intake.records import Named, Record, named
from streaming.kafka.commit_topic import RecordKind, kind_of

TOPIC = "iceberg-commits"
KAFKA = KafkaSettings(commit_topic=TOPIC)
CONNECT = Path(__file__).parents[2] / "contracts" / "fixtures" / "kafka_connect"
REPORT = json.dumps({"report-type": "commit-report", "table-name": "any", "snapshot-id": 7}).encode()


def nothing() -> None:
    """The broker has the record."""


@dataclass
class Broker:
    """A producer that keeps what it sends. `sending`, `sent`: may raise, at once or when the broker answers."""

    sending: Callable[[], None] = nothing
    sent: Callable[[], None] = nothing
    records: list[tuple[bytes | None, bytes, Headers]] = field(default_factory=list)
    closed: bool = False

    def close(self, *, timeout: float) -> None:
        assert timeout
        self.closed = True
        raise KafkaTimeoutError  # records of others wait

    def send(self, _topic: str, *, key: bytes | None, value: bytes, headers: list[tuple[str, bytes]]) -> Any:
        self.sending()
        self.records.append((key, value, tuple(headers)))
        return self

    def get(self, *, timeout: float) -> None:
        assert timeout
        self.sent()


def intake_of(broker: Any, sources: EventSources = EventSources(("lake",))) -> EventIntake:  # noqa: B008 - frozen
    return EventIntake(KAFKA, sources, connect=lambda _kafka: broker)


def tables(broker: Broker, sources: EventSources = EventSources(("lake",))) -> list[TableName]:  # noqa: B008 - frozen
    """What the stream reads of what was sent."""
    events = (RawEvent(key, value, headers, 5) for key, value, headers in broker.records)
    parts = (part for event in events for part in named(Record(event, len(event.value or b""), TOPIC, 0, 0), sources))
    return [part.table for part in parts if isinstance(part, Named)]


@pytest.mark.parametrize(
    ("path", "namespace", "name"),
    [
        ("my+db/tables/my+table", ("my db",), "my table"),
        ("my%20db/tables/my%20table", ("my db",), "my table"),
        ("a%2Bb/tables/c%2Bd", ("a+b",), "c+d"),
        ("a%1Fb+c/tables/t", ("a", "b c"), "t"),
    ],
)
def test_a_path_is_read_as_each_client_of_iceberg_writes_it(path: str, namespace: tuple[str, ...], name: str) -> None:
    broker = Broker()
    assert intake_of(broker)(f"/v1/a+b/namespaces/{path}/metrics", {}, REPORT).status == 204
    assert tables(broker) == [TableName("lake", namespace, name)]


@pytest.mark.parametrize(
    ("written", "namespace"),
    [
        ("a%1Fb", ("a", "b")),
        ("my%20db", ("my db",)),
        ("caf%C3%A9", ("café",)),
        ("café".encode().decode("latin-1"), ("café",)),
        ("100%25", ("100%",)),
        ("a+b", ("a+b",)),
    ],
)
def test_attributes_of_cloud_events_are_decoded(written: str, namespace: tuple[str, ...]) -> None:
    broker, attributes = Broker(), {"type": "updateTable", "warehouse-id": "w", "id": "1", "name": "t"}
    headers = {f"Ce-{name.title()}": value for name, value in {**attributes, "namespace": written}.items()}
    assert intake_of(broker)("/v1/events", headers, b"null").status == 202
    assert tables(broker) == [TableName("lake", namespace, "t")]


def event(*records: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"Records": records} if records else {"event-id": "1", **fields}).encode()


def created(key: str) -> dict[str, Any]:
    place = {"bucket": {"name": "b"}, "object": {"key": key}}
    return {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": place}


TABLE = {"namespace": ["db"], "name": "t"}


@pytest.mark.parametrize(
    ("body", "status", "answer"),
    [
        (event(catalog="lake", identifier=TABLE), 202, {"result": "accepted"}),
        (event(catalog="nowhere", identifier=TABLE), 400, {"reason": "unknown_catalog"}),
        (event(identifier=TABLE), 400, {"reason": "ambiguous_catalog"}),
        (event(catalog="ignored", identifier=TABLE), 202, {"result": "ignored"}),
        (event(catalog="lake", identifier={"namespace": ["x"] * 65, "name": "t"}), 400, {"reason": "oversize"}),
        (event(created("db/t/v1.metadata.json"), created("%FF/v1.metadata.json")), 202, {"result": "accepted"}),
        (event(created("%FF/v1.metadata.json")), 400, {"reason": "invalid_text"}),
    ],
)
def test_an_event_of_which_nothing_can_be_used_is_refused(body: bytes, status: int, answer: dict[str, str]) -> None:
    broker, sources = Broker(), EventSources(("lake", "attic"), {"ignored": ""})
    answered = intake_of(broker, sources)("/v1/events", {}, body)
    assert (answered.status, {**json.loads(answered.body), **answer}) == (status, json.loads(answered.body))
    assert [value for _, value, _ in broker.records] == ([body] if answer == {"result": "accepted"} else [])


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (event(catalog="lake", identifier={"namespace": ["a.b", "c"], "name": "t"}), b"lake.a.b.c.t"),
        (event(identifier=TABLE), b"lake.db.t"),
        (event(created("%FF/v1.metadata.json"), created("db/t/metadata/v1.metadata.json")), b"s3://b/db/t/metadata/v1.metadata.json"),
        (event(**{"metadata-location": "s3://b/v1.metadata.json"}), b"s3://b/v1.metadata.json"),
    ],
    ids=["namespaces", "the only catalog", "a store's", "a location"],
)  # fmt: skip
def test_an_event_is_written_with_a_key(body: bytes, key: bytes) -> None:
    """A compacted topic refuses a record without one, however often it is sent again."""
    broker = Broker()
    assert intake_of(broker)("/v1/events", {}, body).status == 202
    assert [found for found, _, _ in broker.records] == [key]


def test_an_event_of_a_sink_is_written_as_our_own() -> None:
    """A topic with records of a sink is taken for the sink's control topic: the next start would refuse it."""
    broker, body = Broker(), (CONNECT / "commit_to_table.bin").read_bytes()
    sources = EventSources(("lake",), {})
    record = Record(RawEvent(None, body, (), 5), len(body), TOPIC, 0, 0)
    answer = intake_of(broker, sources)("/v1/events", {}, body)
    assert (answer.status, json.loads(answer.body)) == (202, {"result": "accepted"})
    ((_, value, headers),) = broker.records
    assert kind_of(RawEvent(None, value, headers, 5)) is RecordKind.EVENT
    assert tables(broker, sources) == [part.table for part in named(record, sources) if isinstance(part, Named)] != []


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize("error", [MessageSizeTooLargeError(), RecordListTooLargeError()], ids=repr)
def test_an_event_that_the_topic_does_not_take_is_not_asked_for_again(error: Exception) -> None:
    """Neither what the client refuses at once nor what the broker refuses."""
    for broker in (Broker(sending=failing(error)), Broker(sent=failing(error))):
        answer = intake_of(broker)("/v1/events", {}, event(identifier=TABLE))
        assert answer.status == 413
        assert not answer.headers
        assert "max.message.bytes" in json.loads(answer.body)["detail"]


@pytest.mark.parametrize(
    ("error", "connects"),
    [
        (TopicAuthorizationFailedError(), 2),
        (ValueError("of the client"), 2),
        (KafkaTimeoutError(), 1),
        (MessageSizeTooLargeError(), 1),
    ],
    ids=repr,
)
def test_a_producer_that_may_be_of_no_more_use_is_replaced(error: Exception, connects: int) -> None:
    """Not after an event that is too large: its sender could make every other one connect again."""
    brokers = [Broker(sent=failing(error)), Broker()]
    made = iter(brokers)
    intake = EventIntake(KAFKA, EventSources(("lake",)), connect=lambda _kafka: next(made))  # type: ignore[arg-type,return-value]
    intake("/v1/events", {}, event(identifier=TABLE))
    assert [each.closed for each in brokers] == [connects > 1, False]
    answer = intake("/v1/events", {}, event(identifier=TABLE))
    assert [len(each.records) for each in brokers] == ([1, 1] if connects > 1 else [2, 0])
    assert (answer.status == 202) == (connects > 1)


def test_senders_do_not_wait_for_a_connection_one_after_the_other() -> None:
    """Without a broker, a connection takes its time-out."""
    answered, connects = threading.Event(), list[int]()

    def connect(_kafka: KafkaSettings) -> KafkaProducer:
        connects.append(1)
        answered.wait(60)
        raise RetryError("no broker answers")

    intake = EventIntake(KAFKA, EventSources(("lake",)), connect=connect)
    with ThreadPoolExecutor(MOST_WAITING) as senders:
        answers = [senders.submit(intake, "/v1/events", {}, event(identifier=TABLE)) for _ in range(MOST_WAITING)]
        first = [each for _, each in zip(range(MOST_WAITING - 1), as_completed(answers, 60), strict=False)]
        assert len(first) == MOST_WAITING - 1, "one waits for the connection"
        answered.set()
        assert {each.result().status for each in answers} == {503}
    assert len(connects) == 1
    assert intake("/v1/events", {}, event(identifier=TABLE)).status == 503
    assert len(connects) == 2


@pytest.mark.parametrize(
    ("status", "result"),
    [
        (HTTPStatus.UNAUTHORIZED, "unauthorized"),
        (HTTPStatus.FORBIDDEN, "closed"),
        (HTTPStatus.LENGTH_REQUIRED, "refused"),
        (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "refused"),
        (HTTPStatus.SERVICE_UNAVAILABLE, "busy"),
    ],
)
def test_a_request_that_is_refused_before_its_body_is_read_counts(status: HTTPStatus, result: str) -> None:
    """A sender with a wrong password is seen, even if its own log is not."""
    told: list[Event] = []
    EventIntake(KAFKA, EventSources(("lake",)), told.append).unread(status)
    assert told == [HttpEventAnswered(result)]
