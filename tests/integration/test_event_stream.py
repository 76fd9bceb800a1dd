"""The query on a real broker: what reaches the ledger, what becomes a dead letter, and what is in memory."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import RetriableError
from pyspark.sql.streaming.query import StreamingQuery

from compactor.errors import RetryError
from compactor.events import DeadLettered, Event
from compactor.settings.tree import Settings
from compactor.shards import EVERYTHING
from compactor.table_names import TableName
from streaming.commit_events import canonical
from streaming.commit_events.decoder import TableChanged
from streaming.intake.event_query import BatchHandler, EventDecoder, EventQuery, offsets_fixed
from streaming.intake.event_sources import EventSources
from streaming.intake.heard import AnyHeard, Heard, HeardLocation
from streaming.kafka.broker_watch import BrokerWatch
from tests.conftest import Lake
from tests.services import kafka_topics
from tests.services.waiting import PATIENCE, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
PARTITIONS = 3
LARGEST = 8 * 1024 * 1024


@dataclass
class Stage:
    """Topics and a checkpoint of one test's own."""

    lake: Lake
    broker: str
    folder: Path
    kafka: dict[str, Any] = field(default_factory=dict)
    topic: str = field(default_factory=lambda: f"stream-{uuid.uuid4().hex[:8]}")
    heard: list[AnyHeard] = field(default_factory=list)
    published: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dead = f"{self.topic}-dead"
        self.create(self.topic, PARTITIONS)
        self.producer = KafkaProducer(bootstrap_servers=self.broker, acks="all", max_request_size=LARGEST)

    def create(self, topic: str, partitions: int = 1, **options: str) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.broker)
        limit = {"max.message.bytes": str(LARGEST), **options}
        admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=limit)], wait_for_metadata=True)
        admin.close()

    @property
    def settings(self) -> Settings:
        tree = self.lake.settings.model_dump()
        own = {"bootstrap_servers": self.broker, "commit_topic": self.topic, "dead_letter_topic": self.dead}
        return Settings.model_validate({**tree, "kafka": {**tree["kafka"], **own, **self.kafka}})

    @property
    def checkpoint(self) -> str:
        return f"file://{self.folder}/checkpoint"

    def send(self, value: bytes | None, topic: str | None = None, **record: Any) -> None:
        self.producer.send(topic or self.topic, value=value, **record).get(30)

    def handler(
        self, handle: Callable[[Sequence[AnyHeard]], None] | None = None, *, write: bool = True
    ) -> BatchHandler:
        kafka = self.settings.kafka
        decoder = EventDecoder(EventSources.of(kafka, ("lake",)), EVERYTHING)
        return BatchHandler(kafka, decoder, handle or self.heard.extend, self.published.append, write=write)

    @contextmanager
    def events(self, handler: BatchHandler | None = None) -> Iterator[StreamingQuery]:
        query = EventQuery(self.lake.session, self.settings, self.checkpoint, handler or self.handler()).start()
        with stopping(query):
            wait_for("the offsets", lambda: offsets_fixed(query))
            yield query

    @property
    def names(self) -> list[str]:
        return sorted(one.table.name for one in self.heard if isinstance(one, Heard))

    @property
    def counts(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for event in self.published:
            if isinstance(event, DeadLettered):
                total[event.reason] += event.count
        return dict(total)

    def letters(self) -> list[Any]:
        return kafka_topics.records(self.dead, bootstrap_servers=self.broker, max_partition_fetch_bytes=LARGEST)


@contextmanager
def stopping(query: StreamingQuery) -> Iterator[None]:
    """A query that is stopped within a batch logs stack traces."""
    try:
        yield
    finally:
        deadline = time.monotonic() + PATIENCE
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(0.01)
        query.stop()


@pytest.fixture
def stage(lake: Lake, broker: str, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(lake, broker, tmp_path)
    made.create(made.dead, **{"cleanup.policy": "compact"})  # such a topic refuses records without a key
    yield made
    made.producer.close()


def event(name: str, *, size: int = 0, **fields: Any) -> bytes:
    values: dict[str, Any] = {"catalog": "lake", "namespace": ("db",), "timestamp_ms": 7, "operation": "append"}
    changed = TableChanged(source="canonical", event_id=str(uuid.uuid4()), name=name, **{**values, **fields})
    value = canonical.encode(changed)[1]
    return value + b" " * (size - len(value))


def place(letter: Any) -> tuple[int, int]:
    headers = dict(letter.headers)
    return int(headers["firnline.partition"]), int(headers["firnline.offset"])


# --- commit events ----------------------------------------------------------------------------------------------------


def test_a_fresh_start_reads_from_the_end_and_a_restart_goes_on(stage: Stage) -> None:
    stage.send(event("before"))
    with stage.events():
        stage.send(event("first"))
        stage.send(b"rubbish")
        stage.send(None, key=b"k")
        stage.send(event("first", operation="replace"))
        wait_for("two events", lambda: len(stage.heard) == 2)
        first = TableName("lake", ("db",), "first")
        assert {(one.table, one.timestamp_ms, one.writes) for one in stage.heard} == {
            (first, 7, True),
            (first, 7, False),
        }
    stage.send(event("between"))
    with stage.events():  # its offsets are known before there is any event
        stage.send(event("after"))
        wait_for("the others", lambda: len(stage.heard) == 4)
    assert stage.names == ["after", "between", "first", "first"]
    with stage.events():
        time.sleep(1)
    assert stage.names == ["after", "between", "first", "first"]


def test_a_batch_whose_handling_failed_is_handled_again(stage: Stage) -> None:
    def fail(events: Sequence[AnyHeard]) -> None:
        if events:
            raise RetryError("disk full")

    handler = stage.handler(fail)
    with stage.events(handler) as query:
        stage.send(event("t"))
        wait_for("the end of the query", lambda: not query.isActive)
        assert str(handler.refused) == "disk full"
    with stage.events():
        wait_for("the event", lambda: stage.names == ["t"])


def test_a_control_topic_that_appears_later_is_read_from_its_beginning(stage: Stage) -> None:
    control = f"{stage.topic}-control"
    stage.kafka["commit_topics"] = [control]
    stage.kafka["options"] = {"metadata.max.age.ms": "1000"}
    with stage.events():
        stage.create(control)
        stage.send(event("control"), control)
        wait_for("its event", lambda: stage.names == ["control"])


def test_topics_of_other_systems_are_found_by_pattern_and_read_in_their_format(stage: Stage) -> None:
    """With key and headers: some formats have the table there."""
    polaris = {"topic": f"{stage.topic}-polaris", "format": "polaris"}
    stores = {"pattern": f"{stage.topic}-store-.*", "format": "s3"}
    stage.kafka |= {
        "commit_topics": [polaris, stores, f"{stage.topic}-mixed"],
        "catalog_names": {"POLARIS/analytics": "lake", "other": ""},
        "options": {"metadata.max.age.ms": "1000"},
    }
    polaris_event = json.dumps({
        "event_type": "AFTER_UPDATE_TABLE", "event_id": str(uuid.uuid4()), "timestamp": "2026-08-21T14:17:47.123456Z",
        "table_name": "p", "namespace": ["db"], "catalog_name": "analytics", "realm_id": "POLARIS",
    }).encode()  # fmt: skip
    written = "lake/db/t/metadata/00001-x.metadata.json"
    store_event = json.dumps({"EventName": "s3:ObjectCreated:Put", "Key": written, "Records": [{
        "eventSource": "minio:s3", "eventName": "s3:ObjectCreated:Put", "eventTime": "2026-08-21T14:17:47.123Z",
        "s3": {"bucket": {"name": "lake"}, "object": {"key": "db/t/metadata/00001-x.metadata.json"}},
    }]}).encode()  # fmt: skip
    with stage.events():
        for topic in (polaris["topic"], f"{stage.topic}-mixed", f"{stage.topic}-store-a"):
            stage.create(topic)
        stage.send(polaris_event, polaris["topic"])
        stage.send(event("not_polaris"), polaris["topic"])
        stage.send(polaris_event.replace(b"analytics", b"other").replace(b"POLARIS", b"any"), polaris["topic"])
        stage.send(event("mixed"), f"{stage.topic}-mixed")
        stage.send(store_event, f"{stage.topic}-store-a")
        wait_for("the events", lambda: len(stage.heard) == 3)
    places = [each.metadata_location for each in stage.heard if isinstance(each, HeardLocation)]
    tables = {(each.source, each.table.name) for each in stage.heard if isinstance(each, Heard)}
    assert places == ["s3://lake/db/t/metadata/00001-x.metadata.json"]
    assert tables == {("polaris", "p"), ("canonical", "mixed")}


def test_offsets_that_were_read_are_those_of_a_group(stage: Stage) -> None:
    watch, name = BrokerWatch(stage.settings.kafka), f"firnline-{stage.topic}"
    admin = KafkaAdminClient(bootstrap_servers=stage.broker)

    def committed() -> dict[int, int]:
        """The first use of any group makes the broker create the topic of all groups."""
        watch.look()
        with suppress(RetriableError):
            return {place.partition: each.offset for place, each in admin.list_group_offsets(name)[name].items()}
        return {}

    for offset in (5, 4):  # a topic that was created again has smaller offsets
        watch.read({stage.topic: {"0": offset, "1": 0}})
        wait_for("the offsets", lambda offset=offset: committed() == {0: offset, 1: 0})
    watch.close()
    admin.close()


# --- dead letters -----------------------------------------------------------------------------------------------------


def test_each_bad_event_is_one_letter_and_stops_nothing(stage: Stage) -> None:
    bad: dict[str, bytes | None] = {
        "unrecognised": b"\x00\xffrubbish",
        "tombstone": None,
        "invalid_json": b'{"event-id": "x", ',
        "unknown_catalog": event("t", catalog="attic"),
    }
    with stage.events():
        stage.send(event("first"), partition=0)
        for value in bad.values():
            stage.send(value, key=b"a key", headers=[("trace", b"17")], partition=2)
        stage.send(b"rubbish", partition=1)
        wait_for("the letters", lambda: sum(stage.counts.values()) == len(bad) + 1)
        stage.send(event("last"), partition=0)
        wait_for("the last event", lambda: stage.names == ["first", "last"])
    without_key = [letter for letter in stage.letters() if letter.key != b"a key"]
    letters = [letter for letter in stage.letters() if letter.key == b"a key"]
    assert {dict(letter.headers)["firnline.reason"].decode(): letter.value for letter in letters} == bad
    assert len(letters) == len(bad)
    assert {dict(letter.headers)["trace"] for letter in letters} == {b"17"}
    assert {dict(letter.headers)["firnline.topic"] for letter in letters} == {stage.topic.encode()}
    assert sorted(place(letter) for letter in letters) == [(2, number) for number in range(len(bad))]
    assert [letter.key for letter in without_key] == [f"{stage.topic}-1-0".encode()]
    assert stage.counts == {**dict.fromkeys(bad, 1), "unrecognised": 2}


def test_observe_mode_counts_and_writes_nothing(stage: Stage) -> None:
    with stage.events(stage.handler(write=False)):
        stage.send(b"rubbish")
        wait_for("the counts", lambda: stage.counts == {"unrecognised": 1})
    assert stage.letters() == []


def test_letters_that_cannot_be_written_hold_up_no_event_for_long(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.intake.event_query.GIVE_UP_SECONDS", 5.0)
    stage.dead = f"{stage.topic}-small"
    stage.create(stage.dead, **{"max.message.bytes": "100"})
    handler = stage.handler()
    with stage.events(handler) as query:
        stage.send(b"rubbish" * 100)
        stage.send(event("t"))
        wait_for("the end of the query", lambda: not query.isActive)
    while not stage.counts:  # the batch again and again, then without the letter
        query = EventQuery(stage.lake.session, stage.settings, stage.checkpoint, handler).start()
        with stopping(query):
            wait_for("the count or an end", lambda query=query: stage.counts or not query.isActive)
    with stage.events(handler):
        stage.send(event("next"))
        wait_for("the event", lambda: "next" in stage.names)
    assert stage.counts == {"unrecognised": 1}
    assert "t" in stage.names
    assert f"1 dead letters could not be written to topic {stage.dead}" in caplog.text
