"""The service as its users run it: a process, a real broker, a real catalog; killed, stopped, misled and watched."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kafka.admin import KafkaAdminClient, NewTopic

from compactor.commit.in_flight import InFlightRecords, Owner, Record, sweep
from compactor.debt.table_changes import live_counts
from compactor.iceberg.tables import file_sizes
from compactor.locations import plain_path
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import Request, TablePlan, plan_table
from compactor.rewrite.tasks.input_metrics import TaskId
from compactor.rewrite.tasks.runner import OutputTaskRunner, WrittenOutput
from compactor.spark.java_table import JavaTable
from deploy.generate.dashboards import DASHBOARDS
from streaming.commit_events import canonical
from tests.conftest import Lake
from tests.integration.service_process import (
    PATIENCE,
    STOP_PROMISE,
    ServiceProcess,
    Site,
    document,
    files_of,
    firnline,
    log_lines,
    site,
    wait_for,
)
from tests.services.prometheus import Prometheus, prometheus, shown
from tests.services.prometheus import installed as prometheus_installed

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

CONNECT = Path(__file__).parents[1] / "contracts" / "fixtures" / "kafka_connect"


def label(table: str) -> dict[str, str]:
    return {"catalog": "lake", "table": f"lake.db.{table}"}


# One service for the tests of its daily work


MANY_MANIFESTS = 20
TWO = 2
MOVED_BY_A_REWRITE = {"Commits per hour", "Files per hour", "Bytes", "Bytes by engine", "From event to compacted"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Site]:
    rules = {"include": ["db.in_*", "db.orders"], "exclude": ["db.never_*"]}
    topic = f"told-{uuid.uuid4().hex[:8]}"
    hooks = [
        {"kind": "kafka", "topic": topic},
        {"kind": "spark"},
        {"kind": "doris", "uri": "mysql://127.0.0.1:1", "timeout_seconds": 1},
    ]
    manifests = {"min_count": MANY_MANIFESTS, "min_reduction": 2}
    history = {"table": "ops.history", "batch_seconds": 1}
    folder = tmp_path_factory.mktemp("shared")
    with site(folder, broker, tables=rules, hooks=hooks, manifests=manifests, history=history) as made:
        yield made


@pytest.fixture(scope="module")
def running(shared: Site) -> ServiceProcess:
    """Started with the events of six commits waiting."""
    shared.create("in_loop")
    shared.create("in_damaged")
    shared.append("in_damaged", commits=2)
    shared.publish(*shared.append("in_loop"))
    service = shared.start()
    service.answers_at_start = service.wait_ready()
    return service


def test_waiting_events_become_one_replace_commit(shared: Site, running: ServiceProcess) -> None:
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
    assert metrics.total("firnline_event_to_compacted_seconds_count") == 1
    assert metrics.total("firnline_event_to_ledger_seconds_count") >= 1
    assert 0 < metrics.total("firnline_event_to_ledger_seconds_sum") < PATIENCE
    assert_counts_are_exact(shared, running, "in_loop")
    assert shared.unreferenced("in_loop") == set()
    assert shared.in_flight().all() == []


def test_others_are_told_of_a_commit(shared: Site, running: ServiceProcess) -> None:
    """By every hook; one that fails is counted, and nobody waits for it."""
    wait_for("the hooks", lambda: running.metrics().total("firnline_hook_calls_total") >= 3)
    metrics = running.metrics()
    assert metrics.total("firnline_hook_calls_total", hook="0-kafka", result="told") >= 1
    assert metrics.total("firnline_hook_calls_total", hook="1-spark", result="told") >= 1
    assert metrics.total("firnline_hook_calls_total", hook="2-doris", result="failed") >= 1
    told = [json.loads(record.value) for record in shared.records(shared.settings.hooks[0].topic)]
    assert {"type", "snapshot-id", "run-id"} <= told[0].keys()
    assert (told[0]["catalog"], told[0]["namespace"], told[0]["name"]) == ("lake", ["db"], "in_loop")
    assert (told[0]["files-in"], told[0]["files-out"]) == (24, 4)
    assert shared.view("in_loop").metadata.snapshot_by_id(told[0]["snapshot-id"]) is not None


def test_many_manifests_become_few(shared: Site, running: ServiceProcess) -> None:
    """A writer that appends without merging leaves a manifest a commit, whatever becomes of its files."""
    shared.create("in_manifests")
    shared.publish(*shared.append("in_manifests", commits=MANY_MANIFESTS))
    rows = shared.rows("in_manifests")
    metrics = running.wait_metric("firnline_manifest_rewrites_total")
    assert metrics.total("firnline_manifests_merged_total") > MANY_MANIFESTS / 2
    assert shared.rows("in_manifests") == rows
    wait_for(
        "the ledger to hear of it",
        lambda: running.metrics().total("firnline_table_manifests", table="lake.db.in_manifests") < MANY_MANIFESTS / 2,
    )


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
        assert firing <= {"FirnlineDeadLetters", "FirnlineHookFails"}
    promtool = shutil.which("promtool")
    assert promtool is not None
    scraped = running.get("/metrics")
    assert scraped is not None
    done = subprocess.run([promtool, "check", "metrics"], input=scraped[1], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def _value(server: Prometheus, expression: str) -> str:
    found = server.query(expression)
    return str(found[0]["value"][1]) if found else "0"


def test_bad_events_are_dead_lettered_and_nothing_else_happens(shared: Site, running: ServiceProcess) -> None:
    shared.create("orders")
    shared.create("in_events")
    events = shared.append("in_events", commits=3)
    shared.append("orders", commits=1)
    before = running.metrics()
    shared.publish(*events)
    wait_for("the three commits' count", lambda: counted(running, "in_events", files=12))
    shared.publish(events[1], events[0])  # duplicates, and out of order
    shared.publish(replace(events[0], event_id=str(uuid.uuid4()), timestamp_ms=events[0].timestamp_ms - 3_600_000))
    shared.send((CONNECT / "commit_to_table.bin").read_bytes())  # names db.orders in a catalog of its own
    shared.send((CONNECT / "start_commit.bin").read_bytes())  # announces no commit
    nowhere, elsewhere = shared.event("nowhere"), shared.event("in_events", catalog="attic")
    bad: dict[str, bytes | None] = {
        "unrecognised": b"\x00\xffrubbish",
        "tombstone": None,
        "invalid_json": b'{"event-id": "x", ',
        "unknown_table": canonical.encode(nowhere)[1],
        "unknown_catalog": canonical.encode(elsewhere)[1],
    }
    for value in bad.values():
        shared.send(value, b"a key", [("trace", b"17")])
    letters = wait_for("five dead letters", lambda: at_least(5, shared.records(f"{shared.topic}-dead")))
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
    assert len(letters) == 5
    assert told == bad
    for reason in told:
        after = running.wait_metric("firnline_dead_letters_total", reason=reason)
        assert after.total("firnline_dead_letters_total", reason=reason) == 1
    assert after.total("firnline_dead_letters_total") - before.total("firnline_dead_letters_total") == 5
    assert after.total("firnline_events_total", source="kafka_connect") == 1
    for table in ("in_events", "orders"):
        assert_counts_are_exact(shared, running, table)
    # Three files a partition are not due: what waits is the first append, not the forged hour before it.
    waiting = running.metrics().total("firnline_table_waiting_seconds", **label("in_events"))
    assert 0 < waiting < time.time() - events[0].timestamp_ms / 1000 + 1
    assert running.get("/readyz")[0] == 200


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
        wait_for(f"{table}'s count", lambda table=table: counted(running, table, files=4))
    for table in ("out_silent", "in_off"):
        metrics = wait_for(f"{table}'s count", lambda table=table: counted(running, table, files=24))
        assert metrics.total("firnline_table_due_partitions", **label(table)) == 4
        assert metrics.total("firnline_table_acted_on", **label(table)) == 0
        assert shared.operations(table) == ["append"] * 6
    assert not any("never_seen" in str(labels) for _, labels in metrics.samples)
    with shared.catalogs.catalog("lake").load_table(("db", "in_off")).transaction() as change:
        change.set_properties({"firnline.enabled": "true"})
    wait_for("the switched-on table's rewrite", lambda: "replace" in shared.operations("in_off"))


def test_an_unreadable_table_stops_no_other_and_recovers(shared: Site, running: ServiceProcess) -> None:
    metadata = Path(plain_path(shared.view("in_damaged").metadata_location))
    wait_for("its first count", lambda: counted(running, "in_damaged", files=8))
    aside = metadata.with_suffix(".aside")
    metadata.rename(aside)
    try:
        metrics = running.wait_metric("firnline_table_stale", **label("in_damaged"))
        assert metrics.total("firnline_stale_tables") == 1
        assert metrics.total("firnline_unreadable_tables_total", reason="table_unreadable") >= 1
        assert metrics.total("firnline_table_files", **label("in_damaged")) == 8  # the last known count
        shared.create("in_other")
        shared.publish(*shared.append("in_other"))
        wait_for("another table's rewrite", lambda: "replace" in shared.operations("in_other"))
    finally:
        aside.rename(metadata)
    wait_for("recovery", lambda: running.metrics().total("firnline_stale_tables") == 0)
    assert_counts_are_exact(shared, running, "in_damaged")


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


def test_its_history_tells_every_decision(shared: Site, running: ServiceProcess) -> None:
    """After its end: what waited has been written."""
    rows = document(firnline(shared.config, "history", "db.in_loop", "--output", "json"))
    done = [row for row in rows if row["decision"] == "done"]
    assert {row["run_id"] for row in done} == {
        snapshot.summary.additional_properties["firnline.run-id"]
        for snapshot in shared.view("in_loop").metadata.snapshots
        if snapshot.summary is not None and snapshot.summary.operation.value == "replace"
    }
    assert sorted(row["partition"] for row in done) == [f"part=p{number:02d}" for number in range(4)]
    rows = document(firnline(shared.config, "history", "db.in_events", "--output", "json"))
    assert sorted((row["decision"], row["reason"], row["partition"]) for row in rows) == [
        ("skipped", "not_due", f"part=p{number:02d}") for number in range(4)
    ]
    (row, *_) = document(firnline(shared.config, "history", "db.out_silent", "--output", "json"))
    assert (row["decision"], row["reason"], row["partition"]) == ("skipped", "not_acted_on", None)


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
            "firnline_table_small_bytes": sum(counts.small_bytes for counts in partitions),
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
        wait_for("the ledger to equal a recount", equal, seconds=30)
    except AssertionError:
        raise AssertionError(f"{table}: ledger and recount differ: {last}") from None


# Ends of all kinds


MANY = {"commits": 5, "parts": 16}
"""80 files into 16: one rewrite slot runs the output tasks one by one, so there is a middle to hit."""


@pytest.fixture
def place(tmp_path: Path, broker: str) -> Iterator[Site]:
    with site(tmp_path, broker) as made:
        yield made


def wait_until_mid_rewrite(place: Site, service: ServiceProcess) -> None:
    """Some outputs exist, others do not."""

    def some_outputs() -> bool:
        service.must_run()
        return len(place.outputs_in_flight()) >= 2

    wait_for("the first outputs of a rewrite", some_outputs, every=0.005)


def assert_clean(place: Site, table: str, rows: list[Any]) -> None:
    """Compacted, equal, nothing left behind, nothing missing."""
    wait_for("compaction", lambda: len(place.live_files(table)) == 16)
    wait_for("unreferenced outputs to go", lambda: not place.unreferenced(table), seconds=90)
    wait_for("the in-flight records to go", lambda: not place.in_flight().all(), seconds=90)
    assert place.rows(table) == rows
    assert all(Path(path).exists() for path in files_of(place.view(table)))


def test_a_kill_in_mid_rewrite_leaves_nothing_behind(place: Site) -> None:
    place.create("t")
    place.publish(*place.append("t", **MANY))
    rows = place.rows("t")
    first = place.start()
    wait_until_mid_rewrite(place, first)
    first.kill()
    assert "replace" not in place.operations("t"), "killed too late to test anything"
    assert place.unreferenced("t"), "killed too early to test anything"
    assert place.rows("t") == rows
    assert len(place.in_flight().all()) == 1
    second = place.start()
    second.wait_ready()
    assert_clean(place, "t", rows)
    assert second.metrics().total("firnline_unreferenced_files_removed_total") >= 2
    assert place.operations("t").count("replace") == 1


def test_sigterm_in_mid_rewrite_ends_well_and_the_next_life_resumes(place: Site) -> None:
    place.create("t")
    events = place.append("t", **MANY)
    place.publish(*events * 40)  # more than sweeps add on a busy machine
    rows = place.rows("t")
    first = place.start()
    wait_until_mid_rewrite(place, first)
    code, seconds = first.terminate()
    assert code == 0, first.log_text[-3000:]
    assert seconds < STOP_PROMISE
    assert "Traceback" not in first.log_text
    assert "StackOverflowError" not in first.log_text
    assert place.rows("t") == rows
    second = place.start()
    second.wait_ready()
    assert_clean(place, "t", rows)
    new = place.append("t", commits=2, parts=16)
    place.publish(*new)
    wait_for("the new events", lambda: second.metrics().total("firnline_table_files", **label("t")) == 48)
    old = len(events) * 40
    heard = second.metrics().total("firnline_events_total")
    assert len(new) < heard < old, "events from before the restart were read again"
    assert second.metrics().total("firnline_ledger_recounts_total") == 0
    assert place.rows("t") != rows
    code, seconds = second.terminate()
    assert (code, seconds < STOP_PROMISE) == (0, True)


# A commit that was sent before a crash


def append_files(lake: Lake, table: str, commits: int) -> None:
    for number in range(commits):
        lake.sql(
            f"INSERT INTO lake.{table} SELECT id + {number * 3000}, sha2(cast(id AS string), 512) FROM range(3000)"
        )


@pytest.fixture
def sent(lake: Lake, table_name: str, tmp_path: Path) -> LateCommit:
    """A run of a process that is dead by now: outputs written, record in place, commit sent but not landed."""
    lake.sql(f"CREATE TABLE lake.{table_name} (id bigint, s string) USING iceberg PARTITIONED BY (bucket(2, id))")
    append_files(lake, table_name, 5)
    return LateCommit(lake, table_name, tmp_path)


class LateCommit:
    def __init__(self, lake: Lake, table: str, folder: Path) -> None:
        self.lake, self.table = lake, table
        self.run_id = str(uuid.uuid4())
        self.now = time.time()
        self.rows = lake.rows(table)
        self.records = InFlightRecords(f"file://{folder}/in-flight", dead_owner(), 60, lambda: self.now)
        view = lake.view(table)
        policy = lake.settings.policy.for_table(view.name)
        self.plan: TablePlan = plan_table(view, policy, ManifestCache(1 << 20), Request())
        self.base = JavaTable.load(lake.session, view, self.plan.snapshot_id)
        runner = OutputTaskRunner(lake.session, self.base, self.plan, self.run_id)
        self.record: Record = self.records.open(self.run_id, view, runner.output_files, runner.output_folders)
        self.done: list[WrittenOutput] = [
            runner.rewrite(TaskId(number, index))
            for number, group in enumerate(self.plan.groups)
            for index in range(len(group.file_group.tasks))
        ]
        self.outputs = [Path(plain_path(path)) for path in self.record.files if not path.endswith("-part.parquet")]
        assert self.outputs
        assert all(path.exists() for path in self.outputs), [output.engine for output in self.done]

    def sweep(self, after_seconds: float = 15.0) -> int:
        self.now += after_seconds
        grace = self.lake.settings.service.grace_seconds
        removed = sweep(self.records, self.lake.catalogs, ManifestCache(1 << 20), now=self.now, grace_seconds=grace)
        return sum(removed.values())

    def lands(self) -> None:
        """What the catalog does with a request that was sent from `base`: no refresh, no retry."""
        operation = self.base.handle.newRewrite().validateFromSnapshot(self.base.snapshot_id)
        for written in self.done:
            for index in range(written.scan_tasks.size()):
                operation.deleteFile(written.scan_tasks.get(index).file())
            for output in written.outputs:
                operation.addFile(output)
        operation.commit()

    def references_exist(self) -> bool:
        return all(Path(path).exists() for path in files_of(self.lake.view(self.table)))


def dead_owner() -> Owner:
    """This machine's, of a process that is gone."""
    return replace(Owner.this_process(), pid=2**22 + 1)


