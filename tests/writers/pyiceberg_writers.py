"""PyIceberg: a job that announces its commits with the lines of docs/writers/pyiceberg.md."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from kafka import KafkaProducer
from pyiceberg.catalog import load_catalog

from tests.integration.service_process import ROOT
from tests.unit.docs.test_guides import blocks
from tests.writers.stage import CATALOG, Stage, Target
from tests.writers.writer import Writer

PAGE = ROOT / "docs" / "writers" / "pyiceberg.md"
ROWS = 200  # of a commit
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
RETRIED = "Commit failed due to a concurrent update, retrying"


class _Retries(logging.Handler):
    """Counts what PyIceberg logs when it makes a commit again, by thread."""

    def __init__(self) -> None:
        super().__init__()
        self.by_thread: dict[str, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(RETRIED):
            name = record.threadName or ""
            self.by_thread[name] = self.by_thread.get(name, 0) + 1


RETRIES = _Retries()
logging.getLogger("pyiceberg.table").addHandler(RETRIES)


class PyIcebergWriter(Writer):
    """A thread that appends every `every` seconds and announces its commits with the page's own code.

    A row is in the journal once its commit has succeeded.
    """

    targets = (Target("PyIceberg, three lines", "pyiceberg", "three lines in the job"),)

    def __init__(self, stage: Stage, every: float, seed: int) -> None:
        (self.target,) = self.targets
        self._stage, self._every = stage, every
        self._random = random.Random(f"{seed} {self.target.table}")
        self._rows: dict[int, str] = {}
        self._failures: list[str] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write, name=self.target.table, daemon=True)
        (code,) = blocks(PAGE, "python")
        self._names: dict[str, Any] = {}
        exec(compile(code, str(PAGE), "exec"), self._names)  # noqa: S102 - our own page
        self._producer = KafkaProducer(bootstrap_servers=stage.broker)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._stopped.set()
        self._thread.join()

    def close(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self._producer.close(timeout=5)

    @property
    def rows(self) -> Mapping[int, str]:
        return self._rows

    @property
    def failures(self) -> list[str]:
        return self._failures

    @property
    def retries(self) -> int:
        return RETRIES.by_thread.get(self.target.table, 0)

    def _write(self) -> None:
        table = load_catalog(CATALOG, **self._stage.catalog.properties).load_table(("db", self.target.table))
        due = time.monotonic()
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._every, time.monotonic())
            try:
                self._commit(table)
                self._names["announce"](self._producer, CATALOG, table)
            except Exception as error:  # noqa: BLE001 - a writer that failed is a finding; it goes on
                self._failures.append(f"{type(error).__name__}: {str(error)[:600]}")

    def _commit(self, table: Any) -> None:
        first = len(self._rows)
        ids = list(range(first, first + ROWS))
        values = [self._random.randbytes(8).hex() for _ in ids]
        table.append(pa.table([ids, values], schema=SCHEMA))
        self._rows.update(zip(ids, values, strict=True))
