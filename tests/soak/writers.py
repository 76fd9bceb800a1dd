"""Four writers that never stop, each with a table of its own and a journal of the rows that the table must hold.

Appends by PyIceberg (V2); MERGE by Spark, merge-on-read (V2); INSERT and DELETE by Spark with deletion vectors (V3);
upserts as Flink writes them, with equality deletes (V2). All reach the catalog through a proxy that rolls `replace`
snapshots back when a writer conflicts with them, as Apache Polaris does.
"""

from __future__ import annotations

import datetime as dt
import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.snapshots import Operation

from compactor.spark.java_table import first_line
from tests.benchmarks.upsert_writer import ClockedTable, Upserts, UpsertWriter
from tests.conftest import Lake
from tests.integration.service_process import Site

LOG = logging.getLogger(__name__)
PARTS = 4
ROWS = 200  # a partition and commit
TOUCHED = 30  # existing rows that a MERGE or DELETE changes
KEPT_SECONDS = 120  # of snapshots, before they expire
EXPIRE_EVERY = 20  # commits
ATTEMPTS = 5
CONFLICTS = ("Cannot commit, missing data files", "Found conflicting", "CommitFailedException")
"""What Iceberg says to a writer whose files were rewritten between its scan and its commit."""
MERGE_ON_READ = ", ".join(f"'write.{kind}.mode'='merge-on-read'" for kind in ("merge", "delete", "update"))
TIDY = "'write.metadata.delete-after-commit.enabled'='true', 'write.metadata.previous-versions-max'='20'"


class Writer(ABC):
    """Commits to one table at a steady rate. `rows`: what the table must hold, a value by id."""

    table: ClassVar[str]
    version: ClassVar[int]
    share: ClassVar[float]
    """Of all commits."""
    value: ClassVar[str] = "v"

    def __init__(self, site: Site, lake: Lake, seed: int) -> None:
        self.site, self.lake = site, lake
        self.random = random.Random(f"{seed} {self.table}")
        self.rows: dict[int, Any] = {}
        self.commits = 0
        self.written_bytes = 0
        self.rewritten_bytes = 0  # by rewrites, as far as their snapshots were seen
        self.conflicts = 0
        self.failures: list[str] = []
        self.lock = threading.Lock()
        self._seen = 0
        self.create()

    @abstractmethod
    def create(self) -> None:
        """Create the table."""

    @abstractmethod
    def commit(self) -> None:
        """Commit once, then bring `rows` up to date."""

    @property
    def name(self) -> str:
        """In the SQL of Spark."""
        return f"lake.db.{self.table}"

    def write(self, stopped: threading.Event, every: float) -> None:
        """Commit every so many seconds until the end. A slow commit shortens the next pause."""
        due = time.monotonic()
        while not stopped.wait(max(0.0, due - time.monotonic())):
            due = max(due + every, time.monotonic() - every)
            with self.lock:
                try:
                    self._commit_until_it_succeeds()
                    self.commits += 1
                    self._announce()
                    if self.commits % EXPIRE_EVERY == 0:
                        self._expire()
                except Exception as error:  # noqa: BLE001 - a writer that failed is a finding; it goes on
                    self.failures.append(f"{type(error).__name__}: {str(error)[:600]}")

    def _commit_until_it_succeeds(self) -> None:
        """A commit that a rewrite made impossible is made again from its start, as jobs do; each counts."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self.commit()
            except (Py4JJavaError, CommitFailedException) as error:
                if attempt == ATTEMPTS or not any(each in str(error) for each in CONFLICTS):
                    raise
                self.conflicts += 1
                LOG.warning("%s, %s is made again: %s", dt.datetime.now(dt.UTC), self.table, first_line(error)[:200])
            else:
                return

    def found(self) -> tuple[dict[int, Any], int]:
        """The table's rows as Spark reads them, and their number."""
        found = self.lake.sql(f"SELECT id, {self.value} AS value FROM {self.name}")
        return {row.id: row.value for row in found}, len(found)

    def _announce(self) -> None:
        """Send the event of the newest commit. A broker that does not answer costs the writer nothing but the event."""
        view = self.lake.view(f"db.{self.table}")
        for snapshot in view.metadata.snapshots:
            summary = snapshot.summary
            if (snapshot.sequence_number or 0) > self._seen and summary:
                size = int(summary.additional_properties.get("added-files-size", 0))
                if summary.operation is Operation.REPLACE:
                    self.rewritten_bytes += size
                else:
                    self.written_bytes += size
        head = view.snapshot
        if head is not None:
            self._seen = head.sequence_number or 0
            self.site.announce(
                self.site.event(self.table, snapshot_id=head.snapshot_id, timestamp_ms=head.timestamp_ms)
            )

    def _expire(self) -> None:
        before = dt.datetime.now(dt.UTC).replace(tzinfo=None) - dt.timedelta(seconds=KEPT_SECONDS)
        try:
            table = self.lake.catalog.load_table(("db", self.table))
            table.maintenance.expire_snapshots().older_than(before).commit()
        except CommitFailedException:
            return  # the next time

    def _new_ids(self, count: int) -> list[int]:
        first = len(self.rows) and max(self.rows) + 1
        return list(range(first, first + count))

    def _some_ids(self) -> list[int]:
        return self.random.sample(sorted(self.rows), min(TOUCHED, len(self.rows)))

    def _sql_create(self) -> None:
        self.lake.sql(
            f"CREATE TABLE {self.name} (id bigint, v string, part string) USING iceberg PARTITIONED BY (part) "
            f"TBLPROPERTIES ('format-version'='{self.version}', {MERGE_ON_READ}, {TIDY})"
        )


