"""The service as its users run it: a process, a real broker, a real catalog; misled and watched."""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compactor.debt.table_changes import live_counts
from compactor.iceberg.tables import file_sizes
from compactor.locations import plain_path
from compactor.manifests.cache import ManifestCache
from deploy.generate.dashboards import DASHBOARDS
from streaming.commit_events import canonical
from tests.integration.service_process import (
    STOP_PROMISE,
    Metrics,
    ServiceProcess,
    Site,
    in_process,
    label,
    log_lines,
    site,
    wait_for,
)
from tests.services.prometheus import Prometheus, prometheus, shown
from tests.services.prometheus import installed as prometheus_installed

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

CONNECT = Path(__file__).parents[1] / "contracts" / "fixtures" / "kafka_connect"


TWO = 2
MOVED_BY_A_REWRITE = {"Commits per hour", "Files per hour", "Bytes by engine", "From event to compacted"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Site]:
    sections = {
        "tables": {"include": ["db.in_*", "db.orders"], "exclude": ["db.never_*"]},
        "policy": {"tables": {"db.in_filtered": {"where": "part = 'p01'"}}},
        "hooks": [
            {"kind": "kafka", "topic": f"told-{uuid.uuid4().hex[:8]}"},
            {"kind": "trino", "uri": "http://127.0.0.1:1", "statement": "CALL f()"},
        ],
        "history": {"table": "ops.history"},
    }
    with site(tmp_path_factory.mktemp("shared"), broker, **sections) as made:
        yield made


@pytest.fixture(scope="module")
def running(shared: Site) -> ServiceProcess:
    """Started after six commits, whose events it does not read: a first start reads a topic from its end."""
    shared.publish(*shared.append("in_loop"))
    service = shared.start()
    service.answers_at_start = service.wait_ready()
    return service


def test_commits_from_before_the_first_start_become_one_replace_commit(shared: Site, running: ServiceProcess) -> None:
    rows = shared.rows("in_loop")
    running.wait_metric("firnline_commits_total")
    assert running.answers_at_start == [503, 200]
    assert shared.operations("in_loop") == ["append"] * 6 + ["replace"]
    assert len(shared.live_files("in_loop")) == 4
    assert shared.rows("in_loop") == rows
    metrics = wait_for("the ledger to hear the rewrite", lambda: counted(running, "in_loop", files=4))
    assert metrics.total("firnline_commits_total") == 1
    assert metrics.total("firnline_commit_input_files_total") == 24
    assert metrics.total("firnline_commit_output_files_total") == 4
    assert metrics.total("firnline_events_total") == metrics.total("firnline_event_to_compacted_seconds_count") == 0
    assert_counts_are_exact(shared, running, "in_loop")
    assert shared.unreferenced("in_loop") == set()
    assert [each for each in shared.in_flight().all() if each.catalog in shared.catalogs.names] == []


def test_an_event_is_timed_until_its_count_and_until_its_rewrite(shared: Site, running: ServiceProcess) -> None:
    shared.create("in_announced")

    def timed() -> Metrics | None:
        """Not so when the sweep, every 5 s here, finds the commits before their event is heard."""
        commits = running.metrics().total("firnline_commits_total")
        shared.publish(*shared.append("in_announced"))
        running.wait_metric("firnline_commits_total", commits + 1)
        metrics = running.metrics()
        return metrics if metrics.total("firnline_event_to_compacted_seconds_count") else None

    metrics = wait_for("a rewrite that an event asked for", timed)
    assert metrics.total("firnline_events_total", source="canonical") >= 1


