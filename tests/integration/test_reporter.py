"""The metrics reporter in a JVM of its own: Iceberg's commits reach a real broker, and no trouble reaches a commit.

Nothing here asks how long a commit took. Where a caller would wait for Kafka it would do so for `max.block.ms`, after
which the report has failed: so "no report has failed yet" says that nobody has waited.
"""

from __future__ import annotations

import socket
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compactor.spark.java import SPARK_JARS, fetch_jars
from deploy.demo.local_process import free_port
from deploy.reporter.build import NESTED
from tests.integration.service_process import wait_for
from tests.services.java_process import JavaProcess, iceberg_jars, java_process, kafka_clients
from tests.services.kafka_topics import records
from tests.services.reporter import (
    Catalog,
    built_reporter,
    documents,
    new_topic,
    numbers,
    producers,
    properties,
)
from tests.slow import slow

pytestmark = pytest.mark.kafka

QUEUE = 1000
FOREVER = {"firnline.kafka.options.max.block.ms": "3600000"}
SOON = {"firnline.kafka.options.max.block.ms": "500"}


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_reporter(tmp_path_factory.mktemp("reporter"))


@pytest.fixture
def jvm(jar: Path, tmp_path: Path) -> Iterator[JavaProcess]:
    """Without kafka-clients on the class path, as in Spark and Flink."""
    with java_process(tmp_path, [*iceberg_jars(), jar]) as process:
        yield process


@contextmanager
def black_hole() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def commits(jvm: JavaProcess, given: dict[str, str], count: int = 5) -> list[int]:
    catalog = Catalog(jvm, given)
    table = catalog.table("events")
    return [catalog.append(table) for _ in range(count)]


def settled(jvm: JavaProcess) -> dict[str, int]:
    """The numbers once no report is on its way."""

    def look() -> dict[str, int] | None:
        found = numbers(jvm)
        return found if found["senders"] and not found["Pending"] else None

    return wait_for("all reports", look)


@pytest.mark.slow
def test_commits_arrive_as_a_rest_catalog_would_get_them_with_the_jars_own_kafka(jvm: JavaProcess, broker: str) -> None:
    topic = new_topic()
    snapshots = commits(jvm, properties(broker, topic))
    assert settled(jvm) == {"Sent": 5, "Dropped": 0, "Failed": 0, "Pending": 0, "senders": 1}
    found = records(topic, bootstrap_servers=broker)
    assert {record.key for record in found} == {b"lake.db.events"}
    reports = documents(broker, topic)
    assert [report["snapshot-id"] for report in reports] == snapshots
    assert [report["sequence-number"] for report in reports] == [1, 2, 3, 4, 5]
    for report in reports:
        assert report["report-type"] == "commit-report"
        assert (report["table-name"], report["operation"]) == ("lake.db.events", "append")
        assert report["metrics"]["added-data-files"] == {"unit": "count", "value": 1}
    parser = jvm.java.org.apache.iceberg.rest.requests.ReportMetricsRequestParser
    for record in found:
        text = record.value.decode()
        assert parser.toJson(parser.fromJson(text)) == text
    assert producers(jvm) == [version_of(kafka_clients(fetch_jars(SPARK_JARS)))]


def version_of(kafka: Path) -> str:
    return kafka.stem.removeprefix("kafka-clients-")


@pytest.mark.parametrize("address", ["nobody answers", *slow("nobody listens", "no such host")])
def test_a_broker_that_is_away_costs_reports_and_no_commit(jvm: JavaProcess, address: str) -> None:
    with black_hole() as silent:
        servers = {"nobody listens": f"127.0.0.1:{free_port()}", "nobody answers": silent}.get(
            address, "no.invalid:9092"
        )
        given = properties(servers, "commits", **FOREVER)
        assert len(set(commits(jvm, given, 20))) == 20
        wait_for("the sender", lambda: numbers(jvm)["senders"])
        if address == "no such host":  # Kafka refuses at once, and is tried again later
            assert settled(jvm)["Failed"] == 20
        else:
            assert numbers(jvm) == {"Sent": 0, "Dropped": 0, "Failed": 0, "Pending": 20, "senders": 1}


def test_what_cannot_be_sent_is_counted_and_logged_once_a_minute(jvm: JavaProcess) -> None:
    topic = new_topic()
    commits(jvm, properties(f"127.0.0.1:{free_port()}", topic, **SOON), 4)
    found = settled(jvm)
    assert (found["Sent"], found["Failed"]) == (0, 4)
    assert jvm.printed.count("A report was not sent") == 1
    assert topic in jvm.printed


