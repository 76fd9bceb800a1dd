"""Spark SQL announces its commits through catalog properties alone: a whole Spark in a JVM without kafka-clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from compactor.spark.java import SPARK_JARS, fetch_jars, pyspark_jars
from deploy.demo.local_process import free_port
from tests.integration.service_process import wait_for
from tests.services.java_process import JavaProcess, java_process
from tests.services.reporter import built_reporter, documents, new_topic, numbers, properties

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def topic() -> str:
    return new_topic()


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProcess]:
    folder = tmp_path_factory.mktemp("spark")
    (iceberg,) = (jar for jar in fetch_jars(SPARK_JARS) if jar.name.startswith("iceberg-spark-runtime"))
    with java_process(folder, [pyspark_jars() / "*", iceberg, built_reporter(folder)]) as process:
        yield process


@pytest.fixture(scope="module")
def spark(jvm: JavaProcess, broker: str, topic: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Catalogs `lake` (announces), `away` (its broker is not there) and `wrong` (its properties are invalid)."""
    folder = tmp_path_factory.mktemp("warehouse")
    catalogs = {
        "lake": properties(broker, topic),
        "away": properties(f"127.0.0.1:{free_port()}", topic),
        "wrong": properties("", topic),
    }
    builder = jvm.java.org.apache.spark.sql.SparkSession.builder().master("local[2]").appName("reporter")
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    extensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    settings["spark.sql.extensions"] = extensions
    for name, given in catalogs.items():
        settings[f"spark.sql.catalog.{name}"] = "org.apache.iceberg.spark.SparkCatalog"
        more = {"type": "hadoop", "warehouse": f"file://{folder}/{name}"}
        settings |= {f"spark.sql.catalog.{name}.{key}": value for key, value in (given | more).items()}
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


def snapshots(spark: Any, table: str) -> list[tuple[int, str]]:
    rows = spark.sql(f"SELECT snapshot_id, operation FROM {table}.snapshots ORDER BY committed_at").collectAsList()
    return [(int(row.getLong(0)), str(row.getString(1))) for row in rows]


def test_every_commit_of_spark_sql_arrives_with_its_table_and_snapshot(
    spark: Any, jvm: JavaProcess, broker: str, topic: str
) -> None:
    spark.sql("CREATE TABLE lake.db.events (id BIGINT, day STRING) USING iceberg PARTITIONED BY (day)")
    spark.sql("INSERT INTO lake.db.events VALUES (1, 'a'), (2, 'b')")
    spark.sql("INSERT INTO lake.db.events VALUES (3, 'a')")
    spark.sql("DELETE FROM lake.db.events WHERE day = 'b'")
    spark.sql(
        "MERGE INTO lake.db.events t USING (SELECT 3 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET day = 'c'"
    )
    spark.sql("CREATE TABLE lake.db.copy USING iceberg AS SELECT * FROM lake.db.events")
    events, copy = snapshots(spark, "lake.db.events"), snapshots(spark, "lake.db.copy")
    wait_for("all reports", lambda: numbers(jvm)["Sent"] >= len(events) + len(copy))
    found = documents(broker, topic)
    assert [
        (each["snapshot-id"], each["operation"]) for each in found if each["table-name"] == "lake.db.events"
    ] == events
    assert len(events) == 4
    # Iceberg names the catalog of a new table only later, and reports its first snapshot before the table exists.
    assert [(each["snapshot-id"], each["operation"]) for each in found if each["table-name"] == "db.copy"] == copy
    assert {each["report-type"] for each in found} == {"commit-report"}
    assert {each["metadata"]["engine-name"] for each in found} == {"spark"}


@pytest.mark.parametrize("catalog", ["away", "wrong"])
def test_trouble_with_the_reporter_is_no_trouble_for_spark(spark: Any, catalog: str) -> None:
    spark.sql(f"CREATE TABLE {catalog}.db.events (id BIGINT) USING iceberg")
    for number in range(3):
        spark.sql(f"INSERT INTO {catalog}.db.events VALUES ({number})")
    assert [operation for _, operation in snapshots(spark, f"{catalog}.db.events")] == ["append"] * 3
    assert spark.sql(f"SELECT count(*) FROM {catalog}.db.events").head().getLong(0) == 3
