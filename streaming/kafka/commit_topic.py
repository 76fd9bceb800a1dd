"""Decide from a sample of its records, read without a consumer group, whether firnline may write to the commit topic.

A Kafka Connect sink fails on a foreign record in its control topic; readers of other systems can fail too. Refuse a
topic with one control event of a sink, or with two or more records, none in a known format. A single unusable
record is no reason to refuse; it becomes a dead letter.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kafka import TopicPartition
from kafka.errors import TopicAuthorizationFailedError

from compactor.errors import FirnlineError, InputError, RetryError
from compactor.reasons import Reason
from compactor.settings.kafka import KafkaSettings
from streaming.commit_events.decoder import TIMESTAMP_MS_MAX, BadEvent, BadEventReason, RawEvent, decode
from streaming.commit_events.formats import DECODERS
from streaming.commit_events.kafka_connect import KafkaConnectDecoder
from streaming.kafka.clients import consumer_client, no_broker

LOG = logging.getLogger("firnline")
SAMPLE_SECONDS = 10.0
END_RECORDS = 10  # of each partition: the last ones
TAIL_OFFSETS = 200  # offsets of a transactional topic include markers and aborted records, which are not returned
POLL_MS = 500
READ_COMMITTED = {
    "group_id": None,
    "enable_auto_commit": False,
    "isolation_level": "read_committed",
    "allow_auto_create_topics": False,
    "fetch_max_wait_ms": 10,  # at the end of a partition; the client sends no other fetch during that time
    "retry_backoff_ms": 20,  # the client also sleeps that long, twice for each consumer, until it knows the leader
}

FEWEST_UNUSABLE = 2
OWN_TOPIC = "give kafka.commit_topic a topic of its own"
CONNECT = KafkaConnectDecoder()
# A control record that is bad for another reason is still a sink's.
DAMAGED = frozenset({BadEventReason.INVALID_AVRO, BadEventReason.INVALID_JSON})


class RecordKind(Enum):
    """What a record says about the system that owns the topic."""

    EVENT = "event"
    SINK_CONTROL = "control event of a Kafka Connect sink"
    UNUSABLE = "unusable"


@dataclass(frozen=True)
class Refusal:
    why: str
    remedy: str


class ForeignTopicError(InputError):
    def __init__(self, topic: str, refusal: Refusal) -> None:
        super().__init__(
            f"kafka.commit_topic: topic {topic} {refusal.why}; {refusal.remedy}", reason=Reason.FOREIGN_TOPIC
        )
        self.refusal = refusal


def kind_of(record: RawEvent) -> RecordKind:
    """The kind of one record. Accepts any bytes."""
    # Do not use `decode`, which refuses large records: a sink lists all its data files in one record.
    if CONNECT.recognises(record):
        decoded = CONNECT.decode(record)
        damaged = isinstance(decoded, BadEvent) and decoded.reason in DAMAGED
        return RecordKind.UNUSABLE if damaged else RecordKind.SINK_CONTROL
    return RecordKind.UNUSABLE if isinstance(decode(record, DECODERS), BadEvent) else RecordKind.EVENT


def refusal(kinds: Collection[RecordKind]) -> Refusal | None:
    """Why a topic with these records must not be the commit topic, or None."""
    if RecordKind.SINK_CONTROL in kinds:
        return Refusal(
            "holds control events of a Kafka Connect sink, which fails on every record that is not its own",
            f"list this topic in kafka.commit_topics, and {OWN_TOPIC}",
        )
    if len(kinds) >= FEWEST_UNUSABLE and set(kinds) == {RecordKind.UNUSABLE}:
        return Refusal(
            f"holds records of another system: none of the {len(kinds)} that were read is a commit event", OWN_TOPIC
        )
    return None


@dataclass(frozen=True)
class TopicSample:
    """Kinds of the records that were read. `offsets`: number of retained offsets."""

    offsets: int = 0
    kinds: tuple[RecordKind, ...] = ()

    @property
    def text(self) -> str:
        """Description for display."""
        if not self.offsets:
            return "it is empty"
        return f"read {len(self.kinds):,} of {self.offsets:,} records"

    @property
    def refusal(self) -> Refusal | None:
        """Why the topic must not be the commit topic, or None."""
        return refusal(self.kinds)


def sample_topic(kafka: KafkaSettings, topic: str) -> TopicSample:
    """Read a few records as the service does. A topic that does not exist counts as empty and is not created.

    Raises:
        InputError: this principal may not read the topic.
        RetryError: no broker answers, or no record of a non-empty topic arrived in time.
    """
    try:
        return _sample(kafka, topic)
    except TopicAuthorizationFailedError as error:
        raise InputError(
            f"topic {topic}: the broker does not allow this principal to READ it", reason=Reason.NOT_ALLOWED
        ) from error
    except FirnlineError:
        raise
    except Exception as error:  # the client raises a KeyError for a partition without a leader
        raise RetryError(
            f"topic {topic} cannot be read now ({type(error).__name__}: {error}): each of its partitions needs a "
            "leader; check the brokers",
            reason=Reason.KAFKA_UNAVAILABLE,
        ) from error


def check_commit_topic(kafka: KafkaSettings, *, observe: bool = False) -> None:
    """Refuse a commit topic that belongs to another system. Observe mode does not write to it, and only logs.

    Raises:
        ForeignTopicError: the topic's records are of another system.
        InputError, RetryError: as `sample_topic`.
    """
    found = sample_topic(kafka, kafka.commit_topic).refusal
    if found is None:
        return
    error = ForeignTopicError(kafka.commit_topic, found)
    if not observe:
        raise error
    LOG.warning("`run` without --observe refuses this topic: %s", error)


def _sample(kafka: KafkaSettings, topic: str) -> TopicSample:
    """The last records of each partition."""
    try:
        client = consumer_client(kafka, **READ_COMMITTED)
    except Exception as error:
        raise no_broker(kafka, error) from error
    with closing(client) as consumer:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        held = {partition: end for partition, end in ends.items() if end > starts[partition]}
        offsets = sum(end - starts[partition] for partition, end in held.items())
        found = {partition: deque[Any](maxlen=END_RECORDS) for partition in held}
        waiting, deadline = set(held), time.monotonic() + SAMPLE_SECONDS
        consumer.assign(list(held))
        for partition, end in held.items():
            consumer.seek(partition, max(starts[partition], end - TAIL_OFFSETS))
        while waiting and time.monotonic() < deadline:
            for partition, batch in consumer.poll(timeout_ms=POLL_MS).items():
                found[partition].extend(batch)
            waiting = {partition for partition in waiting if consumer.position(partition) < held[partition]}
    records = [record for each in found.values() for record in each]
    if waiting and not records:
        raise RetryError(f"topic {topic} has {offsets:,} records, but none arrived within {SAMPLE_SECONDS:.0f} s")
    return TopicSample(offsets, tuple(kind_of(_raw_event(record)) for record in records))


def _raw_event(record: Any) -> RawEvent:
    headers = tuple((name, value or b"") for name, value in record.headers)
    return RawEvent(
        key=record.key,
        value=record.value,
        headers=headers,
        timestamp_ms=min(max(0, record.timestamp), TIMESTAMP_MS_MAX),
    )
