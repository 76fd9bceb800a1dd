"""Find the engine and the job that committed a snapshot, from the snapshot's summary. Pure.

A job's id stays the same from commit to commit: it is never a commit, query or epoch id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

CONNECT_OFFSETS = "kafka.connect.offsets."
"""Kafka Connect's sink; followed by the control topic and the connector's consumer group, which stay the same."""
SPARK_JOB_KEYS = ("spark.sql.streaming.queryId", "spark.app.id", "app-id")
"""The streaming query, which keeps its id over restarts; else the application."""


class WriterEngine(StrEnum):
    """An engine, by the name that it is known by."""

    CONNECT = "Kafka Connect"
    FLINK = "Flink"
    SPARK = "Spark"
    TRINO = "Trino or Athena"
    UNKNOWN = "unknown engine"


@dataclass(frozen=True)
class Writer:
    """A job that makes its own commits, with any number of tasks.

    Attributes:
        engine: The engine that runs the job.
        job: The job's id; empty if the engine writes no id that outlives a commit (Trino, Athena, PyIceberg).
    """

    engine: WriterEngine
    job: str = ""


UNKNOWN = Writer(WriterEngine.UNKNOWN)


def writer_of(summary: Mapping[str, str]) -> Writer:
    offsets = next((key for key in summary if key.startswith(CONNECT_OFFSETS)), None)
    if offsets:
        return Writer(WriterEngine.CONNECT, offsets.removeprefix(CONNECT_OFFSETS))
    if "flink.job-id" in summary:  # a job with two sinks has two committers
        return Writer(WriterEngine.FLINK, f"{summary['flink.job-id']}/{summary.get('flink.operator-id', '')}")
    spark_job = next((summary[key] for key in SPARK_JOB_KEYS if key in summary), None)
    if spark_job:
        return Writer(WriterEngine.SPARK, spark_job)
    if "trino_query_id" in summary:  # the id of one statement, not of a job
        return Writer(WriterEngine.TRINO)
    return UNKNOWN
