"""The user's environment of another Spark: the settings win, and a setting that cannot work is named at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.service_process import Site, document, firnline, site
from tests.services.quick_java import SPARK_CONF
from tests.slow import slow

pytestmark = pytest.mark.spark
NOBODY = "127.0.0.1:1"


def filled(place: Site) -> None:
    place.create("t")
    place.append("t", commits=3, parts=1)


@pytest.mark.slow
def test_the_settings_win_over_the_users_spark(tmp_path: Path) -> None:
    other = tmp_path / "conf"
    other.mkdir()
    (other / "spark-defaults.conf").write_text("spark.task.cpus 9\nspark.master local[7]\n")
    (other / "spark-env.sh").write_text("export PYSPARK_PYTHON=/nowhere/python\n")
    environment = {
        "PYSPARK_PYTHON": "/nowhere/python",
        "PYSPARK_DRIVER_PYTHON": "ipython",
        "PYSPARK_SUBMIT_ARGS": "--master local[1] --conf spark.task.cpus=9 pyspark-shell",
        "SPARK_HOME": "/nowhere/spark",
        "SPARK_CONF_DIR": str(other),
        "SPARK_REMOTE": "sc://nowhere",
        "HADOOP_CONF_DIR": str(other),
    }
    with site(tmp_path / "site", NOBODY) as place:
        filled(place)
        done = firnline(place.config, "compact", "db.t", "--force", "--output", "json", **environment)
        assert document(done)["groups"][0]["files_in"] == 3
    (said,) = (line for line in done.stderr.splitlines() if "ignored in the environment" in line)
    assert all(name in said for name in environment if name != "HADOOP_CONF_DIR")
    assert "Hadoop configuration in" in done.stderr
    assert "2 rewrite slots: 2 cores" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", ["/nowhere/python", *slow("/bin/true")])
def test_an_interpreter_that_cannot_work_is_named_before_a_rewrite(tmp_path: Path, interpreter: str) -> None:
    conf = {**SPARK_CONF, "spark.pyspark.python": interpreter}
    with site(tmp_path / "site", NOBODY, spark={"master": "local[2]", "conf": conf}) as place:
        filled(place)
        done = firnline(place.config, "compact", "db.t", "--force")
        assert done.returncode == 2, done.stderr
        last = done.stderr.splitlines()[-1]
        assert f"cannot use the interpreter {interpreter}" in last
        assert "remove spark.pyspark.python" in last
        assert len(place.live_files("t")) == 3
