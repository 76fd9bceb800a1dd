"""`firnline check-config --connect` against real services: all is well, or one thing is broken and it says which."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from kafka import KafkaProducer
from kafka.admin import ACL, ACLOperation, ACLPermissionType, KafkaAdminClient, NewTopic, ResourcePattern, ResourceType
from pyiceberg.catalog import load_catalog

from compactor.history.table import HistoryTable
from compactor.iceberg.tables import Catalogs
from compactor.settings.tree import load_settings
from compactor.table_names import TableName
from deploy.demo.broker import embedded_broker
from streaming.commands.connection_checks import Check, Status, check_connections
from tests.integration.service_process import document, firnline
from tests.services.quick_java import quick_java
from tests.services.rest_catalog import RestCatalog
from tests.slow import slow

pytestmark = pytest.mark.kafka

AUTHORIZER = """
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
"""


@pytest.fixture(scope="module")
def table(rest_catalog: RestCatalog) -> str:
    catalog = load_catalog("lake", **rest_catalog.properties)
    catalog.create_namespace_if_not_exists("db")
    name = f"checked_{uuid.uuid4().hex[:8]}"
    rows = pa.table({"id": [1, 2, 3]})
    catalog.create_table(("db", name), rows.schema).append(rows)
    return name


@pytest.fixture(scope="module")
def strict_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that looks at access control lists."""
    with quick_java(embedded_broker(tmp_path_factory.mktemp("strict"), AUTHORIZER)) as address:
        yield address


@pytest.fixture
def tree(rest_catalog: RestCatalog, broker: str, table: str, tmp_path: Path) -> dict[str, Any]:
    """Settings with which all is well; topics of the test's own."""
    topic = f"commits-{uuid.uuid4().hex[:8]}"
    made = {
        "catalogs": {"lake": dict(rest_catalog.properties)},
        "tables": {"include": [f"db.{table}"]},
        "kafka": {"bootstrap_servers": broker, "commit_topic": topic, "dead_letter_topic": f"{topic}-dead"},
        "hooks": [{"kind": "kafka", "topic": f"{topic}-told"}],
        "state": {"checkpoint": f"file://{tmp_path}/state/checkpoint"},
    }
    make_topics(broker, made)
    return made


def make_topics(broker: str, tree: dict[str, Any]) -> None:
    kafka = tree["kafka"]
    names = (kafka["commit_topic"], kafka["dead_letter_topic"], tree["hooks"][0]["topic"])
    administration = KafkaAdminClient(bootstrap_servers=broker)
    administration.create_topics([NewTopic(name) for name in names], wait_for_metadata=True)
    administration.close()
    producer = KafkaProducer(bootstrap_servers=broker)
    producer.send(kafka["commit_topic"], b"an event").get(timeout=30)
    producer.close()


def written(tree: dict[str, Any], folder: Path) -> Path:
    path = folder / "firnline.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def checks(tree: dict[str, Any], folder: Path, *, observe: bool = False, java: bool = False) -> dict[str, Check]:
    """By the words before the topic's name. `java`: start a JVM for Iceberg's Java client; seconds of work."""
    without = {} if java else {"spark": {"conf": {"spark.jars.packages": "not:looked:at"}}}
    settings = load_settings(written(tree | without, folder), environment={})
    topics = (tree["kafka"]["commit_topic"], tree["kafka"]["dead_letter_topic"], tree["hooks"][0]["topic"])
    return {
        " ".join(word for word in check.name.split() if word not in topics): check
        for check in check_connections(settings, observe=observe)
    }


def failed(found: dict[str, Check]) -> set[str]:
    return {name for name, check in found.items() if check.status is Status.FAILED}


