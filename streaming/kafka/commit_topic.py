"""Decide from a sample of its records whether firnline may write to the commit topic.

A Kafka Connect sink fails on a foreign record in its control topic; readers of other systems can fail too. Refuse a
topic with one control event of a sink, or with two or more records, none in a known format. A single unusable
record is no reason to refuse; it becomes a dead letter.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from compactor.errors import InputError
from compactor.reasons import Reason
from streaming.commit_events.decoder import BadEvent, BadEventReason, RawEvent, decode
from streaming.commit_events.formats import DECODERS
from streaming.commit_events.kafka_connect import KafkaConnectDecoder

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
            f"list this topic in kafka.control_topics, and {OWN_TOPIC}",
        )
    if len(kinds) >= FEWEST_UNUSABLE and set(kinds) == {RecordKind.UNUSABLE}:
        return Refusal(
            f"holds records of another system: none of the {len(kinds)} that were read is a commit event", OWN_TOPIC
        )
    return None