def test_a_full_queue_drops_the_oldest_and_counts_them(jvm: JavaProcess) -> None:
    with black_hole() as silent:
        reporter = jvm.java.io.firnline.iceberg.KafkaMetricsReporter()
        reporter.initialize(jvm.map(properties(silent, "commits", **FOREVER)))
        first = report(jvm, 0)
        reporter.report(first)
        wait_for("the thread to take the first report", lambda: waits_for_kafka(jvm))
        for number in range(1, QUEUE + 200):
            reporter.report(report(jvm, number))
        found = numbers(jvm)
    assert found == {"Sent": 0, "Dropped": 199, "Failed": 0, "Pending": QUEUE + 1, "senders": 1}
    assert jvm.printed.count("were dropped") == 1


def waits_for_kafka(jvm: JavaProcess) -> bool:
    running = jvm.java.java.lang.Thread.getAllStackTraces().keySet()
    ours = [thread for thread in running if thread.getName() == "firnline-iceberg-reporter-1"]
    return any("KafkaProducer" in frame.getClassName() for thread in ours for frame in thread.getStackTrace())


def report(jvm: JavaProcess, number: int) -> Any:
    iceberg = jvm.java.org.apache.iceberg.metrics
    return (
        iceberg.ImmutableCommitReport.builder()
        .tableName("lake.db.events")
        .snapshotId(number)
        .sequenceNumber(number)
        .operation("append")
        .commitMetrics(iceberg.ImmutableCommitMetricsResult.builder().build())
        .build()
    )


def test_a_wrong_property_fails_neither_catalog_nor_commit(jvm: JavaProcess, broker: str) -> None:
    for wrong, words in (
        ({"firnline.kafka.bootstrap-servers": " "}, "set the catalog property firnline.kafka.bootstrap-servers"),
        ({"firnline.reports": "everything"}, "firnline.reports must be commits or all, not 'everything'"),
        ({"firnline.exit-wait-ms": "5s"}, "firnline.exit-wait-ms must be a number of milliseconds, not '5s'"),
        ({"firnline.kafka.bootstrap.servers": "a:1"}, "[firnline.kafka.bootstrap.servers] are unknown; known are"),
    ):
        assert len(commits(jvm, properties(broker, new_topic(), **wrong))) == 5
        wait_for("the log line", lambda words=words: words in jvm.printed)


@pytest.mark.parametrize("wrong", [{"acks": "banana"}, *slow({"security.protocol": "SASL_SSL"})])
def test_a_wrong_option_of_kafka_costs_reports_alone(jvm: JavaProcess, broker: str, wrong: dict[str, str]) -> None:
    options = {f"firnline.kafka.options.{name}": value for name, value in wrong.items()}
    assert len(commits(jvm, properties(broker, new_topic(), **options))) == 5
    assert settled(jvm)["Failed"] == 5
    assert jvm.printed.count("A report was not sent") == 1


def test_a_secret_is_in_no_log_line(jvm: JavaProcess) -> None:
    secret = "hunter-2-canary"  # noqa: S105 - nobody's
    jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{secret}"'
    commits(
        jvm,
        properties(
            f"127.0.0.1:{free_port()}",
            "commits",
            **SOON,
            **{"firnline.kafka.options.sasl.jaas.config": jaas, "firnline.kafka.options.sasl.mechanism": "PLAIN"},
            **{"firnline.kafka.options.security.protocol": "SASL_PLAINTEXT"},
        ),
    )
    assert settled(jvm)["Failed"] == 5
    assert secret not in jvm.printed


def test_without_any_kafka_commits_work_and_the_log_names_the_missing_class(jar: Path, tmp_path: Path) -> None:
    stripped = tmp_path / "stripped.jar"
    with zipfile.ZipFile(jar) as old, zipfile.ZipFile(stripped, "w") as new:
        for entry in old.infolist():
            if not entry.filename.startswith(NESTED):
                new.writestr(entry, old.read(entry))
    with java_process(tmp_path / "java", [*iceberg_jars(), stripped]) as jvm:
        assert len(commits(jvm, properties("127.0.0.1:1", "commits"))) == 5
        assert settled(jvm)["Failed"] == 5
        assert "org.apache.kafka" in jvm.printed


def test_a_program_that_ends_right_after_its_commit_has_announced_it(jvm: JavaProcess, broker: str) -> None:
    topic = new_topic()
    (snapshot,) = commits(jvm, properties(broker, topic, **{"firnline.exit-wait-ms": "600000"}), 1)
    jvm.exit()
    assert jvm.process.wait(600) == 0
    assert [found["snapshot-id"] for found in documents(broker, topic)] == [snapshot]
