"""A real ZooKeeper server in its own process, from the jars that pyspark ships."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compactor.spark.java import java_home, pyspark_jars
from deploy.demo.local_process import free_port, local_process

SERVER = "org.apache.zookeeper.server.ZooKeeperServerMain"


@contextmanager
def zookeeper_server(folder: Path) -> Iterator[str]:
    """The address of a server whose data is in `folder`."""
    port = free_port()

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    command = [
        str(java_home() / "bin" / "java"),
        "-Xmx128m",
        "-Dzookeeper.admin.enableServer=false",
        "-cp",
        f"{pyspark_jars()}/*",
        SERVER,
        str(port),
        str(folder / "data"),
    ]
    with local_process("zookeeper", command, folder, answers):
        yield f"127.0.0.1:{port}"
