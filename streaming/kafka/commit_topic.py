"""Whether firnline may write to the commit topic: decided from a sample of the topic's records.

A Kafka Connect sink fails on a record of its control topic that is not its own, and other systems' readers may fail
likewise. The rule: one control event of a sink refuses the topic; so do two or more records of which none is an event
in any known format. A single unusable record refuses nothing: it goes to the dead-letter topic.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from compactor.errors import InputError
from compactor.reasons import Reason
from streaming.commit_events.decoder import BadEvent, RawEvent, decode
from streaming.commit_events.formats import DECODERS
from streaming.commit_events.kafka_connect import KafkaConnectDecoder

FEWEST_UNUSABLE = 2
OWN_TOPIC = "give kafka.commit_topic a topic of its own"
CONNECT = KafkaConnectDecoder()
DAMAGED = frozenset({"invalid_avro", "invalid_json"})  # other bad events are a sink's too, though of no use here


class RecordKind(Enum):
    """What a record says of the system that owns its topic."""

    EVENT = "event"
    SINK_CONTROL = "control event of a Kafka Connect sink"
    UNUSABLE = "unusable"


@dataclass(frozen=True)
class Refusal:
    """Why firnline must not write to a topic, and what to do."""

    why: str
    remedy: str


class ForeignTopicError(InputError):
    """The commit topic belongs to another system."""

    def __init__(self, topic: str, refusal: Refusal) -> None:
        super().__init__(
            f"kafka.commit_topic: topic {topic} {refusal.why}; {refusal.remedy}", reason=Reason.FOREIGN_TOPIC
        )
        self.refusal = refusal


def kind_of(record: RawEvent) -> RecordKind:
    """The kind of one record, of any bytes."""
    # Not through `decode`, which refuses large records: a sink lists all its data files in one.
    if CONNECT.recognises(record):
        decoded = CONNECT.decode(record)
        damaged = isinstance(decoded, BadEvent) and decoded.reason in DAMAGED
        return RecordKind.UNUSABLE if damaged else RecordKind.SINK_CONTROL
    return RecordKind.UNUSABLE if isinstance(decode(record, DECODERS), BadEvent) else RecordKind.EVENT


def refusal(kinds: Collection[RecordKind]) -> Refusal | None:
    """Why a topic with such records must not be the commit topic; None if it may be."""
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