def test_while_the_head_stands_still_a_late_commit_may_land(sent: LateCommit) -> None:
    for _ in range(5):
        assert sent.sweep() == 0
    sent.lands()
    assert sent.references_exist()
    for _ in range(4):
        assert sent.sweep() == 0
    assert sent.references_exist()
    assert sent.lake.rows(sent.table) == sent.rows
    assert sent.records.all() == []


def test_after_the_grace_period_nothing_waits_for_a_late_commit(sent: LateCommit) -> None:
    assert sent.sweep() == 0
    assert sent.sweep(sent.lake.settings.service.grace_seconds + 1) == len(sent.outputs)
    assert sent.sweep() == 0
    assert sent.records.all() == []


def test_a_moved_head_keeps_a_late_commit_out_and_its_outputs_go(sent: LateCommit) -> None:
    assert sent.sweep() == 0  # notes the head
    sent.lake.compact(sent.table)  # the next life does the same work again
    assert sent.sweep() == len(sent.outputs)
    assert not any(path.exists() for path in sent.outputs)
    with pytest.raises(Exception, match=r"(?i)cannot commit|missing required files|out of date|stale"):
        sent.lands()
    assert sent.references_exist()
    assert sent.lake.rows(sent.table) == sent.rows
    sent.sweep()
    assert sent.records.all() == []


