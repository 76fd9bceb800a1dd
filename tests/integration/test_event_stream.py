"""The two queries on a real broker: what reaches the ledger, what becomes a dead letter, and what is in memory."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import RetriableError
from pyspark.sql.streaming.query import StreamingQuery

from compactor.errors import RetryError
from compactor.events import BatchFinished, DeadLettered, Event
from compactor.settings.tree import Settings
from compactor.shards import EVERYTHING, Shard
from compactor.table_names import TableName
from streaming.commit_events import canonical
from streaming.commit_events.decoder import MAX_EVENT_BYTES, TableChanged
from streaming.kafka.group_offsets import GroupOffsets
from streaming.ledger import dead_letter_query, event_reader
from streaming.ledger.dead_letters import MAX_VALUE_BYTES
from streaming.ledger.event_reader import offsets_fixed, start_events
from streaming.ledger.heard import AnyHeard, Heard, HeardLocation
from streaming.ledger.records import ARROW_BATCH_BYTES, records
from streaming.service import streams as streams_module
from streaming.service.streams import Streams
from tests.conftest import Lake
from tests.integration.service_process import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
PARTITIONS = 3
LARGEST = 8 * 1024 * 1024


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letter_query, "TRIGGER_SECONDS", 0.2)


@dataclass
class Stage:
    """Topics and a checkpoint of one test's own. `gone`: tables that do not exist."""

    lake: Lake
    broker: str
    folder: Path
    kafka: dict[str, Any] = field(default_factory=dict)
    topic: str = field(default_factory=lambda: f"stream-{uuid.uuid4().hex[:8]}")
    heard: list[AnyHeard] = field(default_factory=list)
    published: list[Event] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.create(self.topic, PARTITIONS)
        self.producer = KafkaProducer(bootstrap_servers=self.broker, acks="all", max_request_size=LARGEST)

    def create(self, topic: str, partitions: int = 1, **options: str) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.broker)
        limit = {"max.message.bytes": str(LARGEST), **options}
        admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=limit)], wait_for_metadata=True)
        admin.close()

    @property
    def dead(self) -> str:
        return f"{self.topic}-dead"

    @property
    def settings(self) -> Settings:
        tree = self.lake.settings.model_dump()
        own = {"bootstrap_servers": self.broker, "commit_topic": self.topic, "dead_letter_topic": self.dead}
        return Settings.model_validate(
            {**tree, "kafka": {**tree["kafka"], **own, **self.kafka}, "service": {"trigger_seconds": 0.2}}
        )

    @property
    def checkpoint(self) -> str:
        return f"file://{self.folder}/checkpoint"

    def send(self, value: bytes | None, topic: str | None = None, **record: Any) -> None:
        self.producer.send(topic or self.topic, value=value, **record).get(30)

    def missing(self, tables: Collection[TableName]) -> frozenset[TableName]:
        return frozenset(table for table in tables if table.name in self.gone)

    @contextmanager
    def events(self, handle: Callable[[Sequence[AnyHeard]], None] | None = None) -> Iterator[StreamingQuery]:
        query = start_events(self.lake.session, self.settings, ("lake",), self.checkpoint, handle or self.heard.extend)
        with stopping(query):
            wait_for("the offsets", lambda: offsets_fixed(query))
            yield query

    @contextmanager
    def dead_letters(self, name: str = "one", **options: Any) -> Iterator[StreamingQuery]:
        values = {"write": True, "shard": lambda: EVERYTHING, "missing": self.missing, **options}
        checkpoint = f"{self.checkpoint}/{name}"
        query = dead_letter_query.start_dead_letters(
            self.lake.session, self.settings, ("lake",), checkpoint, listener=self.published.append, **values
        )
        with stopping(query):
            wait_for("the offsets", lambda: offsets_fixed(query) or not query.isActive)
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
        consumer = KafkaConsumer(
            bootstrap_servers=self.broker, enable_auto_commit=False, max_partition_fetch_bytes=LARGEST
        )
        try:
            places = [TopicPartition(self.dead, number) for number in consumer.partitions_for_topic(self.dead) or ()]
            ends = consumer.end_offsets(places)
            consumer.assign(places)
            consumer.seek_to_beginning(*places)
            found: list[Any] = []
            while places and len(found) < sum(ends.values()):
                found += [record for batch in consumer.poll(500).values() for record in batch]
        finally:
            consumer.close()
        return found


@contextmanager
def stopping(query: StreamingQuery) -> Iterator[None]:
    """A query that is stopped within a batch logs stack traces."""
    try:
        yield
    finally:
        deadline = time.monotonic() + 30
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
    def fail(events: Sequence[Heard]) -> None:
        if events:
            raise RuntimeError("disk full")

    with stage.events(fail) as query:
        stage.send(event("t"))
        wait_for("the end of the query", lambda: not query.isActive)
        assert "disk full" in str(query.exception())
    with stage.events():
        wait_for("the event", lambda: stage.names == ["t"])


