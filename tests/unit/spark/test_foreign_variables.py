"""Variables of another Spark in the user's environment: which of them firnline ignores."""

from __future__ import annotations

import sys

import pytest

from compactor.spark.session import SPARK_HOME, foreign_variables
from compactor.spark.shipped_modules import unusable

OURS = {
    "SPARK_HOME": str(SPARK_HOME),
    "PYSPARK_PYTHON": sys.executable,
    "PATH": "/bin",
    "HADOOP_CONF_DIR": "/etc/hadoop",
}
OTHERS = {
    "SPARK_HOME": "/opt/spark",
    "PYSPARK_PYTHON": "/usr/bin/python3",
    "PYSPARK_DRIVER_PYTHON": "ipython",
    "PYSPARK_SUBMIT_ARGS": "--master local[1] pyspark-shell",
    "PYSPARK_PIN_THREAD": "false",
    "PYSPARK_GATEWAY_PORT": "1",
    "SPARK_CONF_DIR": "/etc/spark",
    "SPARK_REMOTE": "sc://host",
    "SPARK_TESTING": "1",
    "SPARK_DRIVER_MEMORY": "64m",
}


def test_our_own_values_and_facts_of_the_host_stay() -> None:
    host = {"SPARK_LOCAL_IP": "10.0.0.1", "SPARK_LOCAL_DIRS": "/scratch", "SPARK_USER": "etl"}
    assert foreign_variables(OURS | host, {}) == {}


@pytest.mark.parametrize("name", OTHERS)
def test_a_variable_of_another_spark_is_ignored(name: str) -> None:
    assert foreign_variables(OURS | {name: OTHERS[name]}, {}) == {name: OTHERS[name]}


def test_a_setting_wins_over_its_variable() -> None:
    assert foreign_variables({"SPARK_LOCAL_DIRS": "/a"}, {"spark.local.dir": "/b"}) == {"SPARK_LOCAL_DIRS": "/a"}
    conf = {"spark.pyspark.python": "/opt/python"}
    assert foreign_variables({"PYSPARK_PYTHON": sys.executable}, conf).keys() == {"PYSPARK_PYTHON"}
    assert foreign_variables({"PYSPARK_PYTHON": "/opt/python"}, conf) == {}


@pytest.mark.parametrize(
    "line",
    [
        'Caused by: java.io.IOException: Cannot run program "/nowhere/python": error=2, No such file or directory',
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has 3.12",
        "ModuleNotFoundError: No module named 'compactor'",
        "org.apache.spark.SparkException: No port number in pyspark.daemon's stdout",
    ],
)
def test_an_interpreter_that_cannot_be_used_is_told_from_a_lost_worker(line: str) -> None:
    assert unusable(RuntimeError(f"Job aborted\n{line}\n\tat java")) == line
    assert unusable(RuntimeError("Job aborted\nPython worker exited unexpectedly (crashed)")) is None
