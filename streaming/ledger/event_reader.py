"""The query of commit events: records are decoded in a Python worker; names and flags reach the driver."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from compactor.locations import plain_path
from compactor.settings.tree import Settings
from compactor.spark.python_worker import reduce_task_overhead
from compactor.table_names import MAIN, TableName
from streaming.commit_events.decoder import MAX_EVENT_BYTES, BadEvent, LocationChanged
from streaming.kafka.clients import LATEST
from streaming.ledger.batch_rows import rows_of
from streaming.ledger.event_sources import EventSources
from streaming.ledger.further_tables import MOST_FURTHER, Row, bounded
from streaming.ledger.heard import AnyHeard, Heard, HeardLocation
from streaming.ledger.records import ARROW_BATCH_RECORDS, Named, Record, named, read_records, records

LOG = logging.getLogger("firnline")
EVENTS_QUERY = "ledger"
"""Name of the query, and its label in metrics. Dashboards and alerts of users depend on it."""
FOLDER = "events-v3"
ASIDE = ".aside-"
"""Behind the name of a checkpoint's folder that was set aside, before its number."""
EARLIER_FOLDERS = "ledger-v*-p*"  # of versions whose ledger was a stateful operator of this query
TAKEN_OVER = ("metadata", "offsets", "commits", "sources")  # the rest is the operator's state

HEARD_SCHEMA = (
    "catalog string, namespace array<string>, name string, source string, timestamp_ms long, writes boolean, "
    "request string, snapshot_id long, metadata_location string, left_out long"
)
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
    ]
)


@dataclass(frozen=True)
class EventDecoder:
    """Decodes records in a Python worker."""

    sources: EventSources

    def heard(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Kafka records in, one row per table of each usable event out, within the bounds of further_tables.py."""
        reduce_task_overhead()
        every = (record for batch in batches for record in read_records(batch))
        rows = bounded(self._rows(record) for record in every)
        while some := list(islice(rows, ARROW_BATCH_RECORDS)):
            yield pa.RecordBatch.from_pylist(some, HEARD_TYPES)

    def _rows(self, record: Record) -> Iterator[Row]:
        return (_row(each) for each in named(record, self.sources) if not isinstance(each, BadEvent))


def _row(found: Named | LocationChanged) -> Row:
    if isinstance(found, LocationChanged):
        return {
            "source": found.source,
            "timestamp_ms": found.timestamp_ms,
            "metadata_location": found.metadata_location,
        }
    event, table = found.event, found.table
    requests = event.request is not None
    return {
        "catalog": table.catalog,
        "namespace": table.namespace,
        "name": table.name,
        "source": event.source,
        "timestamp_ms": event.timestamp_ms,
        "writes": not requests and event.operation != "replace",
        "request": event.request,
        # Looks count the main branch only: they will not find a snapshot of another branch.
        "snapshot_id": event.snapshot_id if event.ref_name in (None, MAIN) else None,
        "metadata_location": None,
    }


def events_of(rows: Sequence[Any]) -> list[AnyHeard]:
    """The usable events of a batch's rows. Logs how many tables were left out."""
    for row in rows:
        if row["left_out"] is not None:
            LOG.warning(
                "events of %s name too many tables in one batch: besides the first of each event and %d others, "
                "%d times a table was left out; sweeps find its commits",
                row["source"], 2 * MOST_FURTHER, row["left_out"],
            )  # fmt: skip
    return [heard_of(row) for row in rows if row["left_out"] is None]


def heard_of(row: Any) -> AnyHeard:
    """Inverse of the worker's row."""
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


def start_events(
    session: SparkSession,
    settings: Settings,
    catalogs: tuple[str, ...],
    checkpoint: str,
    handle: Callable[[Sequence[AnyHeard]], None],
    *,
    starting: str = LATEST,
) -> StreamingQuery:
    """Start the query of commit events; it resumes from the checkpoint, else at `starting`, by default the end.

    `handle` is called once per micro-batch, from one thread, also without events. A batch whose `handle` was
    interrupted is handled again after a restart. An exception of `handle` ends the query.
    """
    take_over_offsets(checkpoint)
    usable = (
        records(session, settings.kafka, settings.kafka.max_events_per_batch, starting)
        .where(f"bytes <= {MAX_EVENT_BYTES}")  # neither tombstones nor what is too large: both are dead letters
        .select("key", "value", "bytes", "headers", "timestamp_ms", "topic")
        .mapInArrow(EventDecoder(EventSources.of(settings.kafka, catalogs)).heard, HEARD_SCHEMA)
    )

    def batch(frame: DataFrame, _batch_id: int) -> None:
        handle(events_of(rows_of(frame)))

    return (
        usable.writeStream.queryName(EVENTS_QUERY)
        .foreachBatch(batch)
        .trigger(processingTime=f"{settings.service.trigger_seconds} seconds")
        .option("checkpointLocation", f"{checkpoint}/{FOLDER}")
        .start()
    )


def offsets_fixed(query: StreamingQuery) -> bool:
    """Whether the query knows the offset of every partition it starts at: no later event is missed.

    Without a checkpoint, the first batch fixes them, also if it is empty. With one, the first trigger reads them; it
    makes no batch if there are no events.
    """
    return query.lastProgress is not None or str(query.status["message"]).startswith("Waiting for")


def take_over_offsets(checkpoint: str) -> bool:
    """Continue at the offsets of the query of an earlier version, if this one never had a checkpoint.

    Not after one was set aside: those offsets are old by then. Only on a file system; elsewhere the query starts at the
    end of the topics.
    """
    if "://" in checkpoint and not checkpoint.startswith("file://"):
        return False
    folder = Path(plain_path(checkpoint))
    earlier = sorted(folder.glob(EARLIER_FOLDERS), key=lambda each: each.stat().st_mtime)
    if not earlier or (folder / FOLDER).exists() or any(folder.glob(f"{FOLDER}{ASIDE}*")):
        return False
    unfinished = folder / f"{FOLDER}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for part in (each for name in TAKEN_OVER if (each := earlier[-1] / name).exists()):
        if part.is_dir():
            shutil.copytree(part, unfinished / part.name)
        else:
            shutil.copy(part, unfinished / part.name)
    unfinished.rename(folder / FOLDER)
    return True
