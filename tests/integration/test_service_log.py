"""The service's JSON log: every line is one object, also what the JVM prints before it has a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.service_process import (
    ServiceProcess,
    Site,
    firnline,
    group_members,
    log_lines,
    site,
    wait_for,
)
from tests.services.processes import kill, python_workers
from tests.slow import slow

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

NO_JVM = {"FIRNLINE_SPARK__CONF": '{"spark.driver.memory": "99999999g"}'}
JAVA_FRAME = "\tat org.apache.spark."


def kill_workers(service: ServiceProcess) -> bool:
    """Kill those that hold tasks; False where there is none yet."""
    workers = python_workers(service.pid)[1:]
    kill(workers)
    return bool(workers)


def traces(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if JAVA_FRAME in line.get("stack_trace", "")]


@pytest.mark.slow
def test_every_line_is_an_object_through_crashes(tmp_path: Path, broker: str) -> None:
    """Its Python workers are killed, then itself; test_service_ends.py restarts and stops one. The JVM prints before
    it has a log.
    """
    said_by_the_jvm = "-Dfirnline.test=1"
    with site(tmp_path, broker) as place:
        place.create("t")
        place.publish(*place.append("t"))
        first = place.start(JAVA_TOOL_OPTIONS=said_by_the_jvm)
        first.wait_ready()

        def failed() -> bool:
            kill_workers(first)
            return JAVA_FRAME.strip() in first.log_text

        wait_for("a worker's death to be an error of Spark", failed)
        first.kill()
        wait_for("the log's last line", lambda: not group_members(first.pid))
        lines = log_lines(first.log_text)
        (picked_up, *_) = [line for line in lines if said_by_the_jvm in line["message"]]
        assert (picked_up["level"], picked_up["logger"]) == ("warning", "stderr")
        assert {line["level"] for line in traces(lines)} == {"error"}
        assert [line for line in traces(lines) if line["logger"].startswith("org.apache.spark.")]


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
