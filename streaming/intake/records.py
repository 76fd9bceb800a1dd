"""Kafka records as Spark reads them, with bounded memory, and their decoding in a Python worker.

A micro-batch is one task that streams: the consumer polls few records, Arrow batches are limited in bytes, values are
cut in the JVM. So memory depends neither on the size of a batch nor on the number of Kafka partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from compactor.settings.kafka import KafkaSettings
from compactor.table_names import TableName
from streaming.commit_events.decoder import (
    MAX_EVENT_BYTES,
    TIMESTAMP_MS_MAX,
    BadEvent,
    LocationChanged,
    RawEvent,
    TableChanged,
    bad_of,
    changes_of,
    oversize,
)
from streaming.intake.dead_letters import MAX_KEY_BYTES, is_letter
from streaming.intake.event_sources import EventSources
from streaming.kafka.clients import source_options

ARROW_BATCH_RECORDS = 1024
ARROW_BATCH_BYTES = 4 * 1024 * 1024  # Spark 4.0.1 and later; a batch exceeds it by one record at most


@dataclass(frozen=True)
class Record:
    """One record of a topic. `bytes`: of the value before it was cut."""

    event: RawEvent
    bytes: int
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True)
class Named:
    """A usable event and its table in a configured catalog."""

    event: TableChanged
    table: TableName


def records(session: SparkSession, kafka: KafkaSettings, most_events: int) -> DataFrame:
    """The topics of commit events as a stream of records, at most `most_events` in a batch, in one task.

    A value is cut to one byte more than is decoded, and a key to one byte more than a dead letter keeps.
    """
    source = bounded(session).readStream.format("kafka").options(**source_options(kafka, most_events)).load()
    return source.select(
        F.substring("key", 1, MAX_KEY_BYTES + 1).alias("key"),
        F.substring("value", 1, MAX_EVENT_BYTES + 1).alias("value"),
        F.coalesce(F.octet_length("value"), F.lit(0)).alias("bytes"),
        "headers",
        # Milliseconds as a number: Arrow's timestamps end in 2262, and a producer can write any timestamp.
        F.unix_millis("timestamp").alias("timestamp_ms"),
        "topic",
        "partition",
        "offset",
    ).coalesce(1)


def bounded(session: SparkSession) -> SparkSession:
    """A session of the same Spark application whose Arrow batches are small."""
    own = session.newSession()
    own.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(ARROW_BATCH_RECORDS))
    own.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(ARROW_BATCH_BYTES))
    return own


def read_records(batch: pa.RecordBatch) -> Iterator[Record]:
    """The records of one Arrow batch, one at a time: their values are copied, and can be large."""
    columns = [batch.column(name) for name in batch.schema.names]
    for row in range(batch.num_rows):
        yield record_of(dict(zip(batch.schema.names, (each[row].as_py() for each in columns), strict=True)))


def record_of(fields: Mapping[str, Any]) -> Record:
    """The record with these columns of `records`; those about its place may be missing."""
    headers = fields.get("headers")
    event = RawEvent(
        key=fields.get("key"),
        value=fields["value"],
        headers=() if headers is None else tuple((each["key"], each["value"] or b"") for each in headers),
        timestamp_ms=min(max(0, int(fields["timestamp_ms"])), TIMESTAMP_MS_MAX),
    )
    return Record(
        event,
        int(fields["bytes"] or 0),
        fields.get("topic", ""),
        int(fields.get("partition", 0)),
        int(fields.get("offset", 0)),
    )


def named(record: Record, sources: EventSources) -> tuple[Named | LocationChanged | BadEvent, ...]:
    """What the record's event announces, each part with its table; empty: a valid event that is not about a commit.

    Empty also for a dead letter: two deployments that read each other's letters would write them for ever.
    """
    if is_letter(record.event):
        return ()
    if record.bytes > MAX_EVENT_BYTES:
        return (oversize(record.bytes),)
    decoded = sources.decoded(record.event, record.topic)
    parts = (*(_named(change, sources) for change in changes_of(decoded)), bad_of(decoded))
    return tuple(each for each in parts if each is not None)


def _named(change: TableChanged | LocationChanged, sources: EventSources) -> Named | LocationChanged | BadEvent | None:
    if isinstance(change, LocationChanged):
        return change
    table = sources.table(change)
    return Named(change, table) if isinstance(table, TableName) else table
