"""A service as the pages show it, its tables, and questions to an HTTP server over real sockets."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from compactor.debt.board import DebtBoard, PartitionCounts, PartitionDebt, TableDebt
from compactor.partitions import PartitionKey
from compactor.runs.dispatcher import Work
from compactor.runs.pauses import Pause, pause_of
from compactor.shards import EVERYTHING, Shard
from compactor.table_names import TableName
from metrics.http.http_server import Site
from metrics.recent_work import RecentWork
from metrics.service_view import Counting, Health, Memory, SlotUse, StateSpace

NOW = 1_000_000.0
HOSTILE = 'ev"il\\\n<script>alert(1)</script>{a="b"}\ud800.x'
WELL = Health(live=True, ready=True)


@dataclass
class Service:
    """`open_share`: how much of any time is outside of quiet hours."""

    health: Health = WELL
    ready: bool = True
    active: bool = True
    observing: bool = False
    shard: Shard = EVERYTHING
    work: Work = field(default_factory=Work)
    counting: Counting | None = None
    rewriting: SlotUse = field(default_factory=SlotUse)
    space: StateSpace | None = None
    memory: Memory = field(default_factory=Memory)
    settings_refused: bool = False
    unreadable: int = 0
    waiting_looks: Mapping[str, int] = field(default_factory=dict)
    listed: Mapping[str, bool] = field(default_factory=dict)
    current_pauses: tuple[Pause, ...] = ()
    held_at: float = 0.0
    open_share: float = 1.0

    def paused(self, table: TableName) -> bool:
        return pause_of(table, self.current_pauses, NOW) is not None

    def held_until(self, table: TableName) -> float:  # noqa: ARG002 - of all tables
        return self.held_at

    def open_seconds(self, since: float, now: float) -> float:
        return (now - since) * self.open_share


class Lazy(Service):
    """Makes some of its parts when it is asked for them."""

    def __init__(self, **parts: Callable[[], object]) -> None:
        super().__init__()
        self.parts = parts

    def __getattribute__(self, name: str) -> Any:
        made = object.__getattribute__(self, "__dict__").get("parts", {})
        return made[name]() if name in made else super().__getattribute__(name)


def partition(values, counts, *, due=False) -> PartitionDebt:
    return PartitionDebt(PartitionKey(0, json.dumps(list(values.values()))), values, None, counts, due, "because")


def debt(name, *partitions, **more) -> TableDebt:
    table = name if isinstance(name, TableName) else TableName("lake", ("db",), name)
    return TableDebt(table, 1, {one.key: one for one in partitions}, **more)


def small(files: int) -> PartitionCounts:
    return PartitionCounts(data_files=files, small_files=files, data_bytes=files, small_bytes=files)


def board_of(*tables: TableDebt) -> DebtBoard:
    board = DebtBoard()
    for each in tables:
        board.put(each)
    return board


def hostile_board() -> DebtBoard:
    counts = PartitionCounts(5, 4, 50, 40, 1, 500, 2)
    return board_of(debt(TableName("lake", (HOSTILE, ""), HOSTILE), partition({HOSTILE: HOSTILE, "b": 3}, counts)))


def site(service=None, *, registry=None, board=None, recent=None) -> Site:
    return Site(
        registry or CollectorRegistry(),
        service if service is not None else Service(),
        board if board is not None else DebtBoard(),
        recent or RecentWork(),
    )


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection(*server.address, timeout=10)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()
