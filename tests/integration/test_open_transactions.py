"""Transactions of other producers that stay open, on a real broker: what waits behind them is seen and said."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaProducer
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from compactor.settings.kafka import KafkaSettings
from streaming.kafka.clients import ensure_topics
from streaming.kafka.topic_watch import TopicWatch
from tests.integration.service_process import firnline, wait_for

pytestmark = pytest.mark.kafka


@pytest.fixture
def kafka(broker: str) -> KafkaSettings:
    made = KafkaSettings(bootstrap_servers=broker, commit_topic=f"open-{uuid.uuid4().hex[:8]}")
    ensure_topics(made, create=True)
    return made


@pytest.fixture
def transaction(kafka: KafkaSettings) -> Iterator[KafkaProducer]:
    """A producer whose transaction has one record on the commit topic and is not ended."""
    servers = kafka.bootstrap_servers
    own = {"transactional_id": uuid.uuid4().hex, "transaction_timeout_ms": 600_000}  # longer than any test
    with closing(KafkaProducer(bootstrap_servers=servers, **own)) as made:
        made.init_transactions()
        made.begin_transaction()
        made.send(kafka.commit_topic, b"in the transaction", partition=0)
        made.flush()
        yield made


def send(kafka: KafkaSettings) -> None:
    with closing(KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)) as producer:
        producer.send(kafka.commit_topic, b"behind it", partition=0).get(30)


def looked(watch: TopicWatch, waiting: list[int]) -> int:
    watch.look()
    return waiting[-1]


def test_events_that_wait_behind_a_transaction_are_counted_until_it_ends(
    kafka: KafkaSettings, transaction: KafkaProducer, caplog: pytest.LogCaptureFixture
) -> None:
    send(kafka)
    waiting: list[int] = []
    watch = TopicWatch(kafka, lambda _topics: None, waiting.append, apart=1)
    with closing(watch):
        watch.look()
        assert waiting == [0]  # they may be read in a moment
        watch.look()
        watch.look()
        assert waiting == [0, 2, 2]
        assert caplog.text.count(f"topic {kafka.commit_topic}, partition 0: events wait behind a transaction") == 1
        transaction.commit_transaction()
        wait_for("no events that wait", lambda: looked(watch, waiting) == 0)  # the broker marks the end a moment later
        send(kafka)
        watch.look()
        assert waiting[-1] == 0
    anew: list[int] = []
    with closing(TopicWatch(kafka, lambda _topics: None, anew.append, apart=1)) as watch:
        transaction.begin_transaction()
        transaction.send(kafka.commit_topic, b"to be aborted", partition=0)
        transaction.flush()
        watch.look()
        watch.look()
        assert anew == [0, 1]
        transaction.abort_transaction()
        wait_for("no events that wait", lambda: looked(watch, anew) == 0)


@pytest.mark.slow
def test_a_request_behind_a_transaction_says_that_it_waits(
    kafka: KafkaSettings, transaction: KafkaProducer, tmp_path: Path
) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    catalog = load_catalog("lake", type="sql", uri=uri, warehouse=f"file://{tmp_path}")
    catalog.create_namespace("db")
    catalog.create_table("db.t", Schema(NestedField(1, "id", LongType())))
    config = tmp_path / "firnline.yaml"
    config.write_text(
        json.dumps(
            {
                "tables": {"include": ["db.*"]},
                "catalogs": {"lake": {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}"}},
                "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "commit_topic": kafka.commit_topic},
            }
        )
    )
    done = firnline(config, "request", "db.t")
    assert done.returncode == 0, done.stderr
    assert f"partition 0 of topic {kafka.commit_topic} another producer has an open transaction" in done.stdout
    transaction.commit_transaction()
    done = firnline(config, "request", "db.t", "--output", "json")
    assert json.loads(done.stdout)["waits_for_transaction"] is False
