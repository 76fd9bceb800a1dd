"""The stream while its sources fail: a broker that goes away, topics created again or cut, a damaged checkpoint.

Each test has a broker of its own, because it breaks it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from compactor.errors import RetryError
from compactor.events import Event, EventsLost, StreamEnded
from compactor.settings.tree import Settings
from compactor.shards import EVERYTHING
from streaming.commit_events import canonical
from streaming.commit_events.decoder import TableChanged
from streaming.intake.event_query import BatchHandler, EventDecoder, EventQuery
from streaming.intake.event_sources import EventSources
from streaming.intake.event_stream import EventStream
from streaming.intake.heard import AnyHeard, Heard
from streaming.kafka.broker_watch import BrokerWatch
from tests.conftest import Lake
from tests.services.kafka_broker import BreakableBroker, breakable_broker
from tests.services.waiting import PATIENCE, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]
SHORT = {
    "request.timeout.ms": "3000", "default.api.timeout.ms": "4000", "session.timeout.ms": "3000",
    "heartbeat.interval.ms": "500", "metadata.max.age.ms": "1000",
}  # fmt: skip


@dataclass
class Scene:
    """A broker that can be stopped, and the stream that reads from it. `full`: events cannot be kept."""

    lake: Lake
    folder: Path
    broker: BreakableBroker
    topic: str = field(default_factory=lambda: f"faults-{uuid.uuid4().hex[:8]}")
    heard: list[str] = field(default_factory=list)
    published: list[Event] = field(default_factory=list)
    looks_at_all: int = 0
    full: bool = False

    @contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        client = KafkaAdminClient(bootstrap_servers=self.broker.address)
        try:
            yield client
        finally:
            client.close()

    def create(self, **configs: str) -> None:
        with self.admin() as admin:
            admin.create_topics([NewTopic(self.topic, 1, 1, topic_configs=configs)], wait_for_metadata=True)

    def send(self, *names: str, at: int | None = None) -> None:
        """`at`: the records' timestamp, by default now in milliseconds."""
        producer = KafkaProducer(bootstrap_servers=self.broker.address, acks="all")
        for name in names:
            changed = TableChanged(
                source="test", event_id=name, catalog="lake", namespace=("db",), name=name,
                timestamp_ms=int(time.time() * 1000), operation="append",
            )  # fmt: skip
            value = canonical.encode(changed, sender="test")[1]
            producer.send(self.topic, value=value, timestamp_ms=at).get(30)
        producer.close()

    @property
    def settings(self) -> Settings:
        tree = self.lake.settings.model_dump()
        kafka = {
            "bootstrap_servers": self.broker.address, "commit_topic": self.topic,
            "dead_letter_topic": f"{self.topic}-dead", "options": SHORT,
        }  # fmt: skip
        return Settings.model_validate({**tree, "kafka": kafka})

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def handle(self, events: Sequence[AnyHeard]) -> None:
        if events and self.full:
            raise RetryError("the requests cannot be kept")
        self.heard.extend(each.table.name for each in events if isinstance(each, Heard))

    def look_at_all(self) -> None:
        self.looks_at_all += 1

    @contextmanager
    def stream(self) -> Iterator[EventStream]:
        settings = self.settings
        decoder = EventDecoder(EventSources.of(settings.kafka, ("lake",)), EVERYTHING)
        handler = BatchHandler(settings.kafka, decoder, self.handle, self.published.append, write=True)
        source = EventQuery(self.lake.session, settings, f"file://{self.checkpoint}", handler)
        stream = EventStream(source, BrokerWatch(settings.kafka), self.published.append)
        stream.look_at_all = self.look_at_all
        began = time.monotonic()
        stream.ticks = lambda: began + 60 * (time.monotonic() - began)
        try:
            yield stream
        finally:
            stream.finish_batch(time.monotonic() + PATIENCE)
            stream.stop()

    def causes(self) -> list[str]:
        return [event.cause for event in self.published if isinstance(event, StreamEnded)]

    def lost(self) -> list[int]:
        return [event.count for event in self.published if isinstance(event, EventsLost)]


@pytest.fixture
def scene(lake: Lake, tmp_path: Path) -> Iterator[Scene]:
    with breakable_broker(tmp_path / "broker") as broker:
        made = Scene(lake, tmp_path, broker)
        made.create()
        yield made


def checked(stream: EventStream, what: str, done: Callable[[], bool]) -> None:
    def look() -> bool:
        stream.check()
        return done()

    wait_for(what, look)


def test_a_batch_that_fails_twice_is_skipped_and_all_tables_are_looked_at(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """A producer wrote its timestamp in nanoseconds: Spark's microseconds overflow."""
    scene.topic += "-any-time"
    scene.create(**{"message.timestamp.after.max.ms": str(2**63 - 1)})
    with scene.stream() as stream:
        checked(stream, "the offsets", lambda: stream.offsets_fixed)
        scene.send("before")
        checked(stream, "the event", lambda: scene.heard == ["before"])
        scene.send("unread", at=time.time_ns())
        scene.send("skipped")
        checked(stream, "two ends", lambda: len(scene.causes()) == 2)
        assert not scene.lost()
        checked(stream, "the query", lambda: bool(scene.lost()) and not stream.trouble)
        assert scene.looks_at_all == 1
        scene.send("after")
        checked(stream, "the next event", lambda: scene.heard == ["before", "after"])
        assert (scene.causes(), scene.lost()) == (["unexpected"] * 2, [2])
        assert "goes on from the end of the topics" in caplog.text


def test_events_that_cannot_be_kept_are_never_skipped(scene: Scene) -> None:
    scene.full = True
    with scene.stream() as stream:
        checked(stream, "the offsets", lambda: stream.offsets_fixed)
        scene.send("request")
        checked(stream, "three ends", lambda: len(scene.causes()) == 3)
        assert "the requests cannot be kept" in stream.trouble
        scene.full = False
        checked(stream, "the event", lambda: scene.heard == ["request"])
        assert (set(scene.causes()), scene.lost(), scene.looks_at_all) == ({"unavailable"}, [], 0)
