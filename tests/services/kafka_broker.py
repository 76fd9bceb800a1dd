"""A real Kafka broker: an address from TEST_KAFKA, else a container, else the local process that the demo uses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from deploy.demo.broker import embedded_broker
from deploy.demo.local_process import free_port
from tests.services.containers import container, image_is_here
from tests.services.quick_java import quick_java

IMAGE = os.environ.get("TEST_KAFKA_IMAGE", "apache/kafka:4.1.1")


def kafka_source() -> str:
    """Where `kafka_broker` takes the broker from, in words."""
    if os.environ.get("TEST_KAFKA"):
        return f"address from TEST_KAFKA ({os.environ['TEST_KAFKA']})"
    return f"testcontainers ({IMAGE})" if image_is_here(IMAGE) else "local process (KRaft, Maven jars)"


@contextmanager
def kafka_broker(folder: Path) -> Iterator[str]:
    """Its bootstrap address; a local one keeps its log in `folder`."""
    if os.environ.get("TEST_KAFKA"):
        yield os.environ["TEST_KAFKA"]
    elif image_is_here(IMAGE):
        with _container_broker() as address:
            yield address
    else:
        with quick_java(embedded_broker(folder)) as address:
            yield address


@contextmanager
def _container_broker() -> Iterator[str]:
    port = free_port()
    address = f"127.0.0.1:{port}"
    environment = {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://{address}",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    }
    with container(IMAGE, {9092: port}, environment, lambda: _answers(address)):
        yield address


def _answers(address: str) -> bool:
    try:
        KafkaAdminClient(bootstrap_servers=address, bootstrap_timeout_ms=1000).close()
    except KafkaError:
        return False
    return True
