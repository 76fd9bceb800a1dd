"""The query of commit events: records are decoded in a Python worker; names, flags and reasons reach the driver.

Of a record that cannot be used, the driver gets place and reason, and the JVM copies it to the dead-letter topic: its
bytes are in no Python process twice. A crash before the end of a batch repeats the batch, and its dead letters.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from compactor.errors import FirnlineError
from compactor.events import DeadLettered, Listener
from compactor.settings.kafka import KafkaSettings
from compactor.settings.tree import Settings
from compactor.shards import Shard
from compactor.spark.python_worker import reduce_task_overhead
from compactor.table_names import MAIN, TableName
from streaming.commit_events.decoder import BadEvent, LocationChanged
from streaming.intake.dead_letters import MAX_KEY_BYTES, MAX_VALUE_BYTES, kept_headers, letter_headers
from streaming.intake.event_sources import EventSources
from streaming.intake.heard import AnyHeard, Heard, HeardLocation
from streaming.intake.records import ARROW_BATCH_RECORDS, Named, Record, named, read_records, records
from streaming.kafka.clients import sink_options

LOG = logging.getLogger("firnline")
EVENTS_QUERY = "ledger"
"""Name of the query, and its label in metrics. Dashboards and alerts of users depend on it."""
TRIGGER_SECONDS: Final = 1.0  # an event waits half of it on average; without events it costs 0.7 % of a core
MOST_EVENTS: Final = 2_000  # of a batch: they take 0.3 s of processor time, and an event waits for the batch before it
GIVE_UP_SECONDS: Final = 60.0
"""How long a batch is repeated that fails without a known reason, or whose dead letters cannot be written."""
FOLDER = "events-v3"
PROBE_BYTES: Final = 64 * 1024
MOST_FURTHER: Final = 10_000
"""Tables or metadata files of one batch beyond the first of each event, 2 kB each in the driver: one event can name a
thousand, and a batch has thousands of events."""

HEARD_TYPES = pa.schema(
    [
        ("catalog", pa.string()),
        ("namespace", pa.list_(pa.string())),
        ("name", pa.string()),
        ("source", pa.string()),
        ("timestamp_ms", pa.int64()),
        ("writes", pa.bool_()),
        ("request", pa.string()),
        ("snapshot_id", pa.int64()),
        ("metadata_location", pa.string()),
        ("left_out", pa.int64()),
        ("reason", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("kept", pa.int32()),
        ("letter", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
_PLACE: Final = ("topic", "partition", "offset")
Row = dict[str, Any]
"""A table or metadata file of an event, a record that cannot be used (`reason`), or the number of tables `left_out`."""


@dataclass(frozen=True)
class EventDecoder:
    """Decodes records in a Python worker. `shard`: the service that writes the dead letter of a record."""

    sources: EventSources
    shard: Shard

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Kafka records in; out: a row per table of each usable event, within `MOST_FURTHER`, and per dead letter."""
        reduce_task_overhead()
        every = bounded(self._rows(record) for batch in batches for record in read_records(batch))
        while some := list(islice(every, ARROW_BATCH_RECORDS)):
            yield pa.RecordBatch.from_pylist(some, HEARD_TYPES)

    def _rows(self, record: Record) -> Iterator[Row]:
        parts = named(record, self.sources)
        bad = next((each for each in parts if isinstance(each, BadEvent)), None)
        if bad is not None and self.shard.owns_record(record.topic, record.partition, record.offset):
            yield _letter(record, bad)
        yield from (_row(each) for each in parts if not isinstance(each, BadEvent))


def bounded(events: Iterable[Iterable[Row]]) -> Iterator[Row]:
    """The rows of a batch, by event: all dead letters, the first table of each event and `MOST_FURTHER` others.

    Then, for each source of rows for which there is no more room, a row with `source` and `left_out`, their number.
    """
    room, left_out = MOST_FURTHER, Counter[str]()
    for rows in events:
        is_first = True
        for row in rows:
            if "reason" in row or is_first:
                is_first = is_first and "reason" in row
                yield row
            elif room > 0:
                room -= 1
                yield row
            else:
                left_out[row["source"]] += 1
    yield from ({"source": source, "left_out": number} for source, number in left_out.items())


def _letter(record: Record, bad: BadEvent) -> Row:
    headers = letter_headers(record.event, bad, topic=record.topic, partition=record.partition, offset=record.offset)
    return {
        "reason": bad.reason.value,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "kept": kept_headers(record.event),
        "letter": [{"key": name, "value": value} for name, value in headers],
    }


def _row(found: Named | LocationChanged) -> Row:
    if isinstance(found, LocationChanged):
        return {
            "source": found.source,
            "timestamp_ms": found.timestamp_ms,
            "metadata_location": found.metadata_location,
        }
    event, table = found.event, found.table
    return {
        "catalog": table.catalog,
        "namespace": table.namespace,
        "name": table.name,
        "source": event.source,
        "timestamp_ms": event.timestamp_ms,
        "writes": event.request is None and event.operation != "replace",
        "request": event.request,
        # Looks count the main branch only: they will not find a snapshot of another branch.
        "snapshot_id": event.snapshot_id if event.ref_name in (None, MAIN) else None,
        "metadata_location": None,
    }


def heard_of(row: Any) -> AnyHeard:
    """Inverse of the worker's row of a table or metadata file."""
    if row["metadata_location"] is not None:
        return HeardLocation(row["metadata_location"], row["source"], row["timestamp_ms"])
    return Heard(
        table=TableName(row["catalog"], tuple(row["namespace"]), row["name"]),
        source=row["source"],
        timestamp_ms=row["timestamp_ms"],
        writes=row["writes"],
        request=row["request"],
        snapshot_id=row["snapshot_id"],
    )


