"""Spark Structured Streaming: spark_job.py in a process of its own, with the metrics reporter in its catalog."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark

from compactor.spark.java import AWS_JARS, SPARK_JARS, fetch_jars, java_home
from tests.services.quick_java import OPTIONS
from tests.writers.rows_topic import RowsTopic
from tests.writers.stage import CATALOG, ROWS_TOPIC, Stage, Target
from tests.writers.writer import Ended, Writer, retries_in, wait_for_rows

JOB = Path(__file__).with_name("spark_job.py")
HOME = Path(pyspark.__file__).parent
STOP_SECONDS = 60.0


class SparkWriter(Writer):
    """The stream reads the same topic as Kafka Connect."""

    targets = (Target("Spark Structured Streaming", "spark", "metrics reporter"),)

    def __init__(self, stage: Stage, source: RowsTopic) -> None:
        self._stage, self._source = stage, source
        self._process: subprocess.Popen[bytes] | None = None
        self._log = stage.folder / "spark.log"
        self._ended = Ended()

    def start(self) -> None:
        stage = self._stage
        (table,) = (target.table for target in self.targets)
        properties = stage.folder / "spark.properties"
        properties.write_text("".join(f"{name} {value}\n" for name, value in self._settings().items()))
        arguments = [stage.broker, ROWS_TOPIC, f"{CATALOG}.db.{table}", f"file://{stage.folder}/spark-checkpoint"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(HOME / "bin" / "spark-submit"), "--properties-file", str(properties), str(JOB), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=stage.folder,
                env={
                    **os.environ,
                    "SPARK_HOME": str(HOME),
                    "JAVA_HOME": str(java_home()),
                    "PYSPARK_PYTHON": sys.executable,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                },
                start_new_session=True,
            )

    def finish(self) -> None:
        (target,) = self.targets
        wait_for_rows(self._stage, self._ended, target.table, lambda: len(self._source.rows))

    def close(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def rows(self) -> Mapping[int, str]:
        return self._source.rows

    @property
    def failures(self) -> list[str]:
        code = None if self._process is None else self._process.poll()
        end = [] if code is None else [f"exit code {code}: {self._log.read_text(errors='replace')[-2000:]}"]
        return [*self._ended.failures, *end]

    @property
    def retries(self) -> int:
        return retries_in(self._log) if self._log.exists() else 0

    def _settings(self) -> dict[str, str]:
        """Those of docs/writers/spark.md, with the jars from this machine."""
        stage = self._stage
        jars = [*fetch_jars(SPARK_JARS), *fetch_jars(AWS_JARS), stage.reporter]
        catalog = {"type": "rest", **stage.java_catalog, **stage.reporter_properties}
        return {
            "spark.master": "local[1]",
            "spark.jars": ",".join(map(str, jars)),
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.driver.extraJavaOptions": OPTIONS,
            f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
            **{f"spark.sql.catalog.{CATALOG}.{name}": value for name, value in catalog.items()},
        }
