"""Two services on one lake: each table has one, and the tables of one that is down wait for it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactor.shards import Shard
from compactor.table_names import TableName
from tests.integration.service_process import ServiceProcess, Site, log_lines, site, wait_for
from tests.services.rest_catalog import RestCatalog

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]
PARTS, ROWS = 1, 20


@pytest.fixture
def place(tmp_path: Path, broker: str, rest_catalog: RestCatalog) -> Iterator[Site]:
    sections: dict[str, Any] = {
        "catalogs": {"lake": rest_catalog.properties},
        "tables": {"include": ["db.s*"], "observe": []},
        "service": {"sweep_seconds": 20},
    }
    with site(tmp_path / "site", broker, **sections) as made:
        yield made


def started(place: Site, number: int) -> ServiceProcess:
    checkpoint = f"file://{place.folder / f'checkpoint-{number}'}"
    return place.start(FIRNLINE_STATE__CHECKPOINT=checkpoint, FIRNLINE_SERVICE__SHARD=f"{number}/2")


def committed(service: ServiceProcess) -> set[str]:
    return {line["table"] for line in log_lines(service.log_text) if line["message"] == "committed"}


def test_two_services_divide_the_tables_and_those_of_a_killed_one_wait_for_it(place: Site) -> None:
    names = [f"s{uuid.uuid4().hex[:6]}_{number}" for number in range(8)]
    tables = {name: TableName("lake", ("db",), name) for name in names}
    owned = [{str(table) for table in tables.values() if Shard(number, 2).owns(table)} for number in range(2)]
    for name in names:
        place.create(name)
    services = [started(place, number) for number in range(2)]
    for service in services:
        service.wait_ready()
    for name in names:
        place.publish(*place.append(name, commits=6, parts=PARTS, rows=ROWS))
    wait_for("all rewrites", lambda: [committed(service) for service in services] == owned)
    for service, number in zip(services, range(2), strict=True):
        assert service.metrics().total("firnline_shard_members", shard=str(number)) == 2
    services[0].kill()
    for name in names:
        place.publish(*place.append(name, commits=6, parts=PARTS, rows=ROWS))
    mine = [name for name, table in tables.items() if Shard(1, 2).owns(table)]
    wait_for("the rewrites of the other", lambda: all(len(place.live_files(name)) < 6 for name in mine))
    waiting = [name for name in names if name not in mine]
    assert all(len(place.live_files(name)) >= 6 for name in waiting)
    started(place, 0).wait_ready()
    wait_for("the rewrites of the one that is back", lambda: all(len(place.live_files(name)) < 6 for name in waiting))
    assert all(len(place.rows(name)) == 12 * PARTS * ROWS for name in names)
