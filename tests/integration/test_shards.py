"""Several services on one lake, beside writers: each table has one service, also when services join or are killed."""

from __future__ import annotations

import datetime as dt
import random
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.integration.service_process import ServiceProcess, Site, log_lines, site, wait_for
from tests.services.rest_catalog import RestCatalog

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

PARTS, ROWS = 2, 20
PATIENCE_TO_SETTLE = 600.0


class Fleet:
    """Tables with a writer each round, and the services that divide them."""

    def __init__(self, place: Site, tables: int) -> None:
        self.place = place
        self.tables = [f"s{uuid.uuid4().hex[:6]}_{number:03d}" for number in range(tables)]
        self.written: Counter[str] = Counter()
        for table in self.tables:
            place.create(table)
        self._stop = threading.Event()

    def service(self, name: str) -> ServiceProcess:
        checkpoint = self.place.folder / f"checkpoint-{name}"
        return self.place.start(FIRNLINE_STATE__CHECKPOINT=f"file://{checkpoint}")

    @contextmanager
    def writer(self) -> Iterator[None]:
        """While the block runs, tables get commits, one after the other and announced; each table at least one."""
        failures: list[BaseException] = []

        def write() -> None:
            order = random.Random(1)
            waiting = list(self.tables)
            try:
                while waiting or not self._stop.is_set():
                    table = waiting.pop() if waiting else order.choice(self.tables)
                    self.place.publish(*self.place.append(table, commits=1, parts=PARTS, rows=ROWS))
                    self.written[table] += PARTS * ROWS
            except BaseException as error:  # noqa: BLE001 - raised by the test
                failures.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
        if failures:
            raise failures[0]

    def compacted(self) -> bool:
        """No partition of any table has as many small files as make it due."""
        return all(len(self.place.live_files(table)) < PARTS * 5 for table in self.tables)

    def top_up(self) -> None:
        """Make every table due once more: whoever owns it has to act."""
        for table in self.tables:
            self.place.publish(*self.place.append(table, commits=5, parts=PARTS, rows=ROWS))
            self.written[table] += 5 * PARTS * ROWS


def spans_of(service: ServiceProcess) -> dict[str, list[tuple[float, float]]]:
    """When the service worked on each table: from the start of the plan to the commit, by its log."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in log_lines(service.log_text):
        if line["message"] == "committed":
            end = dt.datetime.fromisoformat(line["timestamp"]).timestamp()
            took = line["plan_seconds"] + line["rewrite_seconds"] + line["commit_seconds"]
            found[line["table"]].append((end - took, end))
    return found


def assert_one_service_at_a_time(services: list[ServiceProcess]) -> None:
    by_table: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for number, service in enumerate(services):
        for table, spans in spans_of(service).items():
            by_table[table] += [(start, end, number) for start, end in spans]
    for table, spans in by_table.items():
        spans.sort()
        for (_, ended, one), (started, _, other) in pairwise(spans):
            assert one == other or ended <= started, f"{table}: services {one} and {other} at the same time: {spans}"


@pytest.fixture
def place(tmp_path: Path, broker: str, rest_catalog: RestCatalog) -> Iterator[Site]:
    sections: dict[str, Any] = {
        "catalogs": {"lake": rest_catalog.properties},
        "tables": {"include": ["db.s*"], "observe": []},
        "service": {"shard_group": f"g-{uuid.uuid4().hex[:6]}", "sweep_seconds": 20},
    }
    with site(tmp_path / "site", broker, **sections) as made:
        yield made


def divided(services: list[ServiceProcess], tables: int) -> bool:
    """Every service is a member, and together they know each table once."""
    for service in services:
        service.must_run()
    scraped = [service.metrics() for service in services]
    members = {metrics.total("firnline_shard_members") for metrics in scraped}
    return members == {len(services)} and sum(metrics.total("firnline_tables") for metrics in scraped) == tables


def check(place: Site, tables: int) -> None:
    fleet = Fleet(place, tables)
    services = [fleet.service("one"), fleet.service("two")]
    with fleet.writer():
        for service in services:
            service.wait_ready()
        wait_for("two services to divide the tables", lambda: divided(services, tables), PATIENCE_TO_SETTLE, 2)
        services.append(fleet.service("three"))
        services[2].wait_ready()
        wait_for("three services to divide the tables", lambda: divided(services, tables), PATIENCE_TO_SETTLE, 2)
        killed = time.time()
        services[0].kill()
        wait_for(
            "two services to take over the third's tables",
            lambda: divided(services[1:], tables), PATIENCE_TO_SETTLE, 1,
        )  # fmt: skip
        print(f"\n{tables} tables divided again {time.time() - killed:.0f} s after a kill")
    fleet.top_up()
    wait_for("every table's rewrite", fleet.compacted, PATIENCE_TO_SETTLE, 2)
    assert all(len(place.rows(table)) == fleet.written[table] for table in fleet.tables)
    assert_one_service_at_a_time(services)
    shares = [len(spans_of(service)) for service in services]
    print(f"tables that each service rewrote: {shares}")
    assert all(shares[1:])


@pytest.mark.slow
def test_two_then_three_services_divide_two_hundred_tables_and_one_is_killed(place: Site) -> None:
    check(place, 200)
