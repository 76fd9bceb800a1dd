"""Who writes a table and why its files are small, found in snapshots as real writers made them."""

from __future__ import annotations

import json
import statistics
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, NestedField

from compactor.iceberg.tables import FileSizes
from compactor.iceberg.writers import Writer, WriterEngine, writer_of
from compactor.partitions import PartitionKey
from compactor.whatif.causes import Arrivals, Cause, arrivals_in, causes_of
from compactor.whatif.table_history import Commit
from streaming.cli import main

FIXTURES = Path(__file__).parent / "fixtures" / "snapshots"
MEBIBYTE = 1024 * 1024
COUNTED = ("operation", "added-", "changed-", "total-")
"""What PyIceberg counts and writes itself."""
SIZES = FileSizes(512 * MEBIBYTE, 384 * MEBIBYTE)


@dataclass(frozen=True)
class Truth:
    """What the recorded writers did."""

    engine: WriterEngine
    writers: int | None
    files_per_commit: float
    files_per_bucket: float
    seconds: int
    """Between commits; of several writers, between their rounds."""
    ids: int
    """Writers that the summaries tell apart."""


TRUTHS = {
    "kafka_connect": Truth(WriterEngine.CONNECT, 1, 4, 4, 5, 1),
    "kafka_connect_keyed": Truth(WriterEngine.CONNECT, 1, 1, 1, 5, 1),
    "kafka_connect_two_connectors": Truth(WriterEngine.CONNECT, 2, 4, 8, 5, 2),
    "flink_sink_v2": Truth(WriterEngine.FLINK, 1, 4, 4, 4, 1),
    "flink_iceberg_sink_v3": Truth(WriterEngine.FLINK, 1, 4, 4, 4, 1),
    "flink_iceberg_sink_hash": Truth(WriterEngine.FLINK, 1, 1, 1, 4, 1),
    "flink_two_sinks": Truth(WriterEngine.FLINK, 2, 4, 8, 4, 2),
    "spark_batch": Truth(WriterEngine.SPARK, 1, 4, 4, 88, 6),
    "spark_streaming": Truth(WriterEngine.SPARK, 1, 4, 4, 5, 1),
    "spark_streaming_hash": Truth(WriterEngine.SPARK, 1, 1, 1, 4, 1),
    "spark_two_streams": Truth(WriterEngine.SPARK, 2, 4, 8, 5, 2),
    "pyiceberg": Truth(WriterEngine.UNKNOWN, None, 1, 1, 3, 1),
    "trino": Truth(WriterEngine.TRINO, None, 4, 4, 600, 1),
    "athena": Truth(WriterEngine.TRINO, None, 1, 1, 3600, 1),
}
REMEDIES = {
    "kafka_connect": ("4 tasks of one Kafka Connect job", "key the topic's records by bucket", "tasks.max"),
    "kafka_connect_two_connectors": ("4 tasks of each of 2 writers", "the sink ignores write.distribution-mode"),
    "flink_sink_v2": (
        "4 tasks of one Flink job",
        "write.distribution-mode = 'hash'; it is 'none' now): 4 files become 1",
    ),
    "flink_iceberg_sink_v3": ("4 tasks of one Flink job", "write.distribution-mode = 'hash'; it is not set)"),
    "flink_two_sinks": ("4 tasks of each of 2 writers", "write.distribution-mode = 'hash'"),
    "spark_batch": (
        "4 tasks of one Spark job",
        "write.distribution-mode = 'hash'; it is 'none' now): 4 files become 1",
    ),
    "spark_streaming": ("4 tasks of one Spark job", "write.distribution-mode = 'hash'; it is 'none' now)"),
    "spark_two_streams": ("4 tasks of each of 2 writers", "write.distribution-mode = 'hash'"),
    "trino": (": 4 tasks write into each bucket", "insert more rows with each statement"),
}
"""What the cause `fan_out` says, where tasks are too many; the other writers do not have it."""


