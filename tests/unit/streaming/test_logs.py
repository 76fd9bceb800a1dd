"""Log lines: one JSON object each for machines, readable ones for people, whoever wrote them."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compactor.events import (
    Event,
    GroupCommitted,
    GroupDropped,
    GroupPlan,
    RunWouldRewrite,
)
from compactor.settings.tree import LogSettings, Settings
from compactor.spark.session import LOG_AS_JSON, LOG_FOR_PEOPLE, session_conf
from streaming.logs.events import LOG, log_event
from streaming.logs.set_up import set_up_logging
from tests.unit.history.test_decisions import KEY, REWRITTEN, TABLE
from tests.unit.metrics.test_metrics_recorder import EXAMPLES, FAILED

ROOT = Path(__file__).parents[3]
EVERY_LINE = {"message", "timestamp", "level", "logger"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """What was written since the last look; whatever a test sets up is undone."""
    loggers = [logging.getLogger(), *map(logging.getLogger, ("firnline", "SQLQueryContextLogger", "py4j"))]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    hooks = sys.excepthook, threading.excepthook
    yield lambda: capsys.readouterr().err
    logging.captureWarnings(capture=False)
    sys.excepthook, threading.excepthook = hooks
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


def lines(stderr: Callable[[], str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stderr().splitlines()]


def test_a_rewrite_is_one_line_with_everything_about_it(stderr: Callable[[], str]) -> None:
    set_up_logging(LogSettings())
    log_event(GroupCommitted(REWRITTEN, 42, 3))
    (line,) = lines(stderr)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "message": "rewritten",
        "level": "info",
        "logger": "firnline",
        "run_id": "r1",
        "table": "lake.db.t",
        "partition": "day=2024-01-15, id_bucket=7",
        "reason": "6 small files, due from 5",
        "engine": "encode",
        "engine_reason": "tiny_row_groups",
        "files_in": 6,
        "files_out": 1,
        "bytes_in": 600,
        "bytes_out": 500,
        "rows_deleted": 2,
        "rows_out": 58,
        "rows_carried": 0,
        "rows_rebased": 0,
        "seconds": 1.5,
        "snapshot_id": 42,
    }


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_every_event_is_at_most_one_line_and_with_verbose_one(event: Event, stderr: Callable[[], str]) -> None:
    set_up_logging(LogSettings())
    log_event(event)
    assert len(lines(stderr)) <= 1
    set_up_logging(LogSettings(), verbose=True)
    log_event(event)
    (line,) = lines(stderr)
    assert line.keys() >= EVERY_LINE


def test_what_goes_wrong_is_a_warning_with_its_reason(stderr: Callable[[], str]) -> None:
    set_up_logging(LogSettings(level="WARNING"))
    log_event(FAILED)
    log_event(
        GroupDropped(
            run_id="r1",
            table=TABLE,
            key=KEY,
            reason="conflict",
            reaction="replan",
            message="a delete\ncame first",
            plan=GroupPlan({"p": "é"}),
        )
    )
    log_event(RunWouldRewrite(table=TABLE, groups=1, files=6, files_after=1, bytes=600))
    failed, dropped = lines(stderr)
    assert (failed["level"], failed["run_id"], failed["reason"], failed["stage"]) == (
        "warning", "r1", "conflict", "commit",
    )  # fmt: skip
    assert (dropped["partition"], dropped["reason"], dropped["error"]) == ("p=é", "conflict", "a delete\ncame first")


def test_lines_of_other_libraries_warnings_and_ended_threads_look_the_same(stderr: Callable[[], str]) -> None:
    set_up_logging(LogSettings(format="json"))
    logging.getLogger("kafka.conn").warning("no %s", "broker", extra={"node": 3})
    logging.getLogger("kafka.conn").info("nobody wants to know")
    logging.getLogger("py4j").error("a query stopped in mid-batch")
    try:
        raise ValueError("odd")  # noqa: TRY301 - to have a traceback
    except ValueError:
        LOG.exception("broke %s", "off")
    thread = threading.Thread(target=lambda: 1 / 0, name="worker")
    thread.start()
    thread.join()
    kafka, broke, ended = lines(stderr)
    assert (kafka["message"], kafka["logger"], kafka["level"], kafka["node"]) == (
        "no broker", "kafka.conn", "warning", 3,
    )  # fmt: skip
    assert (broke["message"], broke["stack_trace"].splitlines()[-1]) == ("broke off", "ValueError: odd")
    assert (ended["message"], "ZeroDivisionError" in ended["stack_trace"]) == ("thread worker ended", True)


def spark_conf(master: str, log: str, conf: dict[str, str]) -> dict[str, str]:
    given = {"master": master, "conf": {"spark.jars": "/none", **conf}}
    return session_conf(Settings(catalogs={"lake": {"uri": "http://c"}}, spark=given, logging={"format": log}))


@pytest.mark.parametrize("log", ["json", "console"])
def test_the_jvm_logs_as_firnline_does_whatever_options_a_user_gives_it(log: str) -> None:
    mine = {"spark.driver.extraJavaOptions": "-Dmine=1", "spark.executor.extraJavaOptions": "-Dmine=2"}
    conf = spark_conf("k8s://https://cluster", log, mine)
    assert mine.items() <= conf.items()
    file = (LOG_AS_JSON if log == "json" else LOG_FOR_PEOPLE).as_uri()
    assert f"-Dlog4j2.configurationFile={file}" in conf["spark.driver.defaultJavaOptions"].split()
    assert (LOG_AS_JSON.as_uri() in conf["spark.executor.defaultJavaOptions"]) == (log == "json")


def test_an_executor_in_a_pod_is_started_as_spark_wants_it(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho started $#\nexit 7\n")
    java.chmod(0o755)
    names = ("MEMORY", "CORES", "ID", "POD_IP", "POD_NAME", "RESOURCE_PROFILE_ID")
    done = subprocess.run(
        ["bash", str(ROOT / "deploy" / "docker" / "entrypoint.sh"), "executor"],
        env={
            "PATH": os.environ["PATH"],
            "JAVA_HOME": str(tmp_path),
            "SPARK_HOME": str(tmp_path),
            "SPARK_DRIVER_URL": "spark://driver",
            "SPARK_APPLICATION_ID": "a",
            "SPARK_RESOURCE_PROFILE_ID": "0",
            **{f"SPARK_EXECUTOR_{name}": "1" for name in names},
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 7
    assert done.stdout.startswith("started ")


@pytest.mark.parametrize(
    ("chosen", "terminal", "as_json"),
    [("auto", True, False), ("auto", False, True), ("json", True, True), ("console", False, False)],
)
def test_people_get_columns_and_machines_json(
    chosen: Any, terminal: bool, as_json: bool, stderr: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    to = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", to)
    set_up_logging(LogSettings(format=chosen))
    log_event(GroupCommitted(replace(REWRITTEN, run_id="r7"), 42))
    text = to.getvalue()
    assert text.startswith("{") == as_json
    assert "r7" in text
    assert ("\x1b[" in text) == terminal * (not as_json)
