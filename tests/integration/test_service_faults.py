"""The whole service while a part of it is taken away; `make test-faults` breaks every part of it."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from kafka import KafkaProducer

from tests.faults.cells import DURING, make_due
from tests.faults.scene import Scene
from tests.integration.service_process import STOP_PROMISE, ServiceProcess, Site, site, wait_for
from tests.services.kafka_broker import breakable_broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]
SECTIONS = {
    "kafka": {"options": {"default.api.timeout.ms": "5000", "request.timeout.ms": "4000"}},
    "hooks": [{"kind": "kafka", "topic": "compacted"}],
}


def ready(service: ServiceProcess) -> tuple[int, str]:
    service.must_run()
    return service.get("/readyz") or (0, "")


def works_by_looks(place: Site, service: ServiceProcess) -> None:
    """Commits that nobody announces are rewritten, and the service says what it misses."""
    rows = place.append("t") and place.rows("t")
    wait_for("the rewrite of commits without events", lambda: place.is_compacted("t"))
    assert place.rows("t") == rows
    wait_for("the service to miss the broker", lambda: ready(service)[0] == 503)
    assert "no Kafka broker answers" in ready(service)[1]
    assert (service.get("/healthz") or (0, ""))[0] == 200


def hears_events(place: Site, service: ServiceProcess) -> None:
    service.wait_ready()
    heard = service.metrics().total("firnline_events_total")
    place.__dict__["producer"] = KafkaProducer(bootstrap_servers=place.broker)
    new = place.append("t", commits=2)
    place.publish(*new)
    service.wait_metric("firnline_events_total", heard + len(new))


def test_a_service_that_starts_without_a_broker_works_through_its_outages_and_ends_in_time(tmp_path: Path) -> None:
    """Not there at the start, then there, then frozen (Kafka's client waits for minutes), then gone."""
    with (
        breakable_broker(tmp_path / "broker") as broker,
        site(tmp_path / "site", broker.address, **SECTIONS) as place,
    ):
        broker.stop()
        place.create("t")
        service = place.start()
        works_by_looks(place, service)
        broker.start()
        hears_events(place, service)
        broker.signal(signal.SIGSTOP)
        wait_for("the service to see it", lambda: ready(service)[0] == 503)
        assert service.metrics().total("firnline_service_ready") == 0
        works_by_looks(place, service)
        broker.signal(signal.SIGCONT)
        hears_events(place, service)
        wait_for("the event of the hook", lambda: place.records("compacted"))
        broker.stop()
        works_by_looks(place, service)
        assert service.metrics().total("firnline_ledger_recounts_total", reason="history_gap") == 0
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
