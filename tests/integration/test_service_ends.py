"""The service killed, stopped and forbidden to write: nothing is lost, nothing is left behind."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient, NewTopic

from compactor.locations import plain_path
from tests.integration.service_process import (
    STOP_PROMISE,
    ServiceProcess,
    Site,
    files_of,
    firnline,
    label,
    log_lines,
    site,
    wait_for,
)

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


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


@pytest.mark.slow
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
    code, seconds = second.terminate()
    assert (code, seconds < STOP_PROMISE) == (0, True)
    log_lines(first.log_text)
    assert [line["logger"] for line in log_lines(second.log_text) if line["message"] == "stopped"] == ["firnline"]


@pytest.mark.slow
def test_a_file_group_that_kills_the_whole_container_twice_is_left_alone_and_the_others_are_compacted(
    place: Site,
) -> None:
    """Where the kernel kills a container's processes as a group, nothing can be noted at the death."""
    place.create("t")
    place.append("t", **MANY)
    rows = place.rows("t")
    data = Path(plain_path(place.view("t").metadata.location)) / "data" / "part=p03"
    known, lives = set(data.iterdir()), 0

    def killed_or_done() -> bool:
        if {*data.iterdir()} - known:
            os.killpg(service.pid, signal.SIGKILL)
            return True
        return len(place.live_files("t")) == 20

    while len(place.live_files("t")) == 80:
        lives += 1
        assert lives <= 3
        service = place.start()
        wait_for("a death or the end", killed_or_done, every=0.002)
        known |= {*data.iterdir()}
    assert lives == 3
    assert sorted(str(path).count("part=p03") for path in place.live_files("t")) == [0] * 15 + [1] * 5
    assert place.rows("t") == rows
    assert "the service was killed twice while it rewrote these files" in service.log_text
    service.wait_ready()
    assert service.terminate()[0] == 0


def test_sigterm_in_mid_rewrite_ends_well_and_the_next_life_resumes(place: Site) -> None:
    first = place.start()
    first.wait_ready()
    place.create("t")
    events = place.append("t", **MANY)
    place.publish(*events * 40)
    rows = place.rows("t")
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
    heard = second.wait_metric("firnline_events_total", len(new)).total("firnline_events_total")
    assert len(new) <= heard < old, "events from before the restart were read again"
    assert second.metrics().total("firnline_ledger_recounts_total") == 0
    assert place.rows("t") != rows
    code, seconds = second.terminate()
    assert (code, seconds < STOP_PROMISE) == (0, True)


def test_observe_mode_writes_nothing_at_all(tmp_path: Path, broker: str) -> None:
    with ExitStack() as after:
        place = after.enter_context(site(tmp_path, broker, service={"shard": "1/4"}))
        place.create("t")
        place.publish(*place.append("t"))
        place.create("silent")
        place.append("silent")
        after.enter_context(read_only(tmp_path))
        before, topic = fingerprint(tmp_path), len(place.records(place.topic))
        service = place.start(observe=True, command=bound_by_modes())
        service.wait_ready()
        place.send(b"rubbish")
        wait_for("two runs that were not started", lambda: len(unstarted(service)) >= 2)
        assert {(line["files_in"], line["files_out"]) for line in unstarted(service)} == {(24, 4)}
        metrics = service.metrics()
        assert metrics.total("firnline_commits_total") == 0
        assert metrics.total("firnline_shard_members") == 1, "it looks at all tables"
        assert service.wait_metric("firnline_dead_letters_total").total("firnline_dead_letters_total") == 1
        code, seconds = service.terminate()
        assert (code, seconds < STOP_PROMISE) == (0, True), service.log_text[-3000:]
        lines = log_lines(service.log_text)
        (would,) = [line for line in lines if line["message"] == "would rewrite" and line["table"] == "lake.db.t"]
        assert (would["files_in"], would["files_out"]) == (24, 4)
        assert fingerprint(tmp_path) == before
        assert len(place.records(place.topic)) == topic + 1
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
    wait_for("the letter that is given up", lambda: "1 dead letters could not be written" in service.log_text)
    place.producer.send(place.topic, b"rubbish", timestamp_ms=10**13).get(30)
    place.create("t")
    place.publish(*place.append("t"))
    wait_for("the rewrite", lambda: "replace" in place.operations("t"))
    health = service.get("/healthz")
    assert health is not None
    assert health[0] == 200, health
    service.must_run()


def unstarted(service: ServiceProcess) -> list[dict[str, Any]]:
    """The log lines of runs that `--observe` did not start. The last line may still be half written."""
    lines = service.log_text.rpartition("\n")[0]
    return [line for line in log_lines(lines) if line["message"] == "would rewrite"]
