"""The whole service while a part of it is taken away: the broker, its JVM, the room on its volume."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kafka import KafkaProducer

from deploy.demo.broker import LocalBroker, new_broker
from tests.faults.cells import DURING, make_due
from tests.faults.scene import Scene
from tests.integration.service_process import STOP_PROMISE, label, site, wait_for
from tests.services.quick_java import quick_java

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]
SOON = {"kafka": {"options": {"default.api.timeout.ms": "5000", "request.timeout.ms": "4000"}}}


@dataclass
class BrokenSite:
    """A site with a broker of its own that can be stopped."""

    broker: LocalBroker
    up: ExitStack = field(default_factory=ExitStack)

    def start_broker(self) -> None:
        self.up.enter_context(quick_java(self.broker.running()))

    def stop_broker(self) -> None:
        self.up.close()

    def signal_broker(self, number: signal.Signals) -> None:
        """SIGSTOP: it accepts connections and answers nothing."""
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if str(self.broker.folder / "server.properties").encode() in line.read_bytes():
                    os.kill(int(line.parent.name), number)


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[BrokenSite]:
    made = BrokenSite(new_broker(tmp_path / "broker"))
    made.start_broker()
    yield made
    made.stop_broker()


def test_without_a_broker_the_service_finds_and_rewrites_commits_and_hears_events_again(
    tmp_path: Path, broken: BrokenSite
) -> None:
    with site(tmp_path / "site", broken.broker.address, **SOON) as place:
        place.create("t")
        service = place.start()
        service.wait_ready()
        place.publish(*place.append("t"))
        wait_for("the first rewrites", lambda: len(place.live_files("t")) == 4)
        broken.stop_broker()
        service.wait_metric("firnline_stream_ends_total", query="ledger", cause="kafka_unavailable")
        status, body = service.get("/readyz") or (0, "")
        assert (status, "kafka.bootstrap_servers" in body) == (503, True)
        assert (service.get("/healthz") or (0, ""))[0] == 200
        rows = place.append("t") and place.rows("t")
        wait_for("the rewrite of commits without events", lambda: len(place.live_files("t")) == 4)
        assert place.rows("t") == rows
        broken.start_broker()
        service.wait_ready()
        heard = service.metrics().total("firnline_events_total")
        place.__dict__["producer"] = KafkaProducer(bootstrap_servers=broken.broker.address)
        new = place.append("t", commits=2)
        place.publish(*new)
        service.wait_metric("firnline_events_total", heard + len(new))
        assert service.metrics().total("firnline_ledger_recounts_total", reason="history_gap") == 0
        code, seconds = service.terminate()
        assert (code, seconds < STOP_PROMISE) == (0, True)


def test_a_silent_broker_is_seen_before_kafkas_client_gives_up_and_delays_neither_looks_nor_the_stop(
    tmp_path: Path, broken: BrokenSite
) -> None:
    """Spark's query counts as active while Kafka's client waits: for three minutes."""
    with site(tmp_path / "site", broken.broker.address, service={"sweep_seconds": 600}) as place:
        place.create("t")
        service = place.start()
        service.wait_ready()
        place.publish(*place.append("t"))
        wait_for("the first rewrites", lambda: len(place.live_files("t")) == 4)
        broken.signal_broker(signal.SIGSTOP)
        wait_for("the service to see it", lambda: (service.get("/readyz") or (0, ""))[0] == 503)
        metrics = service.metrics()
        assert metrics.total("firnline_stream_ends_total") == 0, "seen by the end of the query only"
        assert metrics.total("firnline_service_ready") == 0
        assert "no Kafka broker answers" in (service.get("/readyz") or (0, ""))[1]
        assert "no Kafka broker answers" in service.log_text
        place.append("t")
        wait_for("the rewrite of commits without events", lambda: len(place.live_files("t")) == 4)
        broken.signal_broker(signal.SIGCONT)
        service.wait_ready()
        heard = service.metrics().total("firnline_events_total")
        new = place.append("t", commits=1)
        place.publish(*new)
        service.wait_metric("firnline_events_total", heard + len(new))
        broken.stop_broker()
        wait_for("the service to see it", lambda: (service.get("/readyz") or (0, ""))[0] == 503)
        code, seconds = service.terminate()
        assert (code, seconds < STOP_PROMISE) == (0, True), service.log_text[-3000:]


@pytest.mark.parametrize("component", ["broker", "catalog", "store"])
def test_sigterm_is_obeyed_in_time_while_a_server_stands_still_during_a_run(tmp_path: Path, component: str) -> None:
    scene = Scene(tmp_path)
    try:
        scene.site.create("t")
        make_due(scene, "t", DURING)
        scene.servers[component].freeze()
        time.sleep(5)  # calls are under way
        code, seconds = scene.service.terminate()
        assert (code, seconds < STOP_PROMISE) == (0, True), scene.service.log_text[-3000:]
    finally:
        scene.servers[component].thaw()
        scene.close()


def test_a_service_starts_without_a_broker_works_by_looks_and_joins_when_it_comes(
    tmp_path: Path, broken: BrokenSite
) -> None:
    broken.stop_broker()
    hook = {"kind": "kafka", "topic": "compacted"}
    with site(tmp_path / "site", broken.broker.address, hooks=[hook]) as place:
        place.create("t")
        place.append("t")
        service = place.start()
        wait_for("the rewrites", lambda: service.must_run() or len(place.live_files("t")) == 4)
        status, body = service.get("/readyz") or (0, "")
        assert (status, "no Kafka broker answers" in body) == (503, True)
        assert (service.get("/healthz") or (0, ""))[0] == 200
        broken.start_broker()
        service.wait_ready()
        new = place.append("t")
        place.publish(*new)
        service.wait_metric("firnline_events_total", len(new))
        wait_for("the event of the hook", lambda: place.records("compacted"))
        assert service.metrics().total("firnline_ledger_recounts_total", reason="history_gap") == 0
        code, seconds = service.terminate()
        assert (code, seconds < STOP_PROMISE) == (0, True)


def test_a_service_whose_jvm_is_killed_ends_and_says_why_and_the_next_goes_on(
    tmp_path: Path, broken: BrokenSite
) -> None:
    with site(tmp_path / "site", broken.broker.address) as place:
        place.create("t")
        first = place.start()
        first.wait_ready()
        os.kill(jvm_of(first.pid), signal.SIGKILL)
        wait_for("the end", lambda: first._process.poll() is not None, seconds=60)
        assert first._process.returncode not in (0, None)
        assert "Spark's JVM has ended" in first.log_text
        assert '"reason": "spark_lost"' in first.log_text
        place.publish(*place.append("t"))
        second = place.start()
        second.wait_ready()
        second.wait_metric("firnline_table_acted_on", **label("t"))
        second.wait_metric("firnline_commits_total")
        assert second.terminate()[0] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small volume takes root")
def test_a_full_checkpoint_volume_loses_nothing_and_work_goes_on_once_there_is_room(
    tmp_path: Path, broken: BrokenSite
) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(volume)], check=True)
    try:
        sections = {"state": {"checkpoint": f"file://{volume}/checkpoint"}}
        with site(tmp_path / "site", broken.broker.address, **sections) as place:
            place.create("t")
            service = place.start()
            service.wait_ready()
            filler = volume / "filler"
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            place.publish(*place.append("t"))
            service.wait_metric("firnline_stream_ends_total", 2, query="ledger", cause="unexpected")
            service.wait_metric("firnline_table_files", 24, **label("t"))  # the sweep counts without a checkpoint
            rows = place.rows("t")
            assert (service.get("/healthz") or (0, ""))[0] == 200
            assert "No space left" in (service.get("/readyz") or (0, ""))[1]
            filler.unlink()
            service.wait_ready()
            wait_for("the rewrites", lambda: len(place.live_files("t")) == 4)
            assert place.rows("t") == rows
            wait_for("unreferenced outputs to go", lambda: not place.unreferenced("t"), seconds=90)
            assert service.terminate()[0] == 0
    finally:
        subprocess.run(["umount", "-l", str(volume)], check=True)


def jvm_of(pid: int) -> int:
    """The JVM among the descendants of a process."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        number, name, rest = (
            int(text.split()[0]),
            text.split("(", 1)[1].rpartition(")")[0],
            text.rpartition(")")[2].split(),
        )
        names[number] = name
        children.setdefault(int(rest[1]), []).append(number)
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        if names.get(one) == "java":
            return one
        waiting += children.get(one, [])
    raise AssertionError("no JVM")
