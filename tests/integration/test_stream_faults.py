"""The stream while its sources fail: a broker that goes away, topics created again or cut, a damaged checkpoint.

Each test has a broker of its own, because it breaks it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewPartitions, NewTopic

from compactor.events import Event, EventsLost, StreamEnded
from compactor.patience.backoff import Backoff
from compactor.settings.tree import Settings
from compactor.shards import EVERYTHING
from deploy.demo.broker import LocalBroker, new_broker
from streaming.commit_events import canonical
from streaming.commit_events.decoder import TableChanged
from streaming.kafka.topic_watch import TopicWatch
from streaming.ledger import dead_letter_query
from streaming.ledger.event_reader import FOLDER
from streaming.ledger.heard import Heard
from streaming.service import streams as streams_module
from streaming.service.streams import Streams
from tests.conftest import Lake
from tests.integration.service_process import PATIENCE, wait_for
from tests.services.quick_java import quick_java

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]
SHORT = {
    "request.timeout.ms": "3000", "default.api.timeout.ms": "4000", "session.timeout.ms": "3000",
    "heartbeat.interval.ms": "500", "metadata.max.age.ms": "1000",
}  # fmt: skip


@dataclass
class Scene:
    """A broker that can be stopped, and the streams that read from it."""

    lake: Lake
    folder: Path
    broker: LocalBroker
    up: ExitStack = field(default_factory=ExitStack)
    topic: str = field(default_factory=lambda: f"faults-{uuid.uuid4().hex[:8]}")
    heard: list[str] = field(default_factory=list)
    published: list[Event] = field(default_factory=list)
    sweeps: int = 0
    silent: str = ""
    more_topics: list[str] = field(default_factory=list)

    def start_broker(self) -> None:
        self.up.enter_context(quick_java(self.broker.running()))

    def stop_broker(self) -> None:
        self.up.close()

    @contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        client = KafkaAdminClient(bootstrap_servers=self.broker.address)
        try:
            yield client
        finally:
            client.close()

    def create(self, topic: str = "", **configs: str) -> None:
        with self.admin() as admin:
            new = NewTopic(topic or self.topic, 1, 1, topic_configs=configs)
            admin.create_topics([new], wait_for_metadata=True)

    def exists(self, topic: str = "") -> bool:
        with self.admin() as admin:
            return (topic or self.topic) in admin.list_topics()

    def send(self, *names: str, topic: str = "", partition: int = 0, at: int | None = None) -> None:
        """`at`: the records' timestamp, by default now in milliseconds."""
        producer = KafkaProducer(bootstrap_servers=self.broker.address, acks="all")
        for name in names:
            changed = TableChanged(
                source="test", event_id=name, catalog="lake", namespace=("db",), name=name,
                timestamp_ms=int(time.time() * 1000), operation="append",
            )  # fmt: skip
            value = canonical.encode(changed, sender="test")[1]
            producer.send(topic or self.topic, value=value, partition=partition, timestamp_ms=at).get(30)
        producer.close()

    @property
    def settings(self) -> Settings:
        tree = self.lake.settings.model_dump()
        kafka = {
            "bootstrap_servers": self.broker.address, "commit_topic": self.topic,
            "dead_letter_topic": f"{self.topic}-dead", "options": SHORT, "commit_topics": self.more_topics,
        }  # fmt: skip
        return Settings.model_validate({**tree, "kafka": kafka, "service": {"trigger_seconds": 0.2}})

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def handle(self, events: Sequence[Heard]) -> None:
        self.heard.extend(each.table.name for each in events)

    def swept(self) -> None:
        self.sweeps += 1

    @contextmanager
    def streams(self) -> Iterator[Streams]:
        streams = Streams(
            session=self.lake.session, settings=self.settings, catalogs=("lake",), checkpoint=f"file://{self.checkpoint}",
            handle=self.handle, missing=lambda _tables: frozenset(), shard=lambda: EVERYTHING,
            listener=self.published.append, write=True, skipped=self.swept,
            silent=lambda: self.silent,
        )  # fmt: skip
        streams.check()
        try:
            yield streams
        finally:
            streams.finish_batches(time.monotonic() + 10)
            streams.stop()

    def causes(self) -> set[str]:
        return {event.cause for event in self.published if isinstance(event, StreamEnded)}

    def lost(self) -> list[int]:
        return [e.count for e in self.published if isinstance(e, EventsLost) and e.query == "ledger"]


