"""The two streaming queries: commit events to the ledger, and unusable events to the dead-letter topic.

Both read the same topics with a checkpoint each, so that a failing dead-letter topic does not stop the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.streaming.query import StreamingQuery

from compactor.debt.ledger import STATE_VERSION
from compactor.iceberg.tables import Catalogs
from compactor.settings.tree import KafkaSettings, Settings
from compactor.spark.python_worker import reduce_task_overhead
from streaming.commit_events.decoder import TIMESTAMP_MS_MAX, BadEvent, BadEventReason, RawEvent, TableChanged, decode
from streaming.commit_events.formats import DECODERS
from streaming.kafka.clients import sink_options, source_options
from streaming.ledger.dead_letters import dead_letter
from streaming.ledger.operator import DebtLedger, ledger_settings
from streaming.ledger.rows import SCHEMA, table_key
from streaming.ledger.table_resolution import resolve

CHANGED_SCHEMA = (
    "name string, source string, timestamp_ms long, report boolean, continues boolean, writes boolean, "
    "request string, key binary, value binary, headers string, topic string, partition int, offset long"
)
DEAD_SCHEMA = "reason string, key binary, value binary, headers array<struct<key: string, value: binary>>"
DEAD_LETTERS = "dead_letters"  # name of the counts by reason in the query's progress


@dataclass(frozen=True)
class EventReader:
    """Decodes records on executors. Pickled, with the catalog names that table names are resolved with."""

    catalogs: tuple[str, ...]

    def changed(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Kafka records in, one row per usable event out."""
        return _mapped(frames, self._changed_row, [column.split()[0] for column in CHANGED_SCHEMA.split(", ")])

    def dead(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Kafka records in, one dead letter per unusable event out."""
        return _mapped(frames, self._dead_row, ["reason", "key", "value", "headers"])

    def _changed_row(self, record: Any) -> tuple[Any, ...] | None:
        event = raw_event(record)
        decoded = decode(event, DECODERS)
        if not isinstance(decoded, TableChanged):
            return None
        table = resolve(decoded, self.catalogs)
        if isinstance(table, BadEvent):
            return None
        requests = decoded.report or decoded.continues or decoded.request is not None
        writes = not requests and decoded.operation != "replace"
        headers = json.dumps([[name, value.hex()] for name, value in event.headers])
        return (
            table_key(table), decoded.source, decoded.timestamp_ms, decoded.report, decoded.continues, writes,
            decoded.request, event.key, event.value, headers, record.topic, int(record.partition),
            int(record.offset),
        )  # fmt: skip

    def _dead_row(self, record: Any) -> dict[str, Any] | None:
        event = raw_event(record)
        decoded = decode(event, DECODERS)
        bad = resolve(decoded, self.catalogs) if isinstance(decoded, TableChanged) else decoded
        if not isinstance(bad, BadEvent):
            return None
        place = {"topic": record.topic, "partition": int(record.partition), "offset": int(record.offset)}
        letter = dead_letter(event, bad, **place)
        headers = [{"key": name, "value": value} for name, value in letter.headers]
        return {"reason": bad.reason.value, "key": letter.key, "value": letter.value, "headers": headers}


def _mapped(
    frames: Iterator[pd.DataFrame], row_of: Callable[[Any], Any | None], columns: list[str]
) -> Iterator[pd.DataFrame]:
    reduce_task_overhead()
    for frame in frames:
        rows = [row for row in map(row_of, frame.itertuples(index=False)) if row is not None]
        yield pd.DataFrame(rows, columns=columns)


def raw_event(record: Any) -> RawEvent:
    """The decoders' input, from a row of Spark's Kafka source."""
    headers = record.headers if record.headers is not None else []
    return RawEvent(
        key=_bytes(record.key),
        value=_bytes(record.value),
        headers=tuple((header["key"], bytes(header["value"] or b"")) for header in headers),
        timestamp_ms=min(max(0, int(record.timestamp_ms)), TIMESTAMP_MS_MAX),
    )


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def records(session: SparkSession, kafka: KafkaSettings) -> DataFrame:
    """The topics of commit events as a stream of records."""
    return (
        session.readStream.format("kafka")
        .options(**source_options(kafka))
        .load()
        # Milliseconds as a number: pandas' timestamps end in 2262, and a producer can write any timestamp.
        .select(
            "key", "value", "headers", F.unix_millis("timestamp").alias("timestamp_ms"), "topic", "partition", "offset"
        )
    )


def start_ledger(
    session: SparkSession,
    settings: Settings,
    catalogs: Catalogs,
    checkpoint: str,
    handle: Callable[[DataFrame, int], None],
) -> StreamingQuery:
    """Start the main query: events → ledger → `handle`, which must consume the whole frame with one action."""
    reader = EventReader(catalogs.names)
    operator = DebtLedger(ledger_settings(settings, catalogs))
    rows = (
        records(session, settings.kafka)
        .mapInPandas(reader.changed, CHANGED_SCHEMA)
        .groupBy("name")
        .transformWithStateInPandas(operator, SCHEMA, "Update", "None")
    )
    state_partitions = session.conf.get("spark.sql.shuffle.partitions")
    return (
        rows.writeStream.queryName("ledger")
        .foreachBatch(handle)
        .outputMode("update")
        .trigger(processingTime=f"{settings.service.trigger_seconds} seconds")
        .option("checkpointLocation", f"{checkpoint}/ledger-v{STATE_VERSION}-p{state_partitions}")
        .start()
    )


def start_dead_letters(
    session: SparkSession, settings: Settings, catalogs: Catalogs, checkpoint: str, *, write: bool
) -> StreamingQuery:
    """Start the second query: unusable events → the dead-letter topic. `write`: False in observe mode."""
    reader = EventReader(catalogs.names)
    letters = (
        records(session, settings.kafka)
        .mapInPandas(reader.dead, DEAD_SCHEMA)
        .observe(
            DEAD_LETTERS, *(F.count_if(F.col("reason") == each.value).alias(each.value) for each in BadEventReason)
        )
        .drop("reason")
    )
    writer = (
        letters.writeStream.queryName("dead-letters")
        .outputMode("append")
        .trigger(processingTime=f"{settings.service.trigger_seconds} seconds")
        .option("checkpointLocation", f"{checkpoint}/dead-letters-v1")
    )
    sink = writer.format("kafka").options(**sink_options(settings.kafka)) if write else writer.format("noop")
    return sink.start()
