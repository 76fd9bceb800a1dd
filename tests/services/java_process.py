"""A JVM of its own, driven from Python over Py4J: real Java classes, with a class path that the test chooses."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from compactor.spark.java import KAFKA_BROKER_JARS, SPARK_JARS, fetch_jars, java_home, pyspark_jars
from tests.services.quick_java import OPTIONS

MODULE_OPTIONS = tuple(
    f"--add-opens={package}=ALL-UNNAMED"
    for package in (
        "java.base/java.io", "java.base/java.lang", "java.base/java.lang.invoke", "java.base/java.lang.reflect",
        "java.base/java.net", "java.base/java.nio", "java.base/java.util", "java.base/java.util.concurrent",
        "java.base/java.util.concurrent.atomic", "java.base/sun.nio.ch", "java.base/sun.nio.cs",
        "java.base/sun.security.action", "java.base/sun.util.calendar",
        "java.management/com.sun.jmx.mbeanserver", "java.management/javax.management",
    )
)  # fmt: skip
"""What Spark and Py4J need of Java 17; Spark's own launcher gives them too."""


@dataclass(frozen=True)
class JavaProcess:
    """`java`: packages and classes by name. `log`: what the JVM writes to its error output."""

    java: Any
    gateway: JavaGateway
    process: subprocess.Popen[bytes]
    log: Path

    def map(self, values: dict[str, str]) -> Any:
        """A Java map."""
        made = self.java.java.util.HashMap()
        for name, value in values.items():
            made.put(name, value)
        return made

    def exit(self) -> None:
        """Let the JVM call `System.exit(0)`, which it does at the end of its input."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    @property
    def printed(self) -> str:
        return self.log.read_text(errors="replace")


@contextmanager
def java_process(folder: Path, class_path: Sequence[Path]) -> Iterator[JavaProcess]:
    """Run a JVM in the block."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "java.log"
    (py4j_jar,) = pyspark_jars().glob("py4j-*.jar")
    with log.open("wb") as errors:
        port, token, process = launch_gateway(
            jarpath=str(py4j_jar),
            classpath=":".join(map(str, class_path)),
            javaopts=[*OPTIONS.split(), *MODULE_OPTIONS],
            java_path=str(java_home() / "bin" / "java"),
            redirect_stderr=errors,
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
            cwd=folder,
        )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    try:
        yield JavaProcess(gateway.jvm, gateway, process, log)
    finally:
        gateway.close()
        process.kill()
        process.wait()


def iceberg_jars() -> list[Path]:
    """Iceberg's runtime with Hadoop's classes, and a logger that prints to standard error; neither Kafka nor Spark."""
    (runtime,) = (jar for jar in fetch_jars(SPARK_JARS) if jar.name.startswith("iceberg-spark-runtime"))
    return [
        runtime,
        *pyspark_jars().glob("hadoop-client-*.jar"),
        *(jar for jar in fetch_jars(KAFKA_BROKER_JARS) if jar.name.startswith("slf4j-")),
    ]


def kafka_clients(jars: Sequence[Path]) -> Path:
    (found,) = (jar for jar in jars if jar.name.startswith("kafka-clients-"))
    return found