class Appends(Writer):
    """PyIceberg's appends."""

    table, version, share = "appends", 2, 0.4

    def create(self) -> None:
        self._sql_create()

    def commit(self) -> None:
        ids = self._new_ids(PARTS * ROWS)
        values = [self.random.randbytes(40).hex() for _ in ids]
        parts = [f"p{number % PARTS}" for number in ids]
        schema = pa.schema([("id", pa.int64()), ("v", pa.string()), ("part", pa.string())])
        self.lake.catalog.load_table(("db", self.table)).append(pa.table([ids, values, parts], schema=schema))
        self.rows.update(zip(ids, values, strict=True))


class Merges(Writer):
    """Spark's MERGE: rows that exist get a new value, others are new."""

    table, version, share = "merges", 2, 0.1
    parts: ClassVar[int] = PARTS

    def create(self) -> None:
        self._sql_create()

    def commit(self) -> None:
        new, known, tag = self._new_ids(self.parts * ROWS), self._some_ids(), f"merge {self.commits}"
        touched = f"SELECT explode(array({', '.join(f'{each}L' for each in known)})) AS id UNION ALL " if known else ""
        self.lake.sql(
            f"MERGE INTO {self.name} t USING (SELECT id, '{tag}' AS v, concat('p', id % {self.parts}) AS part FROM "
            f"({touched}SELECT id FROM range({new[0]}, {new[-1] + 1}))) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET t.v = s.v WHEN NOT MATCHED THEN INSERT (id, v, part) VALUES (id, v, part)"
        )
        self.rows.update(dict.fromkeys([*new, *known], tag))


class Deletes(Writer):
    """Spark's INSERT and DELETE in turn; V3 keeps deletes in deletion vectors."""

    table, version, share = "deletes", 3, 0.1

    def create(self) -> None:
        self._sql_create()

    def commit(self) -> None:
        if self.commits % 2:
            ids = self._some_ids()
            self.lake.sql(f"DELETE FROM {self.name} WHERE id IN ({', '.join(map(str, ids))})")
            for each in ids:
                del self.rows[each]
            return
        new, tag = self._new_ids(2 * PARTS * ROWS), f"insert {self.commits}"
        self.lake.sql(
            f"INSERT INTO {self.name} SELECT id, '{tag}', concat('p', id % {PARTS}) FROM range({new[0]}, {new[-1] + 1})"
        )
        self.rows.update(dict.fromkeys(new, tag))


class LiveTable(ClockedTable):
    """The table of the upserts, on the machine's clock."""

    def stamp(self, at: float) -> None:
        """Leave the time as it is."""


class FlinkUpserts(Writer):
    """Upserts as Flink writes them, with Iceberg's Java writers."""

    table, version, share, value = "upserts", 2, 0.4, "version"

    def create(self) -> None:
        table = LiveTable(self.lake, "db.upserts", Upserts(version=self.version, buckets=PARTS, rows=ROWS, keys=4000))
        self.lake.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({TIDY})")
        self._job = UpsertWriter(self.lake, table, self.random.randrange(2**32))

    def commit(self) -> None:
        self._job.checkpoint(time.time())
        self.rows = self._job.model


WRITERS: Sequence[type[Writer]] = (Appends, Merges, Deletes, FlinkUpserts)


@contextmanager
def writing(writers: Sequence[Writer], commits_per_minute: float) -> Iterator[None]:
    """Let all write until the end of the block."""
    stopped = threading.Event()
    threads = [
        threading.Thread(target=each.write, args=(stopped, 60 / (commits_per_minute * each.share)), daemon=True)
        for each in writers
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


@contextmanager
def held(writers: Sequence[Writer]) -> Iterator[None]:
    """Let no writer commit during the block: its catalog or store is gone, so that it would have to wait anyway."""
    with ExitStack() as stack:
        for each in writers:
            stack.enter_context(each.lock)
        yield