def test_the_offsets_of_the_earlier_version_are_taken_over(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_reader, "FOLDER", "ledger-v2-p1")
    with stage.events():
        stage.send(event("old"))
        wait_for("the event", lambda: stage.names == ["old"])
    monkeypatch.undo()
    stage.send(event("requested", request=""))
    with stage.events():
        wait_for("the request", lambda: len(stage.heard) == 2)
    assert stage.names == ["old", "requested"]
    assert stage.heard[1].request == ""


def test_a_control_topic_that_appears_later_is_read_from_its_beginning(stage: Stage) -> None:
    control = f"{stage.topic}-control"
    stage.kafka["control_topics"] = [control]
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
    group = GroupOffsets(stage.settings.kafka, seconds=0.1)
    assert not group.commit()
    for number in range(5):
        stage.send(event(f"t{number}"), partition=0)
    group.read({stage.topic: {"0": 5, "1": 0}})

    def committed() -> bool:
        """The first use of any group makes the broker create the topic of all groups."""
        with suppress(RetriableError):
            return group.commit()
        return False

    wait_for("the first commit", committed)
    assert not group.commit(), "nothing has changed"
    group.read({stage.topic: {"0": 4, "1": 0}})
    assert group.commit(), "a topic that was created again has smaller offsets"
    admin = KafkaAdminClient(bootstrap_servers=stage.broker)
    name = f"firnline-{stage.topic}"
    offsets = {place.partition: found.offset for place, found in admin.list_group_offsets(name)[name].items()}
    admin.close()
    assert offsets == {0: 4, 1: 0}


@pytest.mark.slow
def test_large_values_are_in_memory_one_by_one(stage: Stage) -> None:
    """A batch of the stream has 30 MB; what a Python worker gets at once stays below a few."""
    sizes: list[int] = []

    def measured(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"nbytes": [batch.nbytes], "rows": [batch.num_rows]})

    def start() -> StreamingQuery:
        frame = records(stage.lake.session, stage.settings.kafka, 100).mapInArrow(measured, "nbytes long, rows long")
        writer = frame.writeStream.option("checkpointLocation", f"{stage.checkpoint}/measured")
        return writer.foreachBatch(lambda batch, _: sizes.extend(row["nbytes"] for row in batch.collect())).start()

    with stopping(first := start()), stage.events():
        wait_for("the offsets", lambda: offsets_fixed(first))
    for number in range(24):
        stage.producer.send(stage.topic, event(f"t{number:02}", size=MAX_EVENT_BYTES))
    for _ in range(3):
        stage.producer.send(stage.topic, event("too_large", size=3 * MAX_EVENT_BYTES))
    stage.producer.flush()
    with stopping(start()), stage.events():
        wait_for("the large events", lambda: len(stage.heard) == 24)
        wait_for("the bytes", lambda: sum(sizes) > 27 * MAX_EVENT_BYTES)
    assert stage.names == [f"t{number:02}" for number in range(24)]
    assert max(sizes) < ARROW_BATCH_BYTES + 2 * MAX_EVENT_BYTES


# --- dead letters -----------------------------------------------------------------------------------------------------


def test_each_bad_event_is_one_letter(stage: Stage) -> None:
    stage.gone = {"gone"}
    bad: dict[str, bytes | None] = {
        "unrecognised": b"\x00\xffrubbish",
        "tombstone": None,
        "invalid_json": b'{"event-id": "x", ',
        "unknown_catalog": event("t", catalog="attic"),
        "unknown_table": event("gone"),
    }
    with stage.dead_letters():
        stage.send(event("t"))
        for value in bad.values():
            stage.send(value, key=b"a key", headers=[("trace", b"17")])
        wait_for("five letters", lambda: sum(stage.counts.values()) >= 5)
        stage.send(event("t"))
        time.sleep(1)
    letters = stage.letters()
    assert {dict(letter.headers)["firnline.reason"].decode(): letter.value for letter in letters} == bad
    assert len(letters) == len(bad)
    assert {(letter.key, dict(letter.headers)["trace"]) for letter in letters} == {(b"a key", b"17")}
    assert {dict(letter.headers)["firnline.topic"] for letter in letters} == {stage.topic.encode()}
    assert len({place(letter) for letter in letters}) == len(bad)
    assert stage.counts == dict.fromkeys(bad, 1)


def test_a_letter_of_an_event_without_a_key_has_its_place_as_key(stage: Stage) -> None:
    with stage.dead_letters():
        stage.send(b"rubbish", partition=2)
        wait_for("the letter", lambda: stage.counts)
    (letter,) = stage.letters()
    assert letter.key == f"{stage.topic}-2-0".encode()