def test_a_head_that_moved_before_the_first_look_proves_nothing(sent: LateCommit) -> None:
    """Somebody appended while nobody swept: the dead process may have seen that and rebased its commit on it."""
    append_files(sent.lake, sent.table, 1)
    rows = sent.lake.rows(sent.table)
    assert sent.sweep() == 0
    assert sent.sweep() == 0
    sent.base.refresh()
    sent.lands()
    for _ in range(4):
        sent.sweep()
    assert sent.references_exist()
    assert sent.lake.rows(sent.table) == rows


# Observe mode


def test_observe_mode_writes_nothing_at_all(tmp_path: Path, broker: str) -> None:
    with ExitStack() as after:
        place = after.enter_context(site(tmp_path, broker))
        place.create("t")
        place.publish(*place.append("t"))
        place.create("silent")
        place.append("silent")
        place.send(b"rubbish")
        after.enter_context(read_only(tmp_path))
        before, topic = fingerprint(tmp_path), len(place.records(place.topic))
        service = place.start(observe=True, command=bound_by_modes())
        service.wait_ready()
        metrics = service.wait_metric("firnline_would_rewrite_runs_total", at_least=2)
        assert metrics.total("firnline_would_rewrite_input_files_total") == 48
        assert metrics.total("firnline_would_rewrite_output_files_total") == 8
        assert metrics.total("firnline_commits_total") == 0
        assert service.wait_metric("firnline_dead_letters_total").total("firnline_dead_letters_total") == 1
        code, seconds = service.terminate()
        assert (code, seconds < STOP_PROMISE) == (0, True), service.log_text[-3000:]
        lines = log_lines(service.log_text)
        (would,) = [line for line in lines if line["message"] == "would rewrite" and line["table"] == "lake.db.t"]
        assert (would["files_in"], would["files_out"]) == (24, 4)
        assert fingerprint(tmp_path) == before
        assert len(place.records(place.topic)) == topic
        assert place.records(f"{place.topic}-dead") == []


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Everything but the service's log."""
    log = folder / "service-0.log"
    log.touch()
    paths = [path for path in (folder, *folder.rglob("*")) if path != log]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in paths}
    for path, mode in modes.items():
        path.chmod((mode | 0o555 if path.is_dir() else mode | 0o444) & ~0o222)
    try:
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


