"""A real Kafka broker in its own process: KRaft mode, one node, from Maven jars. For the demo and for tests."""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from compactor.errors import GiveUpError
from compactor.spark.java import KAFKA_BROKER_JARS, fetch_jars, java_home
from deploy.demo.local_process import free_port, local_process

STARTED = b"Kafka Server started"
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/logs
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


@dataclass(frozen=True)
class LocalBroker:
    """A broker whose data and settings are in `folder`. It can be started again after its end."""

    folder: Path
    port: int
    command: tuple[str, ...]

    @property
    def address(self) -> str:
        """Its bootstrap address."""
        return f"127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[str]:
        """Run it in the block; yield its address.

        Raises:
            GiveUpError: the process did not start; the message contains the end of its log.
        """
        log = self.folder / "broker.log"
        with local_process("broker", list(self.command), self.folder, lambda: STARTED in log.read_bytes()):
            yield self.address


def new_broker(folder: Path, more: str = "") -> LocalBroker:
    """Prepare a broker with its data in `folder`. `more`: additional lines of its properties file.

    Raises:
        GiveUpError: Kafka's storage tool failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port, controller = free_port(), free_port()
    properties = folder / "server.properties"
    properties.write_text(PROPERTIES.format(port=port, controller=controller, folder=folder) + more)
    java, jars = str(java_home() / "bin" / "java"), ":".join(map(str, fetch_jars(KAFKA_BROKER_JARS)))
    _run([java, "-cp", jars, "kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(properties)])
    return LocalBroker(folder, port, (java, "-Xmx512m", "-cp", jars, "kafka.Kafka", str(properties)))


@contextmanager
def embedded_broker(folder: Path, more: str = "") -> Iterator[str]:
    """Run a new broker with its data in `folder`; yield its bootstrap address.

    Raises:
        GiveUpError: the process did not start; the message contains the end of its log.
    """
    with new_broker(folder, more).running() as address:
        yield address


def _cluster_id() -> str:
    """A random id like those of Kafka's tool: a UUID in URL-safe base64 that does not start with a dash."""
    made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22]
    return made if made[0] != "-" else _cluster_id()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise GiveUpError(f"Kafka's storage tool failed:\n{(done.stdout + done.stderr)[-2000:]}")
