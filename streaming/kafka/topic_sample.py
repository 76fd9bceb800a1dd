"""Sample a topic: the first and last retained records of every partition, read without a consumer group."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from kafka import TopicPartition
from kafka.errors import TopicAuthorizationFailedError

from compactor.errors import FirnlineError, InputError, RetryError
from compactor.reasons import Reason
from compactor.settings.kafka import KafkaSettings
from streaming.commit_events.decoder import TIMESTAMP_MS_MAX, RawEvent
from streaming.kafka.clients import consumer_client, no_broker
from streaming.kafka.commit_topic import ForeignTopicError, RecordKind, Refusal, kind_of, refusal

LOG = logging.getLogger("firnline")
SAMPLE_SECONDS = 10.0
END_RECORDS = 10  # from each end of a partition
TAIL_OFFSETS = 200  # offsets of a transactional topic include markers and aborted records, which are not returned
POLL_MS = 500


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


@contextmanager
def _consumer(kafka: KafkaSettings) -> Iterator[Any]:
    own = {
        "group_id": None,
        "enable_auto_commit": False,
        "isolation_level": "read_committed",
        "allow_auto_create_topics": False,
        "fetch_max_wait_ms": 10,  # at the end of a partition; the client sends no other fetch during that time
        "retry_backoff_ms": 20,  # the client also sleeps that long, twice for each consumer, until it knows the leader
    }
    try:
        client = consumer_client(kafka, **own)
    except Exception as error:
        raise no_broker(kafka, error) from error
    with closing(client):
        yield client


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
    with _consumer(kafka) as consumer:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        held = {partition: end for partition, end in ends.items() if end > starts[partition]}
        if not held:
            return TopicSample()
        offsets = sum(end - starts[partition] for partition, end in held.items())
        tails = {partition: max(starts[partition], end - TAIL_OFFSETS) for partition, end in held.items()}
        deadline = time.monotonic() + SAMPLE_SECONDS
        kinds: dict[tuple[TopicPartition, int], RecordKind] = {}
        for begin, first in ((starts, True), (tails, False)):
            if not _read(consumer, begin, held, deadline, kinds, first=first) and not kinds:
                seconds = f"{SAMPLE_SECONDS:.0f} s"
                raise RetryError(f"topic {topic} has {offsets:,} records, but none arrived within {seconds}")
    return TopicSample(offsets, tuple(kinds.values()))


def _read(
    consumer: Any,
    begin: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    deadline: float,
    kinds: dict[tuple[TopicPartition, int], RecordKind],
    *,
    first: bool,
) -> bool:
    """Add the kinds of the `first`, else the last records between offsets; return False after the deadline."""
    consumer.assign(list(ends))
    for partition in ends:
        consumer.seek(partition, begin[partition])
    waiting = set(ends)
    found: dict[TopicPartition, deque[Any]] = {
        partition: deque(maxlen=None if first else END_RECORDS) for partition in ends
    }
    while waiting and time.monotonic() < deadline:
        for partition, batch in consumer.poll(timeout_ms=POLL_MS).items():
            found[partition].extend(batch)
        for partition in tuple(waiting):
            enough = first and len(found[partition]) >= END_RECORDS
            if enough or consumer.position(partition) >= ends[partition]:
                waiting.discard(partition)
        if waiting:
            consumer.assign(list(waiting))  # not `pause`: the client does not resume a partition after a seek
    for partition, records in found.items():
        for record in islice(records, END_RECORDS):
            kinds[partition, record.offset] = kind_of(_raw_event(record))
    return not waiting


def _raw_event(record: Any) -> RawEvent:
    headers = tuple((name, value or b"") for name, value in record.headers)
    return RawEvent(
        key=record.key,
        value=record.value,
        headers=headers,
        timestamp_ms=min(max(0, record.timestamp), TIMESTAMP_MS_MAX),
    )
