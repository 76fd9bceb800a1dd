"""What an operator does to a working service: pause, change settings, drain, limit. One life, then a second one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from compactor.locations import plain_path
from compactor.runs.usage_file import NAME
from tests.integration.service_process import ServiceProcess, Site, in_process, label, log_lines, site, wait_for
from tests.integration.test_service_ends import MANY, wait_until_mid_rewrite
from tests.services.processes import python_workers

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Site]:
    sections = {"tables": {"include": ["db.in_*"], "observe": ["db.*"]}, "limits": {"bytes_per_hour": "10GB"}}
    with site(tmp_path_factory.mktemp("controls"), broker, **sections) as made:
        yield made


@pytest.fixture(scope="module")
def running(shared: Site) -> ServiceProcess:
    return shared.started()


def edit(shared: Site, **sections: Any) -> None:
    shared.config.write_text(yaml.safe_dump({**yaml.safe_load(shared.config.read_text()), **sections}))


def details(service: ServiceProcess) -> dict[str, str]:
    answer = service.get("/readyz")
    assert answer is not None
    assert answer[0] == 200, answer
    found: dict[str, str] = json.loads(answer[1])["details"]
    return found


def status(service: ServiceProcess) -> dict[str, Any]:
    answer = service.get("/api/v1/status")
    assert answer is not None
    found: dict[str, Any] = json.loads(answer[1])
    return found


@contextmanager
def held_in_mid_rewrite(shared: Site, running: ServiceProcess) -> Iterator[None]:
    """Spark's Python workers stand still while the block runs, so the run that they work for cannot end."""
    wait_until_mid_rewrite(shared, running)
    workers = python_workers(running.pid)
    assert workers
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_a_pause_during_a_run_ends_it_before_its_commit(shared: Site, running: ServiceProcess) -> None:
    events = shared.append("in_paused", **MANY)
    rows = shared.rows("in_paused")
    shared.publish(*events)
    with held_in_mid_rewrite(shared, running):
        assert in_process(shared.config, "pause", "db.in_pau*", "--reason", "audit").returncode == 0
        running.wait_metric("firnline_paused_tables")
        pauses = status(running)["pauses"]
        assert [(each["glob"], each["reason"]) for each in pauses] == [("db.in_pau*", "audit")]
    running.wait_metric("firnline_run_failures_total", reaction="stop")
    wait_for("its outputs to go", lambda: not shared.unreferenced("in_paused"))
    assert shared.operations("in_paused") == ["append"] * 5
    assert shared.rows("in_paused") == rows
    shared.publish(*shared.append("in_other"))
    wait_for("the rewrite of another table", lambda: "replace" in shared.operations("in_other"))
    assert shared.operations("in_paused") == ["append"] * 5
    assert running.metrics().total("firnline_table_due_seconds", **label("in_paused")) == 0, "it pages nobody"
    assert in_process(shared.config, "resume").returncode == 0
    wait_for("the rewrite", lambda: "replace" in shared.operations("in_paused"))
    assert shared.operations("in_paused").count("replace") == 1
    assert shared.rows("in_paused") == rows


def test_a_changed_file_makes_an_observed_table_a_rewritten_one(shared: Site, running: ServiceProcess) -> None:
    shared.publish(*shared.append("late"))
    wait_for("its count", lambda: running.metrics().total("firnline_table_small_files", **label("late")) == 24)
    assert running.metrics().total("firnline_table_acted_on", **label("late")) == 0
    edit(shared, tables={"include": ["db.in_*", "db.late"], "observe": ["db.*"]}, history={"table": "ops.history"})
    wait_for("its rewrite", lambda: shared.operations("late")[-1] == "replace")
    assert details(running)["settings"] == "need a restart: history.table"
    lines = [line for line in log_lines(running.log_text) if line["message"] == "settings reloaded"]
    assert [line["changed"] for line in lines] == [["tables.include"]]


