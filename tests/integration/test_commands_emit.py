"""`firnline emit` as a user runs it, on a real broker. Its catalog does not exist: no table is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from kafka.admin import KafkaAdminClient, NewTopic

from deploy.demo.local_process import free_port
from streaming.commit_events.canonical import DECODER
from streaming.commit_events.decoder import RawEvent, TableChanged, decode
from tests.integration.service_process import document, firnline
from tests.integration.test_foreign_topics import send_as_a_sink
from tests.services.kafka_topics import records
from tests.services.reporter import new_topic

pytestmark = pytest.mark.kafka

BAD_INPUT, FAILED_SAFELY = 2, 3


@pytest.fixture
def topic(broker: str) -> str:
    name = new_topic()
    admin = KafkaAdminClient(bootstrap_servers=broker)
    admin.create_topics([NewTopic(name)], wait_for_metadata=True)
    admin.close()
    return name


def settings(folder: Path, broker: str, topic: str) -> Path:
    kafka = {"bootstrap_servers": broker, "commit_topic": topic}
    nowhere = {"type": "rest", "uri": f"http://127.0.0.1:{free_port()}"}
    file = folder / "firnline.yaml"
    file.write_text(yaml.safe_dump({"catalogs": {"lake": nowhere}, "kafka": kafka}))
    return file


def events(broker: str, topic: str) -> list[TableChanged]:
    found = []
    for record in records(topic, bootstrap_servers=broker):
        decoded = decode(RawEvent(record.key, record.value, (), record.timestamp), (DECODER,))
        assert isinstance(decoded, TableChanged), decoded
        found.append(decoded)
    return found


def test_an_event_arrives_that_names_table_and_snapshot(tmp_path: Path, broker: str, topic: str) -> None:
    file = settings(tmp_path, broker, topic)
    done = firnline(file, "emit", "db.events")
    assert (done.returncode, done.stdout) == (0, f"announced: lake.db.events, on topic {topic}\n"), done.stderr
    printed = document(firnline(file, "emit", "lake.deep.er.events", "--snapshot-id", "77", "--output", "json"))
    first, second = events(broker, topic)
    assert (first.catalog, first.namespace, first.name, first.snapshot_id) == ("lake", ("db",), "events", None)
    assert (second.namespace, second.name, second.snapshot_id) == (("deep", "er"), "events", 77)
    assert (first.request, second.request) == (None, None)
    assert (printed["table"], printed["snapshot_id"], printed["event_id"]) == (
        "lake.deep.er.events", 77, second.event_id,
    )  # fmt: skip
    assert {record.key for record in records(topic, bootstrap_servers=broker)} == {
        b"lake.db.events",
        b"lake.deep.er.events",
    }
    assert json.loads(records(topic, bootstrap_servers=broker)[0].value)["source"] == "firnline-emit"


def test_a_sinks_control_topic_is_not_written_to(tmp_path: Path, broker: str, topic: str) -> None:
    send_as_a_sink(broker, topic)
    before = len(records(topic, bootstrap_servers=broker))
    done = firnline(settings(tmp_path, broker, topic), "emit", "db.events")
    assert (done.returncode, "control events of a Kafka Connect sink" in done.stderr) == (BAD_INPUT, True)
    assert len(records(topic, bootstrap_servers=broker)) == before