def test_all_is_well_and_nothing_is_left_behind(
    tree: dict[str, Any], rest_catalog: RestCatalog, tmp_path: Path
) -> None:
    objects = rest_catalog.s3.keys(rest_catalog.warehouse)
    report = document(firnline(written(tree, tmp_path), "check-config", "--connect", "--output", "json"))
    assert [(check["name"].split(" commits-")[0], check["status"]) for check in report["checks"]] == [
        ("java", "ok"),
        ("catalog lake", "ok"),
        ("store of lake, read", "ok"),
        ("store of lake, write", "ok"),
        ("Java client of lake", "ok"),
        ("in-flight folder", "ok"),
        ("kafka", "ok"),
        ("commit topic", "ok"),
        ("dead-letter topic", "ok"),
        ("hook topic", "ok"),
    ]
    assert "read 1 of 1 records" in str(report)
    assert rest_catalog.s3.keys(rest_catalog.warehouse) == objects
    assert not rest_catalog.s3.client.list_multipart_uploads(Bucket=rest_catalog.s3.bucket).get("Uploads")
    assert not (tmp_path / "state").exists()


@pytest.mark.slow
def test_what_only_java_needs_is_missed(tree: dict[str, Any], tmp_path: Path) -> None:
    """Python's clients need no region for a store with an address of its own."""
    del tree["catalogs"]["lake"]["s3.region"]
    environment = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/dev/null"}
    done = firnline(written(tree, tmp_path), "check-config", "--connect", "--output", "json", **environment)
    assert done.returncode == 2, done.stdout + done.stderr
    (missed,) = (each for each in json.loads(done.stdout)["checks"] if each["status"] == "failed")
    assert (missed["name"], "region" in missed["detail"]) == ("Java client of lake", True)


@pytest.mark.slow
def test_a_wrong_secret_is_told_with_the_remedy(tree: dict[str, Any], tmp_path: Path) -> None:
    tree["catalogs"]["lake"]["s3.secret-access-key"] = "not-the-key"
    done = firnline(written(tree, tmp_path), "check-config", "--connect")
    assert done.returncode == 2, done.stdout + done.stderr
    lines = {line.partition(":")[0].split(maxsplit=1)[1]: line for line in done.stdout.splitlines()}
    assert {name for name, line in lines.items() if line.startswith("failed")} == {
        "store of lake, read",
        "store of lake, write",
        "Java client of lake",
    }
    assert "catalogs.lake" in lines["store of lake, write"]
    assert "not-the-key" not in done.stdout


def test_what_spark_cannot_be_given_is_an_error_of_the_settings(tree: dict[str, Any], tmp_path: Path) -> None:
    tree["catalogs"] = {"lake": {"type": "glue", "glue.access-key-id": "key"}}
    found = checks(tree, tmp_path)
    assert failed(found) == {"catalog lake"}
    assert "glue.access-key-id" in found["catalog lake"].detail
    assert not found["catalog lake"].again


def test_the_history_is_looked_at_and_not_made(
    tree: dict[str, Any], rest_catalog: RestCatalog, table: str, tmp_path: Path
) -> None:
    name = f"history_{uuid.uuid4().hex[:8]}"
    catalog = load_catalog("lake", **rest_catalog.properties)
    tree["history"] = {"table": f"ops.{name}"}
    check = f"history table lake.ops.{name}"
    assert "does not exist yet" in checks(tree, tmp_path)[check].detail
    assert not catalog.table_exists(("ops", name))
    HistoryTable(Catalogs(tree["catalogs"]), TableName("lake", ("ops",), name), "1").ensure()
    found = checks(tree, tmp_path)
    assert failed(found) == set()
    assert f"{name}/data/.firnline-probe" in found[check].detail
    assert checks(tree, tmp_path, observe=True)[check].detail == "it exists"
    tree["history"] = {"table": f"db.{table}"}
    found = checks(tree, tmp_path)
    assert failed(found) == {f"history table lake.db.{table}"}
    assert "is not a history" in found[f"history table lake.db.{table}"].detail


