"""Slots as gauges, slots and executors on the status page, where hosts are bounded."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from metrics.http.http_server import Site
from metrics.slot_collector import OTHER_HOSTS, SlotCollector, SlotUse, bounded
from metrics.status_page import Health, status_document, status_page

USE = SlotUse(slots=3, in_use=2, waiting_runs=1, cores=4, executors=4, host_tasks={"b": 0, "a": 2})
HEALTH = Health(live=True, ready=True)


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(0, 9)), st.integers(2, 5))
def test_hosts_are_bounded_and_no_task_is_lost(tasks: dict[str, int], most: int) -> None:
    shown = bounded(tasks, most)
    assert len(shown) <= most
    assert sum(count for _, count in shown) == sum(tasks.values())
    if len(tasks) > most:
        assert shown[-1][0] == OTHER_HOSTS
        named = {host for host, _ in shown[:-1]}
        least = min(tasks[host] for host in named)
        assert all(tasks[host] <= least for host in tasks.keys() - named)


def test_every_scrape_shows_the_slots_of_that_moment() -> None:
    registry, now = CollectorRegistry(), [USE]
    registry.register(SlotCollector(lambda: now[0]))
    assert registry.get_sample_value("firnline_slots") == 3
    assert registry.get_sample_value("firnline_slots_in_use") == 2
    now[0] = SlotUse()
    assert registry.get_sample_value("firnline_slots") == 0


def test_the_status_page_and_its_json_show_slots_and_hosts() -> None:
    document = status_document(HEALTH, (), (), (), slots=USE)
    assert document["slots"]["hosts"] == [{"host": "a", "tasks": 2}, {"host": "b", "tasks": 0}]
    page = status_page(document)
    assert "Rewrite slots: 2 of 3 in use, 1 runs wait; 4 cores of 4 executors." in page
    assert "Running tasks" in page
    assert "Rewrite slots" not in status_page(status_document(HEALTH, (), (), ()))
    answer = Site(CollectorRegistry(), lambda: HEALTH, slots=lambda: USE).answer("/api/v1/status", {})
    assert json.loads(answer.body)["slots"]["slots"] == 3
