"""All records of Kafka topics."""

from __future__ import annotations

from typing import Any

from kafka import KafkaConsumer, TopicPartition


def records(*topics: str, **client: Any) -> list[Any]:
    """What is on the topics (on all, if none is named), each partition in order. `client`: arguments of a consumer."""
    consumer = KafkaConsumer(enable_auto_commit=False, group_id=None, **client)
    try:
        places = [
            TopicPartition(topic, number)
            for topic in topics or consumer.topics()
            for number in consumer.partitions_for_topic(topic) or ()
        ]
        if not places:
            return []  # nobody has made them
        consumer.assign(places)
        consumer.seek_to_beginning()
        ends, found = consumer.end_offsets(places), list[Any]()
        while any(consumer.position(place) < end for place, end in ends.items()):
            found += [record for batch in consumer.poll(timeout_ms=500).values() for record in batch]
        return found
    finally:
        consumer.close()
