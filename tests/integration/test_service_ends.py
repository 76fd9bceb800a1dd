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

from compactor.locations import plain_path
from tests.integration.service_process import (
    STOP_PROMISE,
    ServiceProcess,
    Site,
    files_of,
    label,
    log_lines,
    site,
    wait_for,
)

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


MANY = {"commits": 5, "parts": 16}
"""80 files into 16: one rewrite slot runs the output tasks one by one, so there is a middle to hit."""


def wait_until_mid_rewrite(place: Site, service: ServiceProcess) -> None:
    """Some outputs exist, others do not."""

    def some_outputs() -> bool:
        service.must_run()
        return len(place.outputs_in_flight()) >= 2

    wait_for("the first outputs of a rewrite", some_outputs, every=0.005)


def assert_clean(place: Site, table: str, rows: list[Any]) -> None:
    """Compacted, equal, nothing left behind, nothing missing."""
    wait_for("compaction", lambda: len(place.live_files(table)) == 16)
    wait_for("unreferenced outputs to go", lambda: not place.unreferenced(table))
    wait_for("the in-flight records to go", lambda: not place.in_flight().all())
    assert place.rows(table) == rows
    assert all(Path(path).exists() for path in files_of(place.view(table)))


@pytest.mark.slow
def test_a_file_group_that_kills_the_whole_container_twice_is_left_alone_and_the_others_are_compacted(
    place: Site,
) -> None:
    """Where the kernel kills a container's processes as a group, nothing can be noted at the death."""
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
    first = place.started()
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
    second = place.started()
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
        place.publish(*place.append("t"))
        place.append("silent")
        after.enter_context(read_only(tmp_path))
        before, topic = fingerprint(tmp_path), len(place.records(place.topic))
        service = place.started(observe=True, command=bound_by_modes())
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


def unstarted(service: ServiceProcess) -> list[dict[str, Any]]:
    """The log lines of runs that `--observe` did not start. The last line may still be half written."""
    lines = service.log_text.rpartition("\n")[0]
    return [line for line in log_lines(lines) if line["message"] == "would rewrite"]