def test_topics_that_do_not_exist_are_not_made(tree: dict[str, Any], broker: str, tmp_path: Path) -> None:
    tree["kafka"]["commit_topic"] = f"none-{uuid.uuid4().hex[:8]}"
    found = checks(tree, tmp_path)
    assert failed(found) == set()
    assert "does not exist yet" in found["commit topic"].detail
    assert failed(checks(tree, tmp_path, observe=True)) == {"commit topic"}
    administration = KafkaAdminClient(bootstrap_servers=broker)
    assert tree["kafka"]["commit_topic"] not in administration.list_topics()
    administration.close()


def test_observe_tries_nothing_that_writes(tree: dict[str, Any], tmp_path: Path) -> None:
    found = checks(tree, tmp_path, observe=True, java=True)
    skipped = {name for name, check in found.items() if check.status is Status.SKIPPED}
    assert skipped == {"store of lake, write", "in-flight folder", "dead-letter topic", "hook topic"}
    assert failed(found) == set()


@pytest.mark.parametrize(
    ("operation", "which", "check"),
    [
        (ACLOperation.READ, "commit_topic", "commit topic"),
        *slow((ACLOperation.WRITE, "dead_letter_topic", "dead-letter topic")),
    ],
)
def test_what_the_broker_does_not_allow_is_told(
    tree: dict[str, Any], strict_broker: str, tmp_path: Path, operation: ACLOperation, which: str, check: str
) -> None:
    tree["kafka"]["bootstrap_servers"] = strict_broker
    make_topics(strict_broker, tree)
    administration = KafkaAdminClient(bootstrap_servers=strict_broker)
    topic = ResourcePattern(ResourceType.TOPIC, tree["kafka"][which])
    everybody = [("User:*", "*", ACLOperation.ALL, ACLPermissionType.ALLOW)]
    denied = ("User:ANONYMOUS", "*", operation, ACLPermissionType.DENY)
    administration.create_acls([ACL(*rule, topic) for rule in (*everybody, denied)])
    administration.close()
    found = checks(tree, tmp_path)
    assert failed(found) == {check}
    assert operation.name in found[check].detail
    assert not found[check].again


def test_topics_that_match_a_pattern_are_named(tree: dict[str, Any], strict_broker: str, tmp_path: Path) -> None:
    tree["kafka"]["bootstrap_servers"] = strict_broker
    make_topics(strict_broker, tree)
    lake = f"lake-{uuid.uuid4().hex[:8]}"
    tree["kafka"]["commit_topics"] = [{"pattern": f"{lake}-.*"}]
    name = f"events topics {lake}-.*"
    assert "no topic matches" in checks(tree, tmp_path)[name].detail
    administration = KafkaAdminClient(bootstrap_servers=strict_broker)
    administration.create_topics([NewTopic(f"{lake}-{each}") for each in "abc"], wait_for_metadata=True)
    assert checks(tree, tmp_path)[name].detail == f"READ allowed on {lake}-a, {lake}-b, {lake}-c"
    topic = ResourcePattern(ResourceType.TOPIC, f"{lake}-b")
    denied = [("User:ANONYMOUS", ACLOperation.READ, ACLPermissionType.DENY)]
    allowed = [("User:*", ACLOperation.ALL, ACLPermissionType.ALLOW)]
    administration.create_acls([ACL(who, "*", what, how, topic) for who, what, how in (*denied, *allowed)])
    administration.close()
    found = checks(tree, tmp_path)
    assert failed(found) == {name}
    assert found[name].detail.endswith(f"READ {lake}-b")


def test_no_broker(tree: dict[str, Any], tmp_path: Path) -> None:
    tree["kafka"] |= {"bootstrap_servers": "127.0.0.1:1", "options": {"bootstrap.timeout.ms": "1000"}}
    found = checks(tree, tmp_path)
    assert failed(found) == {"kafka"}
    assert found["kafka"].again
    assert found["kafka"].remedy.startswith("check kafka.bootstrap_servers and kafka.options")
    assert "check" not in found["kafka"].detail