def bound_by_modes() -> list[str]:
    """Root without the capabilities that let it pass over file modes: read-only is read-only then."""
    if os.geteuid() == 0 and shutil.which("setpriv"):
        return ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
    return []


def fingerprint(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".log"
    }


# The command line


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Tables for the commands; no broker is needed."""
    made = Site(tmp_path_factory.mktemp("shelf"), "127.0.0.1:1")
    for table in ("one", "two", "eight", "shown"):
        made.create(table)
        made.append(table)
    return made


GROUP_KEYS = {
    "spec_id", "partition", "bucket", "engine", "reason", "files_in", "files_out", "bytes_in", "bytes_out", "rows_in",
    "rows_deleted", "rows_out",
}  # fmt: skip


@pytest.mark.parametrize(
    ("table", "cores"),
    [("one", 1), *(pytest.param(name, cores, marks=pytest.mark.slow) for name, cores in (("two", TWO), ("eight", 8)))],
)
def test_compact_prints_its_contract_whatever_the_cores(shelf: Site, table: str, cores: int) -> None:
    before, rows = shelf.view(table).snapshot.snapshot_id, shelf.rows(table)
    settings = {"FIRNLINE_SPARK__MASTER": f"local[{cores}]", "FIRNLINE_POLICY__TARGET_FILE_SIZE": "300000"}
    asked = ("compact", f"db.{table}", "--output", "json")
    foreseen = document(firnline(shelf.config, *asked, "--dry-run", **settings)) if cores == TWO else None
    assert shelf.view(table).snapshot.snapshot_id == before
    done = firnline(shelf.config, *asked, **settings)
    printed = document(done)
    known_before = ("spec_id", "partition", "bucket", "engine", "reason", "why", "files_in", "files_out", "bytes_in")
    if foreseen is not None:
        assert [[group[key] for key in known_before] for group in foreseen["groups"]] == [
            [group[key] for key in known_before] for group in printed["groups"]
        ]
    assert printed["table"] == f"lake.db.{table}"
    assert printed["snapshot_before"] == before
    assert printed["snapshot_after"] == shelf.view(table).snapshot.snapshot_id != before
    assert printed["operation"] == "replace"
    assert set(printed["seconds"]) == {"plan", "rewrite", "commit", "total"}
    assert len(printed["groups"]) == 4
    for group in printed["groups"]:
        assert set(group) >= GROUP_KEYS
        assert (group["files_in"], group["files_out"]) == (6, 2)
        assert (group["rows_in"], group["rows_deleted"], group["rows_out"]) == (6000, 0, 6000)
        assert set(group["partition"]) == {"part"}
        assert group["bytes_in"] > 0 < group["bytes_out"]
    assert shelf.rows(table) == rows
    assert shelf.operations(table).count("replace") == 1
    assert "Traceback" not in done.stderr


def test_plan_and_debt_print_json_alone(shelf: Site) -> None:
    plan = document(firnline(shelf.config, "plan", "db.shown", "--output", "json"))
    assert [group["files_in"] for group in plan["groups"]] == [6] * 4
    assert all(set(group) >= GROUP_KEYS for group in plan["groups"])
    assert plan["snapshot_before"] == shelf.view("shown").snapshot.snapshot_id
    debt = document(firnline(shelf.config, "debt", "db.shown", "--output", "json"))
    assert (debt["data_files"], debt["small_files"]) == (24, 24)
    assert {row["due"] for row in debt["partitions"]} == {True}
    every = document(firnline(shelf.config, "debt", "--output", "json"))
    assert {one["table"] for one in every} == {f"lake.db.{name}" for name in ("one", "two", "eight", "shown")}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("compact", "db.nothing"), 2, "table lake.db.nothing does not exist"),
        (("debt", "db.nothing", "--output", "json"), 2, "table lake.db.nothing does not exist"),
        (("plan", "nothing"), 2, "must look like namespace.table"),
        (("plan", "db.shown", "--where", "no_such_column = 1"), 2, "no_such_column"),
        (("plan", "db.shown", "--where", "part ="), 2, "part ="),
        (("run",), 3, "kafka.bootstrap_servers"),
    ],
)
def test_bad_input_ends_with_a_sentence(shelf: Site, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = firnline(shelf.config, *arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_bad_setting_names_its_key(shelf: Site, tmp_path: Path) -> None:
    done = firnline(shelf.config, "debt", FIRNLINE_POLICY__MIN_INPUT_FILES="one")
    assert (done.returncode, "policy.min_input_files" in done.stderr) == (2, True), done.stderr
    done = firnline(shelf.config, "debt", FIRNLINE_POLICY__MIN_FILES="5")
    assert (done.returncode, "policy.min_files" in done.stderr) == (2, True), done.stderr
    done = firnline(shelf.config, "run", FIRNLINE_STATE__CHECKPOINT="")
    assert (done.returncode, "state.checkpoint" in done.stderr) == (2, True), done.stderr
    done = firnline(tmp_path / "none.yaml", "debt")
    assert (done.returncode, "none.yaml" in done.stderr) == (2, True), done.stderr


def test_the_same_name_in_two_catalogs_needs_its_catalog(shelf: Site, tmp_path: Path) -> None:
    tree = yaml.safe_load(shelf.config.read_text())
    tree["catalogs"]["pond"] = dict(tree["catalogs"]["lake"])
    both = tmp_path / "both.yaml"
    both.write_text(yaml.safe_dump(tree))
    done = firnline(both, "debt", "db.shown")
    assert done.returncode == 2
    assert "must start with its catalog; configured catalogs: lake, pond" in done.stderr
    assert document(firnline(both, "debt", "lake.db.shown", "--output", "json"))["table"] == "lake.db.shown"


def test_a_catalog_that_does_not_answer_is_no_bad_input(shelf: Site, tmp_path: Path) -> None:
    tree = yaml.safe_load(shelf.config.read_text())
    tree["catalogs"]["lake"] = {"type": "rest", "uri": "http://127.0.0.1:1"}
    deaf = tmp_path / "deaf.yaml"
    deaf.write_text(yaml.safe_dump(tree))
    for arguments in (("debt", "db.shown"), ("compact", "db.shown"), ("run",)):
        done = firnline(deaf, *arguments)
        assert done.returncode == 3, done.stderr
        assert "catalog lake" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_request_is_done_once_whatever_the_thresholds(place: Site) -> None:
    place.create("t")
    place.publish(*place.append("t", commits=2, parts=3))
    rows = place.rows("t")
    service = place.start()
    service.wait_ready()
    wait_for("the ledger", lambda: service.metrics().total("firnline_table_small_files") == 6)
    assert place.operations("t").count("replace") == 0
    refused = firnline(place.config, "request", "db.t", "--where", "colour = 1")
    assert (refused.returncode, "is not a filter" in refused.stderr) == (2, True), refused.stderr
    for _ in range(2):
        assert firnline(place.config, "request", "db.t", "--where", "part = 'p01'").returncode == 0
    wait_for("the part that was asked for", lambda: len(place.live_files("t")) == 5)
    assert firnline(place.config, "request", "db.t").returncode == 0
    wait_for("the others", lambda: len(place.live_files("t")) == 3)
    assert firnline(place.config, "request", "db.t").returncode == 0
    wait_for("the last answer", lambda: service.metrics().total("firnline_runs_skipped_total") >= 1)
    assert place.operations("t").count("replace") == 2
    assert place.rows("t") == rows
    place.create("damaged")
    place.publish(*place.append("damaged", commits=2, parts=3))
    next(Path(plain_path(path)) for path in place.live_files("damaged") if "part=p01" in path).unlink()
    for part in ("p01", "p02"):  # what cannot be done is told, and stands in nobody's way
        assert firnline(place.config, "request", "db.damaged", "--where", f"part = '{part}'").returncode == 0
    wait_for("the part that is sound", lambda: len(place.live_files("damaged")) == 5)
    assert service.metrics().total("firnline_run_failures_total", reason="input_missing", reaction="give_up") == 1


@pytest.mark.slow
def test_a_request_outlives_the_service(place: Site) -> None:
    place.create("t")
    place.publish(*place.append("t", commits=2, parts=1))
    first = place.start(FIRNLINE_LIMITS__QUIET_HOURS='["00:00-12:00", "12:00-00:00"]')
    first.wait_ready()
    assert firnline(place.config, "request", "db.t").returncode == 0
    wait_for("the file", lambda: list(place.folder.rglob("requests.json")))
    assert first.terminate()[0] == 0
    assert len(place.live_files("t")) == 2
    place.start().wait_ready()
    wait_for("the rewrite", lambda: len(place.live_files("t")) == 1)
    wait_for("its end", lambda: [path.read_text() for path in place.folder.rglob("requests.json")] == ["[]"])


@pytest.mark.slow
def test_a_dead_letter_topic_that_refuses_stops_nothing_else(place: Site) -> None:
    """Nor does a record with a timestamp in another unit, beyond what pandas can hold."""
    admin = KafkaAdminClient(bootstrap_servers=place.broker)
    refusing = NewTopic(f"{place.topic}-dead", 1, 1, topic_configs={"max.message.bytes": "70"})
    lenient = NewTopic(place.topic, 1, 1, topic_configs={"message.timestamp.after.max.ms": str(2**63 - 1)})
    admin.create_topics([refusing, lenient], wait_for_metadata=True)
    admin.close()
    service = place.start()
    service.wait_ready()
    place.send(b"\x00\xff" * 200)
    wait_for("the stream's end", lambda: "dead-letters ended and is started again" in service.log_text)
    place.producer.send(place.topic, b"rubbish", timestamp_ms=10**13).get(30)
    place.create("t")
    place.publish(*place.append("t"))
    wait_for("the rewrite", lambda: "replace" in place.operations("t"))
    health = service.get("/healthz")
    assert health is not None
    assert health[0] == 200, health
    service.must_run()


def test_what_lies_outside_the_tables_filter_is_left_alone_and_said_so(tmp_path: Path, broker: str) -> None:
    rules = {"policy": {"tables": {"db.t": {"where": "part = 'p01'"}}}}
    with site(tmp_path, broker, **rules) as place:
        place.create("t")
        place.publish(*place.append("t", commits=5, parts=3))
        rows = place.rows("t")
        service = place.start()
        service.wait_ready()
        wait_for("the part inside the filter", lambda: len(place.live_files("t")) == 11)
        wait_for("nothing to be due", lambda: service.metrics().total("firnline_table_due_partitions") == 0)
        assert place.operations("t").count("replace") == 1
        assert place.rows("t") == rows
