"""The service's JSON log: every line is one object, also what the JVM prints before it has a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.service_process import (
    Site,
    firnline,
    log_lines,
)
from tests.slow import slow

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

NO_JVM = {"FIRNLINE_SPARK__CONF": '{"spark.driver.memory": "99999999g"}'}


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "said"),
    [
        (("run",), {"FIRNLINE_POLICY__GROWTH": "much"}, 2, "policy.growth"),
        *slow(
            (("run",), NO_JVM, 2, "Spark does not start: Error occurred during initialization of VM"),
            (("run",), {"FIRNLINE_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1"}, 3, "check kafka.bootstrap_servers"),
        ),
    ],
    ids=["setting", "jvm", "broker"],
)
def test_a_start_that_fails_says_why_in_an_object(
    arguments: tuple[str, ...], environment: dict[str, str], code: int, said: str, tmp_path: Path, broker: str
) -> None:
    place = Site(tmp_path, broker)
    done = firnline(place.config, *arguments, FIRNLINE_HTTP__PORT="0", **environment)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = log_lines(done.stderr)
    assert [line["level"] for line in lines if said in f"{line['message']} {line.get('error')}"] == ["error"]
