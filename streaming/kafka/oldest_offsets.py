"""The oldest offsets that topics still have: what retention has removed before it was read."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from kafka import TopicPartition

from compactor.settings.kafka import KafkaSettings
from streaming.kafka.clients import consumer_client, no_broker


def oldest_offsets(kafka: KafkaSettings, wanted: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """The oldest offset of each of these topics' partitions.

    Raises:
        RetryError: no broker answers.
    """
    places = [TopicPartition(topic, int(number)) for topic, numbers in wanted.items() for number in numbers]
    found: dict[str, dict[str, int]] = {}
    try:
        with closing(consumer_client(kafka, enable_auto_commit=False)) as client:
            for place, offset in client.beginning_offsets(places).items():
                found.setdefault(place.topic, {})[str(place.partition)] = offset
    except Exception as error:
        raise no_broker(kafka, error) from error
    return found