@pytest.mark.slow
def test_others_are_told_of_a_commit(shared: Site, running: ServiceProcess) -> None:
    """By every hook; one that fails is counted, and nobody waits for it."""
    for hook, result in (("0-kafka", "told"), ("1-trino", "failed")):
        running.wait_metric("firnline_hook_calls_total", hook=hook, result=result)
    told = [json.loads(record.value) for record in shared.records(shared.settings.hooks[0].topic)]
    assert {"type", "snapshot-id", "run-id"} <= told[0].keys()
    assert (told[0]["catalog"], told[0]["namespace"], told[0]["name"]) == ("lake", ["db"], "in_loop")
    assert (told[0]["files-in"], told[0]["files-out"]) == (24, 4)
    assert shared.view("in_loop").metadata.snapshot_by_id(told[0]["snapshot-id"]) is not None


@pytest.mark.slow
@pytest.mark.skipif(not prometheus_installed(), reason="prometheus is not installed; `make test-monitoring` does it")
def test_a_real_prometheus_answers_every_panel_and_rule(shared: Site, running: ServiceProcess, tmp_path: Path) -> None:
    """Scraped from a service at work; where there is nothing to show, a panel shows that."""
    running.wait_metric("firnline_commits_total")
    shared.create("in_panels")
    with prometheus(tmp_path, f"127.0.0.1:{running.port}") as server:
        wait_for("two scrapes", lambda: float(_value(server, "count_over_time(firnline_build_info[1m])")) >= TWO)
        wait_for("the rules", lambda: all(rule["health"] == "ok" for rule in server.rules()))

        def rewritten_for_an_event() -> bool:
            """Not so when the sweep, every 5 s here, finds the commits before their event is heard."""
            commits = float(_value(server, "firnline_commits_total"))
            shared.publish(*shared.append("in_panels"))
            wait_for("the rewrite", lambda: float(_value(server, "firnline_commits_total")) > commits)
            return float(_value(server, "increase(firnline_event_to_compacted_seconds_count[1h])")) > 0

        wait_for("a rewrite that an event asked for", rewritten_for_an_event)
        for dashboard in DASHBOARDS:
            print(f"\n{dashboard.title}")
            for panel in dashboard.panels:
                for legend, expression in panel.queries:
                    asked = expression.replace("$table", ".*").replace("$__rate_interval", "30s")
                    found = server.query(asked)
                    assert found, f"{dashboard.title}, {panel.title}, {legend}: {asked}"
                    values = {each["value"][1] for each in found}
                    assert panel.title not in MOVED_BY_A_REWRITE or values - {"0", "NaN"}, f"{panel.title}: {values}"
                    print(f"  {panel.title:48} {shown(legend, found)}")
        assert float(_value(server, "firnline_commits_total")) >= 1
        firing = {rule["name"] for rule in server.rules() if rule.get("state") == "firing"}
        assert firing <= {"FirnlineIntakeBroken", "FirnlineHookFails"}
    promtool = shutil.which("promtool")
    assert promtool is not None
    scraped = running.get("/metrics")
    assert scraped is not None
    done = subprocess.run([promtool, "check", "metrics"], input=scraped[1], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def _value(server: Prometheus, expression: str) -> str:
    found = server.query(expression)
    return str(found[0]["value"][1]) if found else "0"


def test_the_sweep_finds_what_no_event_announced(shared: Site, running: ServiceProcess) -> None:
    for table in ("in_silent", "out_silent", "never_seen"):
        shared.create(table)
        shared.append(table)
    shared.create("in_off", **{"firnline.enabled": "false"})
    shared.create("out_on", **{"firnline.enabled": "true"})
    for table in ("in_off", "out_on"):
        shared.append(table)
    wait_for(
        "the included tables' rewrites", lambda: all("replace" in shared.operations(t) for t in ("in_silent", "out_on"))
    )
    for table in ("in_silent", "out_on"):
        wait_for(f"{table} to be compacted", lambda table=table: shared.is_compacted(table))
        wait_for(f"{table}'s count", lambda table=table: counted(running, table, files=len(shared.live_files(table))))
    for table in ("out_silent", "in_off"):
        metrics = wait_for(f"{table}'s count", lambda table=table: counted(running, table, files=24))
        assert metrics.total("firnline_table_due_partitions", **label(table)) == 4
        assert metrics.total("firnline_table_acted_on", **label(table)) == 0
        assert shared.operations(table) == ["append"] * 6
    assert not any("never_seen" in str(labels) for _, labels in metrics.samples)
    shared.set_properties("in_off", **{"firnline.enabled": "true"})
    wait_for("the switched-on table's rewrite", lambda: "replace" in shared.operations("in_off"))


def test_a_request_is_done_once_whatever_the_thresholds(shared: Site, running: ServiceProcess) -> None:
    shared.publish(*shared.append("in_asked", commits=2, parts=3))
    rows = shared.rows("in_asked")
    asked = label("in_asked")
    wait_for("the ledger", lambda: running.metrics().total("firnline_table_small_files", **asked) == 6)
    assert shared.operations("in_asked").count("replace") == 0
    refused = in_process(shared.config, "request", "db.in_asked", "--where", "colour = 1")
    assert (refused.returncode, "is not a filter" in refused.stderr) == (2, True), refused.stderr
    for _ in range(2):
        assert in_process(shared.config, "request", "db.in_asked", "--where", "part = 'p01'").returncode == 0
    wait_for("the part that was asked for", lambda: len(shared.live_files("in_asked")) == 5)
    assert in_process(shared.config, "request", "db.in_asked").returncode == 0
    wait_for("the others", lambda: len(shared.live_files("in_asked")) == 3)
    nothing_due = {"name": "firnline_runs_skipped_total", "reason": "nothing_due"}
    skipped = running.metrics().total(**nothing_due)
    assert in_process(shared.config, "request", "db.in_asked").returncode == 0
    wait_for("the last answer", lambda: running.metrics().total(**nothing_due) > skipped)
    assert shared.operations("in_asked").count("replace") == 2
    assert shared.rows("in_asked") == rows
    shared.publish(*shared.append("in_broken", commits=2, parts=3))
    next(Path(plain_path(path)) for path in shared.live_files("in_broken") if "part=p01" in path).unlink()
    for part in ("p01", "p02"):  # what cannot be done is told, and stands in nobody's way
        assert in_process(shared.config, "request", "db.in_broken", "--where", f"part = '{part}'").returncode == 0
    wait_for("the part that is sound", lambda: len(shared.live_files("in_broken")) == 5)
    assert running.metrics().total("firnline_run_failures_total", reason="input_missing", reaction="give_up") == 1


def test_what_lies_outside_the_tables_filter_is_left_alone_and_said_so(shared: Site, running: ServiceProcess) -> None:
    shared.publish(*shared.append("in_filtered", commits=5, parts=3))
    rows = shared.rows("in_filtered")
    wait_for("the part inside the filter", lambda: len(shared.live_files("in_filtered")) == 11)

    def left_alone() -> bool:
        """Partitions outside the filter look due until a plan has declined them."""
        metrics = counted(running, "in_filtered", files=11)
        return metrics is not None and metrics.total("firnline_table_due_partitions", **label("in_filtered")) == 0

    wait_for("its count, and that nothing is due", left_alone)
    assert shared.operations("in_filtered").count("replace") == 1
    assert shared.rows("in_filtered") == rows


def test_bad_events_are_dead_lettered_and_nothing_else_happens(shared: Site, running: ServiceProcess) -> None:
    shared.create("orders")
    events = shared.append("in_events", commits=3)
    shared.append("orders", commits=1)
    before = running.metrics()
    shared.publish(*events)
    wait_for("the three commits' count", lambda: counted(running, "in_events", files=12))
    shared.publish(events[1], events[0])  # duplicates, and out of order
    shared.publish(replace(events[0], event_id=str(uuid.uuid4()), timestamp_ms=events[0].timestamp_ms - 3_600_000))
    shared.send((CONNECT / "commit_to_table.bin").read_bytes())  # names db.orders in a catalog of its own
    shared.send((CONNECT / "start_commit.bin").read_bytes())  # announces no commit
    elsewhere = shared.event("in_events", catalog="attic")
    shared.publish(shared.event("nowhere"))
    bad: dict[str, bytes | None] = {
        "unrecognised": b"\x00\xffrubbish",
        "tombstone": None,
        "invalid_json": b'{"event-id": "x", ',
        "unknown_catalog": canonical.encode(elsewhere)[1],
    }
    for value in bad.values():
        shared.send(value, b"a key", [("trace", b"17")])
    letters = wait_for("four dead letters", lambda: at_least(4, shared.records(f"{shared.topic}-dead")))
    published = {(record.partition, record.offset): record for record in shared.records(shared.topic)}
    told = {}
    for letter in letters:
        headers = dict(letter.headers)
        original = published[int(headers["firnline.partition"]), int(headers["firnline.offset"])]
        assert (letter.key, letter.value) == (original.key, original.value)
        assert (letter.key, headers["trace"]) == (b"a key", b"17")
        assert headers["firnline.topic"] == shared.topic.encode()
        assert headers["firnline.detail"]
        told[headers["firnline.reason"].decode()] = letter.value
    assert len(letters) == 4
    assert told == bad
    for reason in told:
        after = running.wait_metric("firnline_dead_letters_total", reason=reason)
        assert after.total("firnline_dead_letters_total", reason=reason) == 1
    assert after.total("firnline_dead_letters_total") - before.total("firnline_dead_letters_total") == 4
    running.wait_metric("firnline_looks_total", outcome="missing")
    assert after.total("firnline_events_total", source="kafka_connect") == 1
    for table in ("in_events", "orders"):
        assert_counts_are_exact(shared, running, table)
    assert running.get("/readyz")[0] == 200


def test_it_stops_when_idle_and_says_so(shared: Site, running: ServiceProcess) -> None:
    """Last of the shared service's life."""
    code, seconds = running.terminate()
    assert code == 0, running.log_text[-3000:]
    assert seconds < STOP_PROMISE
    log = running.log_text
    assert "Traceback" not in log
    assert "Exception" not in log
    lines = log_lines(log)
    (committed,) = [line for line in lines if line["message"] == "committed" and line["table"] == "lake.db.in_loop"]
    assert (committed["files_in"], committed["files_out"], committed["groups"]) == (24, 4, 4)
    assert sum(line["message"] == "rewritten" and line["run_id"] == committed["run_id"] for line in lines) == 4


def counted(service: ServiceProcess, table: str, *, files: int) -> Any:
    metrics = service.metrics()
    return metrics if metrics.total("firnline_table_files", **label(table)) == files else None


def at_least(count: int, found: list[Any]) -> list[Any] | None:
    return found if len(found) >= count else None


def assert_counts_are_exact(place: Site, service: ServiceProcess, table: str) -> None:
    """Metrics against a count of our own, once no event is on its way."""

    def differences() -> dict[str, tuple[float, float]]:
        view = place.view(table)
        sizes = file_sizes(place.settings.policy.for_table(view.name), view.properties)
        partitions = live_counts(ManifestCache(1 << 20).read(view, view.manifests()), sizes).values()
        metrics = service.metrics()
        truth = {
            "firnline_table_files": sum(counts.data_files for counts in partitions),
            "firnline_table_small_files": sum(counts.small_files for counts in partitions),
            "firnline_table_data_bytes": sum(counts.data_bytes for counts in partitions),
            "firnline_table_records": sum(counts.records for counts in partitions),
        }
        told = {name: metrics.total(name, **label(table)) for name in truth}
        return {name: (told[name], truth[name]) for name in truth if told[name] != truth[name]}

    last: dict[str, tuple[float, float]] = {}

    def equal() -> bool:
        last.clear()
        last.update(differences())
        return not last

    try:
        wait_for("the ledger to equal a recount", equal)
    except AssertionError:
        raise AssertionError(f"{table}: ledger and recount differ: {last}") from None