@dataclass
class BatchHandler:
    """The callable for `foreachBatch`. `handle`: gets the usable events of each batch, also if there are none.

    `write`: whether dead letters are written; False in observe mode, which only counts them.
    """

    kafka: KafkaSettings
    decoder: EventDecoder
    handle: Callable[[Sequence[AnyHeard]], None]
    listener: Listener
    write: bool
    refused: Exception | None = field(default=None, init=False)
    """Why the last batch could not be taken over: no fault of its events, and they are handled again."""
    _letters_fail: tuple[float, float] = field(default=(-math.inf, -math.inf), init=False)
    """The first and the last failure in a row, by the steady clock; two minutes without one end the row."""

    def __call__(self, frame: DataFrame, _batch_id: int) -> None:
        rows = frame.mapInArrow(self.decoder.rows, from_arrow_schema(HEARD_TYPES)).collect()
        self.refused = None
        try:
            self.handle([heard_of(row) for row in rows if row["reason"] is None and row["left_out"] is None])
        except FirnlineError as error:
            self.refused = error
            raise
        for row in rows:
            if row["left_out"] is not None:
                LOG.warning(
                    "events of %s name too many tables in one batch: besides the first of each event and %d others, "
                    "%d times a table was left out; sweeps find its commits",
                    row["source"], MOST_FURTHER, row["left_out"],
                )  # fmt: skip
        bad = [row for row in rows if row["reason"] is not None]
        if bad and self.write:
            self._write(frame, bad)
        for reason, count in Counter(row["reason"] for row in bad).items():
            self.listener(DeadLettered(reason=reason, count=count))

    def _write(self, frame: DataFrame, bad: Sequence[Any]) -> None:
        """Write the letters. If that fails for a minute, go on without them: commit events must not wait."""
        try:
            letters_of(frame, bad).write.format("kafka").options(**sink_options(self.kafka)).save()
            self._letters_fail = (-math.inf, -math.inf)
        except Exception as error:
            now = time.monotonic()
            first, last = self._letters_fail
            self._letters_fail = (first if now - last < 2 * GIVE_UP_SECONDS else now, now)
            if now - self._letters_fail[0] < GIVE_UP_SECONDS:
                self.refused = error
                raise
            LOG.warning(
                "%d dead letters could not be written to topic %s; the first is of topic %s, partition %d, offset %d: "
                "%.500s",
                len(bad), self.kafka.dead_letter_topic, *(bad[0][name] for name in _PLACE), error,
            )  # fmt: skip


def letters_of(frame: DataFrame, bad: Sequence[Any]) -> DataFrame:
    """Key, value and headers of the dead letters of these records. The key of one without is its place."""
    letters = [(*(row[name] for name in _PLACE), row["kept"], row["letter"]) for row in bad]
    types = from_arrow_schema(pa.schema([HEARD_TYPES.field(name) for name in (*_PLACE, "kept", "letter")]))
    places = frame.sparkSession.createDataFrame(letters, types)
    place = F.concat_ws("-", "topic", F.col("partition").cast("string"), F.col("offset").cast("string"))
    original = F.slice("headers", F.lit(1), F.col("kept"))
    return frame.join(F.broadcast(places), [*_PLACE]).select(
        # A compacted topic refuses a record without a key.
        F.coalesce(F.substring("key", 1, MAX_KEY_BYTES), place.cast("binary")).alias("key"),
        F.substring("value", 1, MAX_VALUE_BYTES).alias("value"),
        F.when(F.col("kept") > 0, F.concat(original, "letter")).otherwise(F.col("letter")).alias("headers"),
    )


@dataclass(frozen=True)
class EventQuery:
    """Starts the query; it resumes from `checkpoint`, else at the end of the topics.

    A batch whose handling was interrupted is handled again after a restart. An exception of the handler ends the query.
    """

    session: SparkSession
    settings: Settings
    checkpoint: str
    handler: BatchHandler

    def start(self) -> StreamingQuery:
        return (
            records(self.session, self.settings.kafka, MOST_EVENTS)
            .writeStream.queryName(EVENTS_QUERY)
            .foreachBatch(self.handler)
            .trigger(processingTime=f"{TRIGGER_SECONDS} seconds")
            .option("checkpointLocation", f"{self.checkpoint}/{FOLDER}")
            .start()
        )

    def delete_checkpoint(self) -> None:
        """Delete the query's part of the checkpoint: the next start is at the end of the topics.

        A probe is written first: on a full volume, the checkpoint is not what is wrong.

        Raises:
            Py4JError: the file system refuses.
        """
        context: Any = self.session.sparkContext
        folder = context._jvm.org.apache.hadoop.fs.Path(f"{self.checkpoint}/{FOLDER}")  # noqa: SLF001
        store = folder.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001
        probe = folder.suffix(".probe")
        stream = store.create(probe, True)
        stream.write(bytearray(PROBE_BYTES))
        stream.close()
        store.delete(probe, False)
        store.delete(folder, True)


def offsets_fixed(query: StreamingQuery) -> bool:
    """Whether the query knows the offset of every partition it starts at: no later event is missed.

    Without a checkpoint, the first batch fixes them, also if it is empty. With one, the first trigger reads them; it
    makes no batch if there are no events.
    """
    return query.lastProgress is not None or str(query.status["message"]).startswith("Waiting for")