def test_a_file_that_is_not_valid_changes_nothing(shared: Site, running: ServiceProcess) -> None:
    good = shared.config.read_text()
    shared.config.write_text("catalogs: {lake: rest}\n")
    os.kill(running.pid, signal.SIGHUP)
    wait_for("the report", lambda: "not valid" in details(running).get("settings", ""))
    assert running.metrics().total("firnline_settings_refused") == 1
    shared.publish(*shared.append("in_meanwhile"))
    wait_for("a rewrite", lambda: shared.operations("in_meanwhile")[-1] == "replace")
    edit_back = yaml.safe_load(good)
    del edit_back["history"]
    shared.config.write_text(yaml.safe_dump(edit_back))
    os.kill(running.pid, signal.SIGHUP)
    wait_for("the reload", lambda: "settings" not in details(running))
    assert running.metrics().total("firnline_settings_refused") == 0


def test_what_was_spent_is_on_the_status_page_and_beside_the_checkpoint(shared: Site, running: ServiceProcess) -> None:
    (budget,) = status(running)["limits"]["budgets"]
    assert (budget["limit"], budget["tables"], budget["cap"]) == ("bytes_per_hour", "*", 10_000_000_000)
    assert 0 < budget["left"] < budget["cap"]

    def saved_for_all() -> list[dict[str, Any]] | None:
        """The file is written every few seconds."""
        found = usage(shared)
        tables = {json.loads(cost["table"])[-1] for cost in found}
        return found if tables >= {"late", "in_paused", "in_meanwhile"} else None

    saved = wait_for("the costs of all three tables in the file", saved_for_all)
    paused = sum(cost["bytes"] for cost in saved if json.loads(cost["table"])[-1] == "in_paused")
    size = sum(Path(file).stat().st_size for file in shared.live_files("in_paused"))
    assert paused > size, "what the paused run read before it ended counts too"


def usage(shared: Site) -> list[dict[str, Any]]:
    file = Path(plain_path(shared.settings.state.checkpoint)) / NAME
    found: list[dict[str, Any]] = json.loads(file.read_text())["runs"] if file.exists() else []
    return found


@pytest.mark.slow
def test_a_drained_service_ends_after_its_run_starts_no_other_and_leaves_nothing(
    shared: Site, running: ServiceProcess
) -> None:
    """Last of the first life. A table that becomes due in between is counted and waits for the next life."""
    events = shared.append("in_drained", **MANY)
    rows = shared.rows("in_drained")
    shared.publish(*events)
    with held_in_mid_rewrite(shared, running):
        os.kill(running.pid, signal.SIGUSR1)
        wait_for("the drain", lambda: "runs" in details(running))
        shared.append("in_next")  # a sweep finds it: events are decoded by the workers that stand still
        running.wait_metric("firnline_table_due_partitions", 4, **label("in_next"))
        assert running.metrics().total("firnline_queued_runs") == 1
        assert running.metrics().total("firnline_running_runs") == 1
        assert "draining" in details(running)["runs"]
    assert running.ended() == 0, running.log_text[-3000:]
    assert shared.operations("in_drained") == ["append"] * 5 + ["replace"]
    assert shared.operations("in_next") == ["append"] * 6
    assert shared.rows("in_drained") == rows
    assert shared.unreferenced("in_drained") == set()
    lines = [line["message"] for line in log_lines(running.log_text)]
    assert any(line.startswith("draining") for line in lines)
    assert lines[-1] == "stopped"


@pytest.mark.slow
def test_the_next_life_knows_what_was_spent_by_namespace_and_a_reload_lifts_the_limit(shared: Site) -> None:
    """The budget of `db.in_*` is what the first life has used, so its tables wait; another table does not."""
    spent = sum(cost["bytes"] for cost in usage(shared) if json.loads(cost["table"])[-1].startswith("in_"))
    tables = {"include": ["db.in_*", "db.late", "db.free"]}
    edit(shared, tables=tables, limits={"namespaces": {"db.in_*": {"bytes_per_hour": spent + 1}}})
    second = shared.started()
    shared.publish(*shared.append("free"))
    wait_for("the rewrite of a table without a budget", lambda: "replace" in shared.operations("free"))
    second.wait_metric("firnline_limited_tables")
    budget = {"tables": "db.in_*", "limit": "bytes_per_hour", "cap": spent + 1, "left": 1}
    assert status(second)["limits"] == {"quiet": False, "held_back_tables": 1, "budgets": [budget]}
    assert shared.operations("in_next") == ["append"] * 6
    edit(shared, limits={})
    os.kill(second.pid, signal.SIGHUP)
    wait_for("the rewrite", lambda: "replace" in shared.operations("in_next"))
    assert second.terminate()[0] == 0, second.log_text[-3000:]
