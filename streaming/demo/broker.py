"""A real Kafka broker in a process of its own: KRaft mode, one node, from Maven jars. For the demo and for tests."""

from __future__ import annotations

import base64
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compactor.errors import GiveUpError
from compactor.java import KAFKA_BROKER_JARS, fetch_jars, java_home

START_SECONDS = 60.0

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


@contextmanager
def embedded_broker(folder: Path) -> Iterator[str]:
    """Start a broker that keeps its log in `folder`; yields its bootstrap address and stops it at the end.

    Raises:
        GiveUpError: it did not come up; the message holds its last words.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port, controller = _free_port(), _free_port()
    properties = folder / "server.properties"
    properties.write_text(PROPERTIES.format(port=port, controller=controller, folder=folder))
    java = [str(java_home() / "bin" / "java"), "-cp", ":".join(map(str, fetch_jars(KAFKA_BROKER_JARS)))]
    _run([*java, "kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(properties)])
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen(
            [*java[:1], "-Xmx512m", *java[1:], "kafka.Kafka", str(properties)],
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C in a terminal is for those who use the broker
        )
        try:
            _wait_until_up(process, port, folder / "broker.log")
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _cluster_id() -> str:
    """A random id as Kafka's own tool makes it: a UUID in URL-safe base64, which must not look like an option."""
    made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22]
    return made if made[0] != "-" else _cluster_id()


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise GiveUpError(
            f"Kafka's storage tool failed:\n{(done.stdout + done.stderr)[-2000:]}", reason="broker_failed"
        )
    return done.stdout


def _wait_until_up(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if b"Kafka Server started" in log.read_bytes():
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                return
        time.sleep(0.2)
    raise GiveUpError(f"the embedded broker did not start:\n{log.read_text()[-2000:]}", reason="broker_failed")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
