"""The in-flight record of one run: opened before the first output byte, closed when every output is accounted for."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from compactor.commit.deletion import NOT_COMMITTED
from compactor.commit.in_flight import NO_HEAD, InFlightRecords, Record
from compactor.commit.sweep import SETTLE_SECONDS, delete_unreferenced
from compactor.errors import CommitUnknownError
from compactor.events import Listener, ignore
from compactor.iceberg.tables import Catalogs, TableView
from compactor.lease.right import UNLIMITED, CommitRight
from compactor.manifests.cache import ManifestCache
from compactor.rewrite.tasks.runner import JOBS_OF_A_TASK

LOG = logging.getLogger("firnline")
LATE_SECONDS = 900.0
"""For which an executor may work on that has lost the driver: Spark ends it after 60 missed heartbeats, ten minutes."""


@dataclass(frozen=True)
class OutputRecords:
    """Opens the records of runs, and deletes outputs that no snapshot references, while `right` holds.

    A process that another has taken over from deletes nothing: it only writes down that the run has ended, and the
    other's sweep deletes the outputs.
    """

    records: InFlightRecords
    catalogs: Catalogs
    cache: ManifestCache
    right: CommitRight = UNLIMITED
    listener: Listener = ignore

    @contextmanager
    def around(
        self, run_id: str, table: TableView, files: Sequence[str], folders: Sequence[str], attempts: int = 1
    ) -> Iterator[Record]:
        """Keep a record while the block runs.

        - The block raises CommitUnknownError: the record stays, and the sweep decides once the head has moved.
        - The block raises anything else: outputs are deleted now; the record stays until a sweep finds none left.
        - The block ends: the record stays open; the caller closes or abandons it.
        """
        late_seconds = LATE_SECONDS if attempts > JOBS_OF_A_TASK else 0.0  # on a cluster
        record = self.records.open(run_id, table, files, folders, attempts, late_seconds)
        try:
            yield record
        except CommitUnknownError:
            self.records.abandon(record)  # the sweep watches the head before it deletes
            raise
        except BaseException:
            self.abandon(record)
            raise

    def abandon(self, record: Record, *, rolls_back: bool = False) -> None:
        """Delete outputs that are certainly uncommitted; leave the record to the sweep, for what is written late.

        `rolls_back`: some outputs are committed, and the catalog may roll that back; a sweep looks later.
        """
        # A cancelled task may still write for a moment: the record stays until a sweep finds nothing left.
        ended = self._ended(record)
        if rolls_back:
            ended = replace(ended, settles_at=max(ended.late_until, self.records.now + SETTLE_SECONDS))
        self.records.abandon(ended)
        self._delete_unreferenced(record)

    def close(self, record: Record, *, clean: bool, rolls_back: bool) -> None:
        """End the record of a run that has committed.

        `clean`: delete outputs that no snapshot references before; if that fails, leave them to the sweep.
        `rolls_back`: the catalog may roll the commit back. Later, a sweep looks whether it did.
        """
        if clean and not self._delete_unreferenced(record):
            self.abandon(record, rolls_back=rolls_back)
        elif rolls_back:
            self.records.abandon(replace(record, settles_at=self.records.now + SETTLE_SECONDS))
        else:
            self.records.close(record)

    def _ended(self, record: Record) -> Record:
        """The record of a run whose uncommitted outputs may go at once. On a cluster a lost executor may write more."""
        late = self.records.now + record.late_seconds if record.late_seconds else 0.0
        return replace(record, seen_at=0.0, seen_head=NO_HEAD, late_until=late)

    def _delete_unreferenced(self, record: Record) -> bool:
        """Whether it could be done. A failure is logged: the outcome of the run counts."""
        try:
            self.right.confirm()
            record, table = self.records.as_noted(record), self.catalogs.load(record.table)
            delete_unreferenced(record, table, self.cache, self.listener, NOT_COMMITTED)
        except Exception as error:  # noqa: BLE001 - any store's error
            LOG.warning("%s: unreferenced outputs could not be deleted yet: %s", record.table, error)
            return False
        return True
