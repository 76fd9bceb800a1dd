"""Topics of other systems, on a real broker: a sink's control topic is never written to, and is waited for."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from compactor.errors import RetryError
from compactor.settings.kafka import KafkaSettings
from streaming.commit_events import canonical
from streaming.commit_events.decoder import TableChanged
from streaming.kafka import commit_topic
from streaming.kafka.commit_topic import ForeignTopicError, RecordKind, TopicSample, sample_topic
from streaming.service.service import Service
from tests.integration.service_process import Site, firnline, log_lines, site
from tests.unit.streaming.test_pages import post, serving, takes_events

pytestmark = pytest.mark.kafka

CONNECT = Path(__file__).parents[1] / "contracts" / "fixtures" / "kafka_connect"
SINK_EVENTS = tuple(
    (CONNECT / f"{name}.bin").read_bytes()
    for name in ("start_commit", "data_written_unpartitioned", "data_complete", "commit_to_table", "commit_complete")
)
BAD_INPUT = 2


@pytest.fixture
def place(tmp_path: Path, broker: str) -> Iterator[Site]:
    with site(tmp_path / "site", broker, service={"sweep_seconds": 3600}) as made:
        yield made


@pytest.fixture
def admin(broker: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker)
    yield client
    client.close()


def create(admin: KafkaAdminClient, topic: str, partitions: int = 1) -> None:
    admin.create_topics([NewTopic(topic, num_partitions=partitions)], wait_for_metadata=True)


def send_as_a_sink(broker: str, topic: str, *, commit: bool = True, partition: int = 0) -> None:
    """One round of commit coordination, in a transaction."""
    producer = KafkaProducer(bootstrap_servers=broker, transactional_id=f"sink-{uuid.uuid4().hex[:8]}")
    producer.init_transactions()
    producer.begin_transaction()
    for event in SINK_EVENTS:
        producer.send(topic, event, partition=partition)
    producer.flush()
    producer.commit_transaction() if commit else producer.abort_transaction()
    producer.close()


def check(place: Site, name: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = firnline(place.config, "check-config", "--connect", "--output", "json", *arguments)
    (found,) = [each for each in json.loads(done.stdout)["checks"] if each["name"].startswith(name)]
    return done.returncode, found


@pytest.mark.slow
def test_a_sinks_control_topic_is_refused_before_anything_is_written_to_it(
    place: Site, broker: str, admin: KafkaAdminClient
) -> None:
    create(admin, place.topic)
    send_as_a_sink(broker, place.topic)
    code, found = check(place, "commit topic")
    assert (code, found["status"], found["again"]) == (BAD_INPUT, "failed", False)
    assert found["detail"].startswith("it holds control events of a Kafka Connect sink")
    assert found["remedy"].startswith("list this topic in kafka.commit_topics")
    code, found = check(place, "commit topic", "--observe")
    assert (code, found["status"]) == (0, "ok")
    assert "`run` without --observe refuses this topic" in found["detail"]
    done = firnline(place.config, "run", FIRNLINE_HTTP__PORT="0", FIRNLINE_HTTP__HOST="127.0.0.1")
    assert done.returncode == BAD_INPUT
    last = [line for line in log_lines(done.stderr) if line["message"] == "ended"]
    assert [line["reason"] for line in last] == ["foreign_topic"]
    assert "list this topic in kafka.commit_topics, and give kafka.commit_topic" in last[0]["error"]
    place.create("t")
    done = firnline(place.config, "request", "db.t")
    assert (done.returncode, "control events of a Kafka Connect sink" in done.stderr) == (BAD_INPUT, True)
    assert [record.value for record in place.records(place.topic)] == list(SINK_EVENTS)


@pytest.mark.slow
@pytest.mark.parametrize("observe", [False, True])
def test_no_event_by_http_reaches_a_sinks_control_topic(
    tmp_path: Path, broker: str, admin: KafkaAdminClient, place: Site, observe: bool
) -> None:
    """The HTTP pages start before the topic is checked, and stay up beside it in observe mode."""
    create(admin, place.topic)
    send_as_a_sink(broker, place.topic)
    event = canonical.encode(TableChanged("test", "e-1", "lake", ("db",), "t", 5))[1]
    kafka = {"bootstrap_servers": broker, "commit_topic": place.topic, "dead_letter_topic": f"{place.topic}-dead"}
    with serving(Service(takes_events(tmp_path, kafka=kafka), observe=observe)) as service:
        with nullcontext() if observe else pytest.raises(ForeignTopicError):
            service._check_surroundings()
        assert post(service, body=event)[0] == (403 if observe else 503)
    assert [record.value for record in place.records(place.topic)] == list(SINK_EVENTS)


def test_events_by_http_are_taken_once_the_topic_was_checked(
    tmp_path: Path, broker: str, admin: KafkaAdminClient, place: Site
) -> None:
    create(admin, place.topic)
    event = canonical.encode(TableChanged("test", "e-1", "lake", ("db",), "t", 5))[1]
    kafka = {"bootstrap_servers": broker, "commit_topic": place.topic, "dead_letter_topic": f"{place.topic}-dead"}
    with serving(Service(takes_events(tmp_path, kafka=kafka))) as service:
        assert post(service, body=event)[0] == 503
        service._check_surroundings()
        assert post(service, body=event)[0] == 202
    assert [record.value for record in place.records(place.topic)] == [event]


def test_a_sample_holds_the_end_of_every_partition_and_committed_records_alone(
    broker: str, admin: KafkaAdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"sampled-{uuid.uuid4().hex[:8]}"
    own = b'{"event-id": "1", "identifier": {"namespace": ["db"], "name": "t"}}'
    kafka = KafkaSettings(bootstrap_servers=broker)
    assert sample_topic(kafka, topic) == TopicSample()
    assert topic not in admin.list_topics()
    create(admin, topic, 4)
    assert sample_topic(kafka, topic).text == "it is empty"
    send_as_a_sink(broker, topic, commit=False, partition=3)
    assert sample_topic(kafka, topic) == TopicSample(len(SINK_EVENTS) + 1)  # and the marker
    producer = KafkaProducer(bootstrap_servers=broker)
    for partition, first, middle, last in ((0, b"x", own, own), (1, own, b"x", own), (2, own, own, b"x")):
        for value in (*[first] * 10, *[middle] * 1000, *[last] * 10):
            producer.send(topic, value, partition=partition)
    producer.flush()
    unusable, event = RecordKind.UNUSABLE, RecordKind.EVENT
    sample = sample_topic(kafka, topic)
    assert sample.offsets == 3 * 1020 + len(SINK_EVENTS) + 1
    assert (sample.kinds.count(unusable), sample.kinds.count(event)) == (10, 20)
    assert sample.refusal is None
    send_as_a_sink(broker, topic, partition=1)
    assert sample_topic(kafka, topic).kinds.count(RecordKind.SINK_CONTROL) == len(SINK_EVENTS)
    monkeypatch.setattr(commit_topic, "SAMPLE_SECONDS", 0.0)
    with pytest.raises(RetryError, match="none arrived within"):
        sample_topic(kafka, topic)
    producer.close()
