"""100,000 hostile events through the code that decodes them in Spark's Python workers; a part through a service."""

from __future__ import annotations

import resource
import unicodedata
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from compactor.shards import EVERYTHING
from streaming.commit_events.decoder import BadEventReason
from streaming.intake.dead_letters import MAX_KEY_BYTES, MAX_VALUE_BYTES
from streaming.intake.event_query import EventDecoder, heard_of
from streaming.intake.event_sources import EventSources
from streaming.intake.heard import HeardLocation
from streaming.intake.records import ARROW_BATCH_RECORDS
from tests.integration.service_process import site, wait_for
from tests.security.hostile_events import hostile_events
from tests.unit.streaming.test_event_decoding import records

EVENTS = 100_000
SENT = 10_000
CATALOGS = ("lake",)
DECODER = EventDecoder(EventSources(CATALOGS), EVERYTHING)
LARGEST_RECORD = 4 * 1024 * 1024
LETTER_BYTES = 1024 * 1024
MEMORY_BYTES = 600 * 1024 * 1024


def batches(seed: int, count: int) -> Iterator[pa.RecordBatch]:
    """As Spark hands them over."""
    events = hostile_events(seed, count)
    while values := tuple(islice(events, ARROW_BATCH_RECORDS)):
        yield records(*values)


def printable(text: str) -> bool:
    return not any(unicodedata.category(character) in {"Cc", "Cs"} for character in text)


@pytest.mark.timeout(1800)
def test_no_event_stops_the_stream_or_brings_a_text_that_could_do_harm() -> None:
    usable = harmless(EVENTS)
    print(f"\n{EVENTS:,} hostile events: {usable:,} name a table (a hint, no more)")


def harmless(count: int) -> int:
    """Check what so many events say; returns how many of them name a table or a file."""
    usable = 0
    for batch in DECODER.rows(batches(1, count)):
        for row in batch.to_pylist():
            if row["left_out"] is not None or row["reason"] is not None:
                continue
            heard = heard_of(row)
            usable += 1
            if isinstance(heard, HeardLocation):
                assert printable(heard.metadata_location)
                continue
            assert heard.table.catalog in CATALOGS
            assert all(map(printable, (*heard.table.namespace, heard.table.name, heard.request or "")))
    assert 0 < usable < count
    return usable


@pytest.mark.timeout(1800)
def test_every_other_event_becomes_one_dead_letter_of_bounded_size() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    bad = lettered(EVENTS)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    assert grown < MEMORY_BYTES
    print(f"\ndead letters by reason: {dict(bad)}; memory grew by {grown / 1e6:.0f} MB")


def lettered(count: int) -> Counter[str]:
    """Check the dead letters of so many events; returns their number by reason."""
    bad: Counter[str] = Counter()
    for batch in DECODER.rows(batches(1, count)):
        for row in batch.to_pylist():
            if row["reason"] is not None:
                bad[row["reason"]] += 1
                assert (
                    sum(len(each["value"]) for each in row["letter"]) < LETTER_BYTES - MAX_VALUE_BYTES - MAX_KEY_BYTES
                )
    assert set(bad) <= {reason.value for reason in BadEventReason}
    assert BadEventReason.DECODER_FAILED.value not in bad, "a decoder raised an error of its own"
    assert 0 < sum(bad.values()) <= count
    return bad


@pytest.mark.timeout(1800)
def test_a_service_goes_on_and_writes_one_letter_for_each(broker: str, tmp_path: Path) -> None:
    """Through a real broker and the query. Its table is rewritten as before; no name of an event becomes known."""
    events = [*hostile_events(2, SENT)]
    rows = (row for batch in DECODER.rows(iter([records(*events)])) for row in batch.to_pylist())
    bad = Counter(row["reason"] for row in rows if row["reason"] is not None)
    letters = sum(bad.values())
    with site(tmp_path, broker) as place:
        place.create("t")
        make_topic(broker, place.topic)
        service = place.started()
        producer = KafkaProducer(bootstrap_servers=broker, max_request_size=LARGEST_RECORD)
        sent = [producer.send(place.topic, value=value, key=b"k") for value in events]
        producer.flush()
        assert all(each.succeeded() for each in sent)
        producer.close()
        place.publish(*place.append("t", commits=6, parts=1, rows=50))
        rows = place.rows("t")
        service.wait_metric("firnline_commits_total")
        metrics = service.wait_metric("firnline_dead_letters_total", letters)
        wait_for("the letters", lambda: len(place.records(f"{place.topic}-dead")) >= letters)
        by_reason = {reason: metrics.total("firnline_dead_letters_total", reason=reason) for reason in bad}
        print(f"\n{SENT:,} hostile events through the service: {letters:,} dead letters; {by_reason}")
        assert by_reason == bad
        assert metrics.total("firnline_dead_letters_total") == letters
        assert len(place.records(f"{place.topic}-dead")) == letters
        assert place.rows("t") == rows
        assert place.is_compacted("t")
        known = {dict(labels).get("table", "lake.db.t") for _, labels in metrics.samples}
        assert known == {"lake.db.t"}, "names of events are labels of metrics"
        for path in ("/", "/api/v1/status", "/metrics"):
            answer = service.get(path)
            assert answer is not None
            assert "<script>alert" not in answer[1]
        assert all(printable(line) for line in service.log_text.splitlines())
        assert "Traceback" not in service.log_text
        assert service.terminate()[0] == 0


def make_topic(broker: str, name: str) -> None:
    """A topic that takes records larger than a decoder reads."""
    admin = KafkaAdminClient(bootstrap_servers=broker)
    try:
        admin.create_topics([NewTopic(name, 1, 1, topic_configs={"max.message.bytes": str(LARGEST_RECORD)})])
    finally:
        admin.close()
