"""Which engine committed a snapshot, and for which job, from the snapshot's summary. Pure.

A job is named by what stays the same from commit to commit: never by a commit, query or epoch id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

CONNECT_OFFSETS = "kafka.connect.offsets."
"""Of Kafka Connect's sink: followed by the control topic and the connector's consumer group, which stay the same."""
SPARK_JOB_KEYS = ("spark.sql.streaming.queryId", "spark.app.id", "app-id")
"""Of a streaming query, which keeps its id over restarts; else of the application."""


class WriterEngine(StrEnum):
    """An engine, by the name that people know."""

    CONNECT = "Kafka Connect"
    FLINK = "Flink"
    SPARK = "Spark"
    TRINO = "Trino or Athena"
    UNKNOWN = "unknown engine"


@dataclass(frozen=True)
class Writer:
    """One that commits by itself, with any number of tasks.

    Attributes:
        engine: What runs it.
        job: Its id; empty if the engine writes none that lasts longer than a commit (Trino, Athena, PyIceberg).
    """

    engine: WriterEngine
    job: str = ""


UNKNOWN = Writer(WriterEngine.UNKNOWN)


def writer_of(summary: Mapping[str, str]) -> Writer:
    """The writer of the snapshot with this summary."""
    offsets = next((key for key in summary if key.startswith(CONNECT_OFFSETS)), None)
    if offsets:
        return Writer(WriterEngine.CONNECT, offsets.removeprefix(CONNECT_OFFSETS))
    if "flink.job-id" in summary:  # a job with two sinks has two committers
        return Writer(WriterEngine.FLINK, f"{summary['flink.job-id']}/{summary.get('flink.operator-id', '')}")
    spark_job = next((summary[key] for key in SPARK_JOB_KEYS if key in summary), None)
    if spark_job:
        return Writer(WriterEngine.SPARK, spark_job)
    if "trino_query_id" in summary:  # of one statement
        return Writer(WriterEngine.TRINO)
    return UNKNOWN