@pytest.fixture
def scene(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(dead_letter_query, "TRIGGER_SECONDS", 0.5)
    for name in ("EVENTS_BACKOFF", "LETTERS_BACKOFF"):
        monkeypatch.setattr(streams_module, name, Backoff(first_seconds=0.2, longest_seconds=1.0))
    made = Scene(lake, tmp_path, new_broker(tmp_path / "broker", "log.retention.check.interval.ms=500\n"))
    made.start_broker()
    made.create()
    yield made
    made.stop_broker()


def checked(streams: Streams, what: str, done: Callable[[], bool], seconds: float = PATIENCE) -> None:
    def look() -> bool:
        streams.check()
        return done()

    wait_for(what, look, seconds=seconds)


def test_a_broker_that_goes_away_ends_nothing_and_its_events_are_heard_later(scene: Scene) -> None:
    with scene.streams() as streams:
        checked(streams, "the offsets", lambda: streams.offsets_fixed)
        scene.send("before")
        checked(streams, "the event", lambda: scene.heard == ["before"])
        scene.stop_broker()
        checked(streams, "the end", lambda: bool(scene.causes()))
        assert scene.causes() <= {"kafka_unavailable"}
        assert streams.behind
        assert streams.may_sweep
        assert "kafka.bootstrap_servers" in streams.troubles["ledger"]
        assert not streams.dead
        scene.start_broker()
        scene.send("after")
        checked(streams, "the next event", lambda: scene.heard == ["before", "after"])
        checked(streams, "all queries", lambda: not streams.troubles)
        assert scene.sweeps
        assert scene.lost() == []


@pytest.mark.parametrize("seen", [True, False])
def test_a_start_without_a_broker_waits_for_it_and_a_sweep_follows_the_first_offsets(scene: Scene, seen: bool) -> None:
    """`seen`: the topics were looked at before; else it falls silent right after that."""
    scene.stop_broker()
    scene.silent = "no broker answers" if seen else ""
    with scene.streams() as streams:
        checked(streams, "sweeps", lambda: streams.may_sweep)
        assert not streams.offsets_fixed
        assert streams.behind or not seen
        assert "ledger" in streams.troubles
        assert (scene.sweeps, bool(streams.queries)) == (0, not seen)
        scene.start_broker()
        scene.silent = ""
        checked(streams, "the offsets", lambda: streams.offsets_fixed and not streams.troubles)
        assert scene.sweeps
        scene.send("first")
        checked(streams, "the event", lambda: scene.heard == ["first"])


def test_the_first_sweep_of_a_start_comes_after_the_first_offsets(scene: Scene) -> None:
    with scene.streams() as streams:
        checked(streams, "sweeps", lambda: streams.may_sweep)
        assert streams.offsets_fixed
        assert scene.sweeps == 0


def test_a_topic_that_is_deleted_and_created_again_is_read_from_its_beginning(scene: Scene) -> None:
    with scene.streams() as streams:
        watch = TopicWatch(scene.settings.kafka, streams.topics_recreated)
        checked(streams, "the offsets", lambda: streams.offsets_fixed)
        watch.look()
        scene.send("a", "b", "c")
        checked(streams, "the events", lambda: scene.heard == ["a", "b", "c"])
        with scene.admin() as admin:
            admin.delete_topics([scene.topic])
        checked(streams, "the deletion", lambda: not scene.exists())
        watch.look()
        scene.create()
        scene.send("first", "second")
        watch.look()
        checked(streams, "all events of the new topic", lambda: sorted(scene.heard[3:]) == ["first", "second"])
        checked(streams, "all queries", lambda: not streams.troubles)
        assert scene.sweeps
        assert "topic_recreated" in scene.causes()
        watch.close()


def test_a_topic_that_is_deleted_for_good_does_not_hold_up_one_that_is_created_again(scene: Scene) -> None:
    """The new checkpoint must name the partitions that exist, and no others."""
    gone, anew = scene.more_topics = [f"{scene.topic}-gone", f"{scene.topic}-anew"]
    for topic in scene.more_topics:
        scene.create(topic)
    with scene.streams() as streams:
        watch = TopicWatch(scene.settings.kafka, streams.topics_recreated)
        checked(streams, "the offsets", lambda: streams.offsets_fixed)
        scene.send("a", topic=gone)
        scene.send("b", topic=anew)
        checked(streams, "the events", lambda: sorted(scene.heard) == ["a", "b"])
        watch.look()
        with scene.admin() as admin:
            admin.delete_topics([gone])
        checked(streams, "the first deletion", lambda: not scene.exists(gone))
        watch.look()
        with scene.admin() as admin:
            admin.delete_topics([anew])
        checked(streams, "the second deletion", lambda: not scene.exists(anew))
        scene.create(anew)
        scene.send("first", topic=anew)
        watch.look()
        checked(streams, "the event of the new topic", lambda: scene.heard[2:] == ["first"])
        checked(streams, "all queries", lambda: not streams.troubles)
        scene.send("other")
        checked(streams, "the event of the other topic", lambda: scene.heard[3:] == ["other"])
        assert scene.causes() == {"topic_recreated"}
        watch.close()


def test_added_partitions_are_read_from_their_beginning(scene: Scene) -> None:
    with scene.streams() as streams:
        checked(streams, "the offsets", lambda: streams.offsets_fixed)
        with scene.admin() as admin:
            admin.create_partitions({scene.topic: NewPartitions(3)})
        scene.send("second", partition=1)
        scene.send("third", partition=2)
        checked(streams, "the events", lambda: sorted(scene.heard) == ["second", "third"])
        assert not scene.causes()


def test_events_that_retention_removed_are_reported_and_swept(scene: Scene) -> None:
    with scene.streams() as streams:
        checked(streams, "the offsets", lambda: streams.offsets_fixed)
        scene.send("read")
        checked(streams, "the event", lambda: scene.heard == ["read"])
    scene.send("lost", "lost too")
    with scene.admin() as admin:
        admin.delete_records({TopicPartition(scene.topic, 0): 3})
    scene.send("kept")
    with scene.streams() as streams:
        checked(streams, "the event", lambda: "kept" in scene.heard)
        checked(streams, "the loss", lambda: scene.lost() == [2])
        assert scene.heard == ["read", "kept"]
        assert scene.sweeps == 1


def test_a_record_that_spark_cannot_read_costs_its_batch_and_no_more(scene: Scene) -> None:
    """A producer wrote its timestamp in nanoseconds: Spark's microseconds overflow."""
    scene.topic += "-any-time"
    scene.create(**{"message.timestamp.after.max.ms": str(2**63 - 1)})
    with scene.streams() as streams:
        checked(streams, "the offsets", lambda: streams.offsets_fixed)
        scene.send("before")
        checked(streams, "the event", lambda: scene.heard == ["before"])
        scene.send("unread", at=time.time_ns())
        checked(streams, "the first end", lambda: "batch_unreadable" in scene.causes())
        scene.send("after")
        checked(streams, "the next event", lambda: scene.heard == ["before", "after"])
        checked(streams, "all queries", lambda: not streams.troubles)
        assert scene.causes() == {"batch_unreadable"}
        assert scene.lost() == [1]
        assert scene.sweeps
        assert all(event.unreadable for event in scene.published if isinstance(event, EventsLost))


@pytest.mark.parametrize("damage", ["offsets", "metadata"])
def test_a_damaged_checkpoint_is_set_aside(scene: Scene, damage: str) -> None:
    with scene.streams() as streams:
        checked(streams, "the offsets", lambda: streams.offsets_fixed)
        scene.send("before")
        checked(streams, "the event", lambda: scene.heard == ["before"])
    folder = scene.checkpoint / FOLDER
    broken = [folder / "metadata"] if damage == "metadata" else [*(folder / "offsets").glob("[0-9]*")]
    for file in broken:
        file.write_bytes(b"not a checkpoint")
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    with scene.streams() as streams:
        checked(streams, "a new checkpoint", lambda: streams.offsets_fixed and not streams.troubles)
        scene.send("after")
        checked(streams, "the event", lambda: scene.heard == ["before", "after"])
        assert scene.causes() == {"unexpected"}
        assert scene.sweeps
    aside: list[Any] = sorted(each.name for each in scene.checkpoint.glob(f"{FOLDER}.aside-*"))
    assert aside == [f"{FOLDER}.aside-000001"]