@pytest.mark.slow
def test_large_letters_are_cut_and_fit(stage: Stage) -> None:
    stage.gone = {"gone"}
    values = [
        event("t", size=2 * MAX_EVENT_BYTES),
        event("t", size=3 * MAX_EVENT_BYTES),
        event("gone", size=MAX_EVENT_BYTES),
    ]
    with stage.dead_letters():
        for value in values:
            stage.send(value, key=b"k" * 100_000)
        wait_for("the letters", lambda: sum(stage.counts.values()) == 3)
    letters = stage.letters()
    assert stage.counts == {"oversize": 2, "unknown_table": 1}
    assert len(letters) == 3
    assert {letter.value for letter in letters} == {value[:MAX_VALUE_BYTES] for value in values}
    details = " ".join(dict(letter.headers)["firnline.detail"].decode() for letter in letters)
    assert all(str(len(value)) in details for value in values[:2])


def test_observe_mode_counts_and_writes_nothing(stage: Stage) -> None:
    stage.gone = {"gone"}
    with stage.dead_letters(write=False):
        for value in (b"rubbish", event("gone"), event("gone")):
            stage.send(value)
        wait_for("the counts", lambda: stage.counts == {"unrecognised": 1, "unknown_table": 2})
    assert stage.letters() == []


def test_a_catalog_that_does_not_answer_costs_no_letter(stage: Stage) -> None:
    def silent(_tables: Collection[TableName]) -> frozenset[TableName]:
        raise RetryError("catalog lake does not answer")

    stage.gone = {"gone"}
    with stage.dead_letters(missing=silent) as query:
        stage.send(event("gone"))
        stage.send(b"rubbish")
        wait_for("the end of the query", lambda: not query.isActive)
        assert "catalog lake does not answer" in str(query.exception())
    assert (stage.letters(), stage.counts) == ([], {})
    with stage.dead_letters():
        wait_for("both letters", lambda: stage.counts == {"unrecognised": 1, "unknown_table": 1})
    assert len(stage.letters()) == 2


@pytest.mark.slow
def test_two_services_write_each_letter_once(stage: Stage) -> None:
    stage.gone = {f"gone{number}" for number in range(20)}
    members = ("a", "b")
    with ExitStack() as queries:
        for me in members:
            queries.enter_context(stage.dead_letters(me, shard=lambda me=me: Shard(me, members)))
        for number in range(20):
            stage.send(event(f"gone{number}"))
            stage.send(b"rubbish")
        wait_for("all letters", lambda: stage.counts == {"unrecognised": 20, "unknown_table": 20})
    letters = stage.letters()
    assert len(letters) == len({place(letter) for letter in letters}) == 40


# --- watched together -------------------------------------------------------------------------------------------------


def test_queries_that_end_are_started_again_and_batches_reported_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    backoff = streams_module.Backoff(0.1, 0.1)
    monkeypatch.setattr(streams_module, "EVENTS_BACKOFF", backoff)
    monkeypatch.setattr(streams_module, "LETTERS_BACKOFF", backoff)
    failures = {"handle": 1, "missing": 2}
    alive: set[str] = set()

    def failing(what: str) -> None:
        failures[what] -= 1
        if failures[what] >= 0:
            raise RetryError(f"{what} fails")

    def handle(events: Sequence[Heard]) -> None:
        if events:
            failing("handle")
        stage.heard.extend(events)

    def missing(tables: Collection[TableName]) -> frozenset[TableName]:
        failing("missing")
        return stage.missing(tables)

    stage.gone = {"gone"}
    streams = Streams(
        session=stage.lake.session,
        settings=stage.settings,
        catalogs=("lake",),
        checkpoint=stage.checkpoint,
        handle=handle,
        missing=missing,
        shard=lambda: EVERYTHING,
        listener=stage.published.append,
        write=True,
        alive=alive.add,
    )
    assert not streams.offsets_fixed
    streams.check()
    try:
        wait_for("the offsets", lambda: streams.offsets_fixed)
        wait_for("signs of life", lambda: streams.check() or alive == {"ledger", "dead-letters"})
        stage.send(event("gone"))

        def done() -> bool:
            streams.check()
            return stage.names == ["gone"] and stage.counts == {"unknown_table": 1}

        wait_for("both", done)
        assert len(stage.letters()) == 1
        wait_for("both to run", lambda: streams.check() or not streams.troubles)
        wait_for("the batches", lambda: streams.check() or len(rows_read(stage)) == 2)
        assert rows_read(stage) == [("dead-letters", 1), ("ledger", 1)]
        assert (streams.behind, streams.lag_offsets) == (False, 0)
    finally:
        streams.finish_batches(time.monotonic() + 30)
        streams.stop()


def rows_read(stage: Stage) -> list[tuple[str, int]]:
    batches = [event for event in stage.published if isinstance(event, BatchFinished) and event.input_rows]
    return sorted((batch.query, batch.input_rows) for batch in batches)
