"""Look for a commit in the table: by the run id in the summaries, or by the manifests that it added."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import Any

from py4j.protocol import Py4JError

from compactor.commit.snapshots import CommitSummary
from compactor.errors import InputError, ReplanError, RetryError
from compactor.iceberg.tables import TableView
from compactor.patience.backoff import SOON
from compactor.spark.java_table import JAVA_ERRORS, JavaTable

SETTLE_ATTEMPTS = 5


class Search(Enum):
    """Outcome of the search for a commit."""

    FOUND = "found"
    MISSING = "missing"
    UNANSWERED = "unanswered"


def find_commit(
    table: JavaTable,
    snapshot: Any,
    summary: CommitSummary,
    sleep: Callable[[float], None] = time.sleep,
    attempts: int = SETTLE_ATTEMPTS,
) -> Search:
    """Look for the snapshot several times: it may land late, or the catalog may not answer."""
    seen = Search.UNANSWERED
    for attempt in range(attempts):
        try:
            table.refresh()
            if committed_id(table, snapshot, summary) is not None:
                return Search.FOUND
            seen = Search.MISSING
        except (Py4JError, *JAVA_ERRORS, RetryError, ReplanError, InputError):
            seen = Search.UNANSWERED  # the catalog does not answer, or the table is gone: try again
        if attempt + 1 < attempts:
            sleep(SOON.seconds(attempt + 1))
    return seen


def committed_id(table: JavaTable, snapshot: Any, summary: CommitSummary) -> int | None:
    """The id of the branch's snapshot with this summary; `snapshot` was sent. None if there is none.

    A catalog that lists the newest snapshot alone (Nessie) hides ours behind the next commit, which still lists the
    manifests that ours added.
    """
    head = at = table.handle.snapshot(table.view.ref)
    while at is not None and at.snapshotId() != table.snapshot_id:
        if summary.matches(dict(at.summary())):
            return int(at.snapshotId())
        parent = at.parentId()
        at = table.handle.snapshot(parent) if parent is not None else None
        if at is None and parent not in (None, table.snapshot_id):
            ours = int(snapshot.snapshotId())
            return ours if any(each.snapshotId() == ours for each in head.allManifests(table.handle.io())) else None
    return None


def listed_snapshot(table: TableView, summary: CommitSummary) -> int | None:
    """The id of this commit's snapshot if the table lists it, also on no branch any more; None: it does not."""
    made = ((each.snapshot_id, each.summary) for each in table.metadata.snapshots)
    return next((number for number, each in made if each and summary.matches(each.additional_properties)), None)
