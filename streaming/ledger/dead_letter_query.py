"""The query of dead letters: each unusable event, and each event of an unknown table, is written to their topic.

It reads the topics with a checkpoint of its own, so that a topic that refuses letters does not stop the ledger. A batch
takes two passes. The first counts bad events and collects the names of tables; the driver finds out which of them are
missing. The second, only if there is something to write, writes the letters from executors. A crash between the
writing and the end of a batch repeats its letters.

The value of a letter never leaves the JVM in the second pass: its Python worker returns headers only. With large values
in both directions of their connection, Linux 6.18 was seen to stop both for minutes (each side's buffers full, and
acknowledgements dropped with the segments that carry them).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.streaming.query import StreamingQuery

from compactor.events import DeadLettered, Listener
from compactor.settings.kafka import KafkaSettings
from compactor.settings.tree import Settings
from compactor.shards import Shard
from compactor.spark.python_worker import reduce_task_overhead
from compactor.table_names import TableName
from streaming.commit_events.decoder import BadEvent, BadEventReason
from streaming.kafka.clients import LATEST, sink_options
from streaming.ledger.batch_rows import rows_of
from streaming.ledger.dead_letters import MAX_KEY_BYTES, MAX_VALUE_BYTES, letter_headers
from streaming.ledger.event_sources import EventSources
from streaming.ledger.further_tables import MOST_FURTHER, Groups
from streaming.ledger.records import Named, Record, named, read_records, record_of, records

LOG = logging.getLogger("firnline")
DEAD_LETTERS_QUERY = "dead-letters"
TRIGGER_SECONDS = 10.0  # a batch costs 0.3 s of processor time, and a dead letter is not urgent
BATCHES = 10  # times as many events as a batch of commit events, because batches are so much rarer
FOLDER = "dead-letters-v1"

FOUND_SCHEMA = (
    "reason string, tables array<struct<catalog: string, namespace: array<string>, name: string>>, events long, "
    "left_out long"
)
TABLE_TYPE = pa.struct([("catalog", pa.string()), ("namespace", pa.list_(pa.string())), ("name", pa.string())])
FOUND_TYPES = pa.schema(
    [("reason", pa.string()), ("tables", pa.list_(TABLE_TYPE)), ("events", pa.int64()), ("left_out", pa.int64())]
)
RECORD_COLUMNS = ("key", "value", "bytes", "headers", "timestamp_ms", "topic", "partition", "offset")
HEADERS_TYPE = "array<struct<key: string, value: binary>>"

Missing = Callable[[Collection[TableName]], frozenset[TableName]]
Tables = tuple[TableName, ...]
"""Tables that one event names."""


@dataclass(frozen=True)
class LetterDecoder:
    """Decodes records in a Python worker. `shard`: whose letters this service writes."""

    sources: EventSources
    shard: Shard
    missing: frozenset[TableName] = frozenset()

    def found(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """First pass: numbers of bad events by reason, and of events by the tables that they name.

        The tables are within the bounds of further_tables.py; a last row tells how many were left out.
        """
        reduce_task_overhead()
        bad: Counter[str] = Counter()
        groups = Groups()
        for record in _each(batches):
            result = self._judged(record)
            if isinstance(result, BadEvent):
                bad[result.reason.value] += 1
            elif result:
                groups.add(result)
        rows: list[dict[str, Any]] = [{"reason": reason, "events": events} for reason, events in bad.items()]
        rows += [{"tables": [*map(_struct, names)], "events": events} for names, events in groups.events.items()]
        rows += [{"left_out": groups.left_out}] if groups.left_out else []
        if rows:
            yield pa.RecordBatch.from_pylist(rows, FOUND_TYPES)

    def headers(self, *columns: Sequence[Any]) -> list[list[dict[str, Any]] | None]:
        """Second pass: the headers of a dead letter for each bad event and each event of a missing table, else None.

        `columns`: of records, those of `RECORD_COLUMNS` in their order.
        """
        reduce_task_overhead()
        rows = (dict(zip(RECORD_COLUMNS, row, strict=True)) for row in zip(*columns, strict=True))
        return [self._headers(record_of(row)) for row in rows]

    def _headers(self, record: Record) -> list[dict[str, Any]] | None:
        bad = self._judged(record)
        if not isinstance(bad, BadEvent):
            unknown = next((each for each in bad if each in self.missing), None)
            if unknown is None:
                return None
            known = ", ".join(self.sources.catalogs)
            detail = (
                f"table {unknown} does not exist, or this service may not load it (catalogs configured: {known}); "
                "correct the name, allow this service to load the table, or exclude it (tables.exclude)"
            )
            bad = BadEvent(BadEventReason.UNKNOWN_TABLE, detail)
        headers = letter_headers(
            record.event, bad, topic=record.topic, partition=record.partition, offset=record.offset
        )
        return [{"key": name, "value": value} for name, value in headers]

    def _judged(self, record: Record) -> Tables | BadEvent:
        """Why the record is bad, or the tables that must exist. An event of another service's is neither.

        An event of several tables is the service's that owns the first one: it is one letter.
        """
        parts = named(record, self.sources)
        bad = next((each for each in parts if isinstance(each, BadEvent)), None)
        if bad is not None:
            return bad if self.shard.owns_record(record.topic, record.partition, record.offset) else ()
        tables = tuple(each.table for each in parts if isinstance(each, Named))
        return tables if tables and self.shard.owns(tables[0]) else ()


def _each(batches: Iterator[pa.RecordBatch]) -> Iterator[Record]:
    for batch in batches:
        yield from read_records(batch)


@dataclass(frozen=True)
class LetterWriter:
    """The callable for `foreachBatch`. `write`: False in observe mode, which only counts."""

    kafka: KafkaSettings
    catalogs: tuple[str, ...]
    write: bool
    shard: Callable[[], Shard]
    missing: Missing
    listener: Listener

    def __call__(self, frame: DataFrame, _batch_id: int) -> None:
        """Handle one batch.

        Raises:
            BatchUnreadableError: Spark cannot read it.
            FirnlineError: a catalog does not answer; the batch must be tried again.
        """
        decoder = LetterDecoder(EventSources.of(self.kafka, self.catalogs), self.shard().lasting)
        bad, tables = found(rows_of(frame.mapInArrow(decoder.found, FOUND_SCHEMA)))
        names = frozenset(chain.from_iterable(tables))
        missing = self.missing(names) & names if names else names
        unknown = sum(events for group, events in tables.items() if not missing.isdisjoint(group))
        if unknown:
            bad[BadEventReason.UNKNOWN_TABLE.value] += unknown
        if not bad:
            return
        if self.write:
            letters = letters_of(frame, replace(decoder, missing=missing))
            letters.write.format("kafka").options(**sink_options(self.kafka)).save()
        for reason, count in bad.items():
            self.listener(DeadLettered(reason=reason, count=count))


def letters_of(frame: DataFrame, decoder: LetterDecoder) -> DataFrame:
    """Key, value and headers of the dead letters among the records. The key of one without is its place."""

    def headers(*columns: pd.Series) -> pd.Series:
        return pd.Series(decoder.headers(*columns), dtype=object)

    of_letter = F.pandas_udf(headers, HEADERS_TYPE)
    place = F.concat_ws("-", "topic", F.col("partition").cast("string"), F.col("offset").cast("string"))
    return frame.select(
        # A compacted topic refuses a record without a key, and the query would end with it again and again.
        F.coalesce(F.substring("key", 1, MAX_KEY_BYTES), place.cast("binary")).alias("key"),
        F.substring("value", 1, MAX_VALUE_BYTES).alias("value"),
        of_letter(*RECORD_COLUMNS).alias("headers"),
    ).where(F.col("headers").isNotNull())


def found(rows: Collection[Any]) -> tuple[Counter[str], Counter[Tables]]:
    """Bad events by reason and events by the tables that they name, from the rows of the first pass.

    Logs how many tables were left out.
    """
    bad: Counter[str] = Counter()
    tables: Counter[Tables] = Counter()
    for row in rows:
        if row["left_out"] is not None:
            LOG.warning(
                "events name too many tables in one batch of dead letters: besides the first of each event and %d "
                "others, %d times a table was not checked; its event is no dead letter if the table does not exist",
                MOST_FURTHER, row["left_out"],
            )  # fmt: skip
        elif row["reason"] is not None:
            bad[row["reason"]] += row["events"]
        else:
            names = ((each["catalog"], tuple(each["namespace"]), each["name"]) for each in row["tables"])
            tables[tuple(TableName(*each) for each in names)] += row["events"]
    return bad, tables


def _struct(table: TableName) -> dict[str, Any]:
    return {"catalog": table.catalog, "namespace": table.namespace, "name": table.name}


def start_dead_letters(
    session: SparkSession,
    settings: Settings,
    catalogs: tuple[str, ...],
    checkpoint: str,
    *,
    write: bool,
    shard: Callable[[], Shard],
    missing: Missing,
    listener: Listener,
    starting: str = LATEST,
) -> StreamingQuery:
    """Start the query; it resumes from the checkpoint, else at `starting`, by default the end of the topics.

    `missing` returns which of the given tables do not exist. If it raises, the query ends; started again, it tries the
    same events again. `listener` gets the counts of each finished batch.
    """
    writer = LetterWriter(settings.kafka, catalogs, write, shard, missing, listener)
    most_events = BATCHES * settings.kafka.max_events_per_batch
    return (
        records(session, settings.kafka, most_events, starting)
        .writeStream.queryName(DEAD_LETTERS_QUERY)
        .foreachBatch(writer)
        .trigger(processingTime=f"{TRIGGER_SECONDS} seconds")
        .option("checkpointLocation", f"{checkpoint}/{FOLDER}")
        .start()
    )
