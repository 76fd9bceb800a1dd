"""The demo's writer: commits small files and publishes a commit event for each. Independent of the compactor.

`python -m deploy.demo.ingestion -c firnline.yaml` prints one JSON line per commit on stdout.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from kafka import KafkaProducer
from pyiceberg.table.snapshots import Operation, Snapshot

from compactor.errors import GiveUpError
from compactor.iceberg.tables import Catalogs, TableView
from compactor.reasons import Reason
from compactor.settings.tree import Settings, SparkSettings, load_settings
from compactor.spark.session import spark_session
from compactor.table_names import TableName
from deploy.demo.events_table import BUCKETS, append_events, create_table, rows_per_commit
from streaming.commit_events import canonical
from streaming.commit_events.decoder import TableChanged
from streaming.kafka.clients import producer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SENDER = "demo-ingestion"


@dataclass(frozen=True)
class IngestedCommit:
    """One commit of the writer, as printed. `timestamp_ms`: of the snapshot."""

    number: int
    snapshot_id: int
    files: int
    rows: int
    bytes: int
    seconds: float
    timestamp_ms: int


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-c", "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option(
    "--table", default="db.events", show_default=True, help="Table to write to. Created if it does not exist."
)
@click.option("--commits", default=28, show_default=True, help="Commits to make.")
@click.option("--file-size", default=1_500_000, show_default=True, help="Approximate bytes of each file.")
@click.option("--pause", default=0.0, show_default=True, help="Seconds between commits.")
def main(config: Path, table: str, commits: int, file_size: int, pause: float) -> None:
    """Commit small files to TABLE, one per bucket and commit, and publish a commit event for each."""
    settings = load_settings(config)
    name = TableName.parse(table, tuple(settings.catalogs))
    for commit in ingest(settings, name, commits, file_size, pause):
        click.echo(json.dumps(asdict(commit)))


def ingest(
    settings: Settings, table: TableName, commits: int, file_size: int, pause: float
) -> Iterator[IngestedCommit]:
    catalogs = Catalogs(settings.catalogs)
    session = spark_session(_with_own_spark(settings), application="ingestion")
    sender = producer(settings.kafka)
    try:
        create_table(session, table)
        rows = rows_per_commit(file_size)
        first_id = _next_id(session, table)
        for number in range(1, commits + 1):
            started = time.monotonic()
            append_events(session, table, first_id, rows)
            first_id += rows
            view, snapshot = _newest_append(catalogs, table)
            _publish(sender, settings.kafka.commit_topic, view, snapshot)
            yield _ingested(number, snapshot, time.monotonic() - started)
            if number < commits:
                time.sleep(pause)
    finally:
        sender.close(timeout=5)
        session.stop()


def _with_own_spark(settings: Settings) -> Settings:
    # One shuffle partition per bucket, so that buckets are written in parallel.
    own = SparkSettings(master="local[2]", conf={"spark.sql.shuffle.partitions": str(BUCKETS)})
    return settings.model_copy(update={"spark": own})


def _next_id(session: SparkSession, table: TableName) -> int:
    largest = session.sql(f"SELECT max(id) AS largest FROM {table.spark}").first()  # noqa: S608 - a quoted name
    return 0 if largest is None or largest["largest"] is None else int(largest["largest"]) + 1


def _newest_append(catalogs: Catalogs, table: TableName) -> tuple[TableView, Snapshot]:
    """The snapshot of our last append; a rewrite may have been committed after it."""
    view = catalogs.load(table)
    for snapshot in reversed(view.metadata.snapshots):
        if snapshot.summary is not None and snapshot.summary.operation == Operation.APPEND:
            return view, snapshot
    raise GiveUpError(
        f"table {table} has no append snapshot although one was committed; check its snapshots",
        reason=Reason.BAD_METADATA,
    )


def _publish(sender: KafkaProducer, topic: str, view: TableView, snapshot: Snapshot) -> None:
    changed = TableChanged(
        source=SENDER,
        event_id=str(uuid.uuid4()),
        catalog=view.name.catalog,
        namespace=view.name.namespace,
        name=view.name.name,
        timestamp_ms=snapshot.timestamp_ms,
        table_uuid=view.uuid,
        snapshot_id=snapshot.snapshot_id,
        operation="append",
        metadata_location=view.metadata_location,
    )
    key, value = canonical.encode(changed, sender=SENDER)
    sender.send(topic, key=key, value=value).get(timeout=15)


def _ingested(number: int, snapshot: Snapshot, seconds: float) -> IngestedCommit:
    counts = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    return IngestedCommit(
        number=number,
        snapshot_id=snapshot.snapshot_id,
        files=int(counts["added-data-files"]),
        rows=int(counts["added-records"]),
        bytes=int(counts["added-files-size"]),
        seconds=round(seconds, 3),
        timestamp_ms=snapshot.timestamp_ms,
    )


if __name__ == "__main__":
    main()
