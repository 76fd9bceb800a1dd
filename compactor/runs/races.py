"""Commit beside other writers: after a lost race, compare with what came between and send the rest.

No data file is written twice for it, and no row is searched twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from compactor.errors import ReplanError
from compactor.iceberg.manifest_entries import FileEntry
from compactor.iceberg.tables import Catalogs, TableView
from compactor.manifests.cache import ManifestCache
from compactor.patience.deadline import Deadline
from compactor.planning.conflicts import changes_since, is_traced
from compactor.reasons import Reason
from compactor.spark.java_table import JavaTable

RACES: Final = 5
"""Lost races in a row after which the run ends, also before the deadline: the table is too busy at present."""

Done = TypeVar("Done")
Send = Callable[[], Done]
"""Sends a commit that is prepared."""


@dataclass(frozen=True)
class Head:
    """The branch before an attempt to commit.

    Attributes:
        table: As it is now.
        changes: Of the commits since the plan.
        attempt: 1 for the first.
        traced: Whether the metadata lists all these commits. If not, Iceberg cannot validate from the plan: the commit
            has to name this head as the snapshot up to which others were taken into account.
    """

    table: TableView
    changes: Sequence[FileEntry]
    attempt: int
    traced: bool = True


def commit_beside_others(
    java: JavaTable,
    catalogs: Catalogs,
    cache: ManifestCache,
    deadline: Deadline,
    prepare: Callable[[Head], Send[Done]],
) -> Done:
    """Prepare a commit for the branch as it is, and send it; prepare it again if another commit came in between.

    Raises:
        FirnlineError: from `prepare`, or by class the reaction; nothing was committed (unless it is a
            CommitUnknownError).
    """
    for attempt in range(1, RACES + 1):
        java.refresh()
        java.check_unchanged()
        now = catalogs.load(java.view.name, java.view.ref)
        changes = changes_since(now, java.view, java.snapshot_id, cache)
        send = prepare(Head(now, changes, attempt, is_traced(now, java.snapshot_id)))
        try:
            return send()
        except ReplanError as error:
            if error.reason != Reason.CONFLICT or attempt == RACES or deadline.is_over:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")
