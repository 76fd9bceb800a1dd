"""The whole service while a part of it is taken away: the broker, its JVM, the room on its volume."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kafka import KafkaProducer

from streaming.demo.broker import LocalBroker, new_broker
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
        service.wait_metric("firnline_stream_ends_total", 2, query="ledger", cause="kafka_unavailable")
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
            service.wait_metric("firnline_stream_ends_total", 2, query="ledger", cause="no_space")
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
