"""Two services on one checkpoint: one works, the other waits. Whatever happens to the first, rows stay."""

from __future__ import annotations

import json
import time

import pytest

from tests.integration.service_process import ServiceProcess, Site, document, firnline, log_lines, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]


def wait_standby(service: ServiceProcess, active: ServiceProcess) -> None:
    """It is up and not ready, and names the active one."""

    def standby() -> bool:
        service.must_run()
        answer = service.get("/readyz")
        return answer is not None and f"(pid {active.pid}) is active since" in answer[1]

    wait_for("the standby to name the active service", standby)
    assert service.get("/readyz")[0] == 503  # type: ignore[index]
    assert service.get("/healthz")[0] == 200  # type: ignore[index]
    assert service.metrics().total("firnline_active") == 0


def assert_active(service: ServiceProcess) -> None:
    metrics = service.metrics()
    assert (metrics.total("firnline_active"), metrics.total("firnline_service_ready")) == (1, 1)


def messages(service: ServiceProcess, start: str) -> list[str]:
    return [line["message"] for line in log_lines(service.log_text) if line["message"].startswith(start)]


def deployment_of(service: ServiceProcess) -> str:
    answer = service.get("/api/v1/status")
    assert answer is not None
    return str(json.loads(answer[1])["service"]["deployment"])


def test_a_standby_takes_over_when_the_active_service_is_killed_and_when_it_stops(place: Site) -> None:
    place.publish(*place.append("t"))
    first = place.started()
    first.wait_metric("firnline_commits_total")
    second = place.start()
    wait_standby(second, first)
    assert_active(first)
    deployment = deployment_of(first)
    first.kill()
    killed = time.monotonic()
    second.wait_ready()
    print(f"\nready {time.monotonic() - killed:.0f} s after the kill")
    assert_active(second)
    assert len(messages(second, "standby: ")) == 1
    third = place.start()
    wait_standby(third, second)
    place.publish(*place.append("t"))
    second.wait_metric("firnline_commits_total")
    rows = place.rows("t")
    code, _ = second.terminate()
    stopped = time.monotonic()
    assert code == 0
    third.wait_ready()
    print(f"ready {time.monotonic() - stopped:.0f} s after the stop")
    assert_active(third)
    assert deployment_of(third) == deployment
    assert place.rows("t") == rows
    summaries = [snapshot.summary.additional_properties for snapshot in place.view("t").metadata.snapshots]
    assert {each["firnline.deployment-id"] for each in summaries if "firnline.run-id" in each} == {deployment}


def test_another_firnline_on_the_same_table_is_shown_by_both(place: Site) -> None:
    place.publish(*place.append("t"))
    ours = place.started()
    ours.wait_metric("firnline_commits_total")
    assert ours.metrics().total("firnline_other_firnline_tables") == 0
    assert ours.terminate()[0] == 0
    other = place.started(FIRNLINE_STATE__CHECKPOINT=f"file://{place.folder}/another")
    other.wait_metric("firnline_other_firnline_tables")
    place.publish(*place.append("t"))
    other.wait_metric("firnline_commits_total")
    assert len(messages(other, "another firnline rewrites this table too")) == 1
    (table,) = json.loads(other.get("/api/v1/status")[1])["tables"]  # type: ignore[index]
    (name,) = table["other_firnlines"]
    for checkpoint, named in (("checkpoint", deployment_of(other)), ("another", name.partition("=")[2])):
        environment = {"FIRNLINE_STATE__CHECKPOINT": f"file://{place.folder}/{checkpoint}"}
        debt = document(firnline(place.config, "debt", "db.t", "--why", "--output", "json", **environment))
        (found,) = debt["tables"][0]["other_compactors"]
        assert found["name"] == f"firnline.deployment-id={named}"
        printed = firnline(place.config, "debt", "db.t", "--why", **environment).stdout
        assert f"also compacted by firnline.deployment-id={named}" in printed
        assert "stop one of the two" in printed
