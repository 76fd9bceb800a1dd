"""The in-flight record of one run: opened before the first output byte, closed when every output is accounted for."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from compactor.commit.deletion import NOT_COMMITTED
from compactor.commit.in_flight import InFlightRecords, Record
from compactor.commit.sends import can_still_land, state_of
from compactor.commit.sweep import SETTLE_SECONDS, delete_unreferenced, table_of
from compactor.errors import CommitUnknownError
from compactor.events import Listener, ignore
from compactor.iceberg.tables import Catalogs, TableView
from compactor.lease.right import UNLIMITED, CommitRight
from compactor.manifests.cache import ManifestCache
from compactor.rewrite.tasks.runner import JOBS_OF_A_TASK

LOG = logging.getLogger("firnline")
LATE_SECONDS = 900.0
"""For which an executor may work on that has lost the driver: Spark ends it after 60 missed heartbeats, ten minutes."""


class Outputs(NamedTuple):
    """Where a job writes: all files and folders, and how often the attempts of one task may write its file."""

    files: Sequence[str]
    folders: Sequence[str]
    attempts: int = 1


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

        - The block raises CommitUnknownError: the record stays, and the sweep decides.
        - The block raises anything else: outputs are deleted now, if nothing that was sent can land any more. The
          record stays until a sweep finds none left.
        - The block ends: the record stays open; the caller closes or abandons it.
        """
        late_seconds = LATE_SECONDS if attempts > JOBS_OF_A_TASK else 0.0  # on a cluster
        record = self.records.open(run_id, table, files, folders, attempts, late_seconds)
        try:
            yield record
        except CommitUnknownError:
            self.records.abandon(record)  # the sweep watches the table before it deletes
            raise
        except BaseException:
            self.abandon(record)
            raise

    def abandon(self, record: Record, *, rolls_back: bool = False) -> None:
        """Delete outputs that no snapshot can have any more; leave the record to the sweep, for what is written late.

        `rolls_back`: some outputs are committed, and the catalog may roll that back; a sweep looks later.
        """
        # A cancelled task may still write for a moment: the record stays until a sweep finds nothing left.
        table = self._settled(record)
        late = self.records.now + record.late_seconds if record.late_seconds else 0.0  # a lost executor may write more
        settles_at = max(late, self.records.now + SETTLE_SECONDS) if rolls_back else 0.0
        self.records.abandon(replace(record, late_until=late, settles_at=settles_at))
        self._delete_unreferenced(record, table)

    def close(self, record: Record, *, clean: bool, rolls_back: bool) -> None:
        """End the record of a run that has committed.

        `clean`: delete outputs that no snapshot references before; if that fails, leave them to the sweep.
        `rolls_back`: the catalog may roll the commit back. Later, a sweep looks whether it did.
        """
        if clean and not self._delete_unreferenced(record, self._settled(record)):
            self.abandon(record, rolls_back=rolls_back)
        elif rolls_back:
            self.records.abandon(replace(record, settles_at=self.records.now + SETTLE_SECONDS, swept=True))
        else:
            self.records.close(record)

    def _settled(self, record: Record) -> TableView | None:
        """The table, if nothing that the run has sent can land any more. What still can stays on record."""
        sends = self.records.as_noted(record).sends or ()
        try:
            table = table_of(record, self.catalogs)
            if table is None:
                return None  # another table has its name now: the sweep looks for it
            state = state_of(table, record.ref)
        except Exception as error:  # noqa: BLE001 - any catalog's error
            LOG.warning("%s: whether outputs may be deleted is not known yet: %s", record.table, error)
            return None
        still_open = [send for send in sends if can_still_land(send, state)]
        self.records.note_open(record.run_id, still_open)
        return None if still_open else table

    def _delete_unreferenced(self, record: Record, table: TableView | None) -> bool:
        """Whether it could be done. A failure is logged: the outcome of the run counts."""
        if table is None:
            return False
        try:
            self.right.confirm()
            noted = self.records.as_noted(record)
            delete_unreferenced(noted, table, self.cache, self.listener, NOT_COMMITTED)
        except Exception as error:  # noqa: BLE001 - any store's error
            LOG.warning("%s: unreferenced outputs could not be deleted yet: %s", record.table, error)
            return False
        return True
