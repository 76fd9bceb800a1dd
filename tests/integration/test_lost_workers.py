"""A file group whose Python worker is killed: it is identified and given up, and the others are committed."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BinaryType, LongType, NestedField

from compactor.events import Event, GroupDropped
from compactor.locations import plain_path
from tests.conftest import Lake
from tests.integration.table_kit import planned, run
from tests.services.processes import python_workers, told

pytestmark = pytest.mark.spark
ROW_BYTES = 1 << 14
SCHEMA = pa.schema([pa.field("part", pa.int64(), nullable=False), ("id", pa.int64()), ("payload", pa.binary())])


def forked_workers() -> list[int]:
    """Spark's Python workers of this process, without their daemons."""
    found = python_workers(os.getpid())
    parents = {pid: int((told(pid, "stat").rpartition(b")")[2].split() or [b"", b"0"])[1]) for pid in found}
    return [pid for pid in found if parents[pid] in found]


@contextmanager
def killing(wanted: Callable[[], bool]) -> Iterator[list[int]]:
    """Kill all Python workers of Spark whenever `wanted()`, as the kernel does when memory is short."""
    over, killed = threading.Event(), list[int]()

    def watch() -> None:
        while not over.wait(0.001):
            if wanted():
                for pid in forked_workers():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def test_a_group_whose_worker_is_killed_each_time_is_given_up_and_the_others_are_committed(lake: Lake) -> None:
    table = f"db.killed_{uuid.uuid4().hex[:8]}"
    schema = Schema(
        NestedField(1, "part", LongType(), required=True),
        NestedField(2, "id", LongType()),
        NestedField(3, "payload", BinaryType()),
    )
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part"))
    made = lake.catalogs.catalog("lake").create_table(table, schema, partition_spec=spec)
    random = np.random.default_rng(3)
    for _ in range(3):
        rows = {0: 10, 1: 3000, 2: 10, 3: 10}
        parts = np.repeat(list(rows), list(rows.values()))
        payload = [random.bytes(ROW_BYTES) for _ in parts]
        made.append(pa.table([parts, np.arange(len(parts)), payload], schema=SCHEMA))
    data = Path(plain_path(lake.view(table).metadata.location)) / "data" / "part=1"
    known, dropped = set(data.iterdir()), list[Event]()
    expected = sorted((row.part, row.id) for row in lake.sql(f"SELECT part, id FROM lake.{table}"))

    def wanted() -> bool:
        new = {path for path in data.iterdir() if path not in known}
        known.update(new)
        return bool(new)

    with killing(wanted) as killed:
        result = run(lake, planned(lake, table, engine="encode"), slots=1, listener=dropped.append)
    assert killed
    assert sorted(group.rewritten.plan.partition["part"] for group in result.groups) == [0, 2, 3]
    (drop,) = result.dropped
    assert drop.planned.file_group.partition["part"] == 1
    assert drop.error.reason == "out_of_memory"
    assert "memory" in str(drop.error)
    assert [event.reason for event in dropped if isinstance(event, GroupDropped)] == ["out_of_memory"]
    assert sorted((row.part, row.id) for row in lake.sql(f"SELECT part, id FROM lake.{table}")) == expected
