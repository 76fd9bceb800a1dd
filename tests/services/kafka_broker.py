"""A real Kafka broker: an address from TEST_KAFKA, else a container, else the local process that the demo uses."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from deploy.demo.broker import LocalBroker, embedded_broker, new_broker
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


@dataclass
class BreakableBroker:
    """A local broker that tests stop, freeze and start again, always at the same address."""

    local: LocalBroker
    up: ExitStack = field(default_factory=ExitStack)

    @property
    def address(self) -> str:
        return self.local.address

    def start(self) -> None:
        self.up.enter_context(quick_java(self.local.running()))

    def stop(self) -> None:
        self.up.close()

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP: it accepts connections and answers nothing; SIGCONT: it goes on."""
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if str(self.local.folder / "server.properties").encode() in line.read_bytes():
                    os.kill(int(line.parent.name), number)


@contextmanager
def breakable_broker(folder: Path, properties: str = "") -> Iterator[BreakableBroker]:
    """Running at first; `properties`: more lines of its settings."""
    broker = BreakableBroker(new_broker(folder, properties))
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
