"""Spark's standalone cluster: a master and workers from PySpark's own jars, each in a session of its own.

Workers run in folders without the project, with an interpreter that finds installed packages but not the project: what
executors need of firnline must come with the Spark session.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark

from compactor.errors import GiveUpError
from compactor.spark.java import java_home
from deploy.demo.local_process import free_port
from tests.services.processes import kill, session_members
from tests.services.quick_java import OPTIONS
from tests.services.waiting import wait_for

HOST = "127.0.0.1"
SECURED_RPC = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.saslFallback": "false",
}
"""Authentication and encryption of Spark's own connections, as docs/deployment.md recommends; also needs the secret."""
SECRET = "spark.authenticate.secret"  # noqa: S105 - the name of a setting
MEMORY = "512m"
"""Of an executor and of the daemons: outputs are written by Python, outside of the heap."""


@dataclass
class Worker:
    """One worker. Its executors are its children, in its session."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def members(self) -> list[int]:
        """Live processes of the worker's session: the worker, its executors, their Python processes."""
        return session_members(self.process.pid)

    def stop(self) -> None:
        """SIGTERM: the worker ends its executors and says goodbye to the master."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=20)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to every process of the worker, as when its machine loses power."""
        kill(self.members)
        self.process.wait()


@dataclass
class SparkCluster:
    """A running master; workers are added and removed by the tests. `secret`: of its connections; empty: no secret."""

    folder: Path
    master: str
    page: str
    python: Path
    secret: str = ""
    workers: list[Worker] = field(default_factory=list)

    @property
    def conf(self) -> dict[str, str]:
        """Spark configuration of a driver: one core and little memory for each executor. The secret is not in it."""
        return {
            **(SECURED_RPC if self.secret else {}),
            "spark.executor.cores": "1",
            "spark.executor.memory": MEMORY,
            "spark.executor.extraJavaOptions": OPTIONS,
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.pyspark.python": str(self.python),
        }

    def add_workers(self, *cores: int) -> list[Worker]:
        """Start workers with these numbers of cores, and wait until the master knows them."""
        before = self.cores
        added = [self._start_worker(count) for count in cores]
        _wait(f"{len(cores)} workers to register", added[-1], lambda: self.cores >= before + sum(cores))
        return added

    def _start_worker(self, cores: int) -> Worker:
        folder = self.folder / f"worker-{len(self.workers)}"
        folder.mkdir()
        command = _spark_class("worker.Worker", self.master, "--host", HOST, "-c", str(cores), "-m", f"{cores}g")
        command += ["--webui-port", str(free_port()), "--work-dir", str(folder / "work")]
        self.workers.append(Worker(_start(command, folder, self.secret), folder / "log"))
        return self.workers[-1]

    @property
    def cores(self) -> int:
        """Cores of the live workers, as the master counts them."""
        return sum(one["cores"] for one in self.state["workers"] if one["state"] == "ALIVE")

    @property
    def state(self) -> Any:
        """The master's page as JSON."""
        with urllib.request.urlopen(f"{self.page}/json/", timeout=10) as answer:  # noqa: S310 - our own address
            return json.load(answer)


@contextmanager
def spark_cluster(folder: Path, *workers: int, secret: str = "") -> Iterator[SparkCluster]:
    """A cluster whose workers have these numbers of cores. Nothing is left running. `secret`: who does not know it
    takes no part, and connections are encrypted.

    Raises:
        GiveUpError: a process did not start; the message contains the end of its log.
    """
    port, page = free_port(), free_port()
    home = folder / "master"
    home.mkdir(parents=True)
    command = _spark_class("master.Master", "--host", HOST, "--port", str(port), "--webui-port", str(page))
    master = Worker(_start(command, home, secret), home / "log")
    cluster = SparkCluster(folder, f"spark://{HOST}:{port}", f"http://{HOST}:{page}", _plain_python(folder), secret)
    try:
        _wait("Spark's master", master, lambda: cluster.state["status"] == "ALIVE")
        if workers:
            cluster.add_workers(*workers)
        yield cluster
    finally:
        for worker in (*cluster.workers, master):
            worker.kill()


def _plain_python(folder: Path) -> Path:
    """An interpreter with the installed packages and without the project, which is installed by a link.

    Python reads such links only in site directories, and `-S` leaves none.
    """
    packages = Path(pyspark.__file__).parents[1]
    script = folder / "python"
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {shlex.quote(sys.executable)} -S "$@"\n', encoding="utf-8"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def _spark_class(name: str, *arguments: str) -> list[str]:
    home = Path(pyspark.__file__).parent
    return [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]


def _start(command: list[str], folder: Path, secret: str) -> subprocess.Popen[bytes]:
    """Start a daemon in a session of its own, without the project in its environment.

    It reads the secret from its settings file: its command line can be read by everybody.
    """
    file = folder / "conf" / "spark-defaults.conf"
    file.parent.mkdir()
    file.touch(mode=0o600)
    settings = {**SECURED_RPC, SECRET: secret} if secret else {}
    file.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("FIRN")}
    environment = {
        **kept,
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": MEMORY,
        "SPARK_DAEMON_JAVA_OPTS": OPTIONS,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_CONF_DIR": str(file.parent),
    }
    with (folder / "log").open("wb") as out:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder, env=environment,
            start_new_session=True,
        )  # fmt: skip


def _wait(what: str, daemon: Worker, done: Callable[[], bool]) -> None:
    def look() -> bool:
        if daemon.process.poll() is not None:
            raise GiveUpError(f"waited for {what}:\n{daemon.log.read_text(errors='replace')[-3000:]}")
        with suppress(OSError):
            return done()
        return False

    wait_for(what, look)