def recorded(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    return document


def commits(name: str) -> list[Commit]:
    return [
        Commit(
            snapshot["timestamp-ms"] / 1000,
            rewrite=False,
            writer=writer_of(snapshot["summary"]),
            added={PartitionKey(0, key): tuple(sizes) for key, sizes in snapshot["added"].items()},
            removed={},
        )
        for snapshot in recorded(name)["snapshots"]
    ]


def arrivals(name: str) -> Arrivals:
    return arrivals_in(commits(name)) or pytest.fail("no files arrived")


def causes(name: str) -> dict[str, Cause]:
    found = causes_of(arrivals(name), SIZES, recorded(name)["distribution-mode"])
    return {cause.name: cause for cause in found}


def test_every_recorded_writer_is_tested() -> None:
    assert {path.stem for path in FIXTURES.glob("*.json")} == set(TRUTHS)


@pytest.mark.parametrize("name", TRUTHS)
def test_writers_tasks_and_interval_are_those_of_the_writer(name: str) -> None:
    truth, found = TRUTHS[name], arrivals(name)
    assert found.engines == (truth.engine,)
    assert found.writers == truth.writers
    assert (found.files_per_commit, found.files_per_bucket) == (truth.files_per_commit, truth.files_per_bucket)
    assert found.interval == pytest.approx(truth.seconds, rel=0.2)
    assert len({commit.writer for commit in commits(name)}) == truth.ids


@pytest.mark.parametrize("name", TRUTHS)
def test_too_many_tasks_are_a_cause_with_the_remedy_of_the_engine(name: str) -> None:
    cause = causes(name).get("fan_out")
    if cause is None:
        assert name not in REMEDIES
        return
    said, *remedies = REMEDIES[name]
    assert said in cause.sentence
    assert [remedy for remedy in remedies if remedy not in cause.remedy] == []


@pytest.mark.parametrize("name", TRUTHS)
def test_several_writers_are_a_cause_only_where_several_commit_at_the_same_time(name: str) -> None:
    cause = causes(name).get("writers")
    assert (cause is not None) == (TRUTHS[name].writers == 2)
    assert cause is None or "8 files become 4" in cause.remedy


def test_the_interval_is_set_where_the_engine_sets_it() -> None:
    assert "iceberg.control.commit.interval-ms" in causes("kafka_connect")["interval"].remedy
    assert "checkpoint interval" in causes("flink_sink_v2")["interval"].remedy
    assert "(" not in causes("pyiceberg")["interval"].remedy


def test_what_changes_with_every_commit_names_no_writer() -> None:
    changing = {"kafka.connect.commit-id": "a", "kafka.connect.task-id": "sink-3", "trino_query_id": "b"}
    assert writer_of(changing) == Writer(WriterEngine.TRINO)
    one = {**changing, "kafka.connect.offsets.control.connect-sink": '{"0":1}'}
    later = {**one, "kafka.connect.commit-id": "c", "kafka.connect.offsets.control.connect-sink": '{"0":2}'}
    assert writer_of(one) == writer_of(later) == Writer(WriterEngine.CONNECT, "control.connect-sink")


def replay(name: str, folder: Path) -> Path:
    """A table with the recorded summaries and files, which exist in metadata alone; the settings that name it."""
    uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
    catalog = SqlCatalog("lake", uri=uri, warehouse=warehouse)
    catalog.create_namespace("db")
    table = catalog.create_table(
        "db.t",
        Schema(NestedField(1, "bucket", IntegerType())),
        partition_spec=PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "bucket")),
        properties={"write.distribution-mode": recorded(name)["distribution-mode"]},
    )
    for snapshot in recorded(name)["snapshots"]:
        summary = {key: value for key, value in snapshot["summary"].items() if not key.startswith(COUNTED)}
        with table.transaction() as transaction, transaction.update_snapshot(summary).fast_append() as append:
            for key, sizes in snapshot["added"].items():
                for size in sizes:
                    append.append_data_file(_file(json.loads(key)[0], size))
    settings = folder / "firnline.yaml"
    lake = {"type": "sql", "uri": uri, "warehouse": warehouse}
    settings.write_text(json.dumps({"catalogs": {"lake": lake}, "tables": {"include": ["db.*"]}}))
    return settings


def _file(bucket: int, size: int) -> DataFile:
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file:///nowhere/{uuid.uuid4()}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(bucket),
        record_count=3,
        file_size_in_bytes=size,
    )
    file.spec_id = 0
    return file


def debt_why(settings: Path) -> dict[str, Any]:
    answer = CliRunner().invoke(main, ["-c", str(settings), "debt", "db.t", "--why", "--output", "json"])
    assert answer.exit_code == 0, answer.output
    document: dict[str, Any] = json.loads(answer.stdout)["tables"][0]
    return document


@pytest.mark.parametrize("name", ["kafka_connect", "kafka_connect_two_connectors", "spark_batch", "flink_two_sinks"])
def test_debt_why_counts_the_writers_that_commit_at_the_same_time(name: str, tmp_path: Path) -> None:
    document = debt_why(replay(name, tmp_path))
    found = {cause["name"]: cause for cause in document["causes"]}
    assert document["arrivals"]["writers"] == TRUTHS[name].writers
    assert document["arrivals"]["files_per_bucket"] == TRUTHS[name].files_per_bucket
    assert REMEDIES[name][0] in found["fan_out"]["sentence"]
    assert REMEDIES[name][1] in found["fan_out"]["remedy"]


def test_debt_why_knows_what_a_bucket_holds_from_before_the_oldest_snapshot(tmp_path: Path) -> None:
    settings = replay("kafka_connect", tmp_path)
    lake = json.loads(settings.read_text())["catalogs"]["lake"]
    table = SqlCatalog("lake", **lake).load_table("db.t")
    table.maintenance.expire_snapshots().by_id(table.metadata.snapshots[0].snapshot_id).commit()
    document = debt_why(settings)
    held = statistics.median(row["data_bytes"] for row in document["partitions"])
    assert (document["arrivals"]["commits"], document["arrivals"]["partition_bytes"]) == (9, held)
