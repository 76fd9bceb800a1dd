"""Rewrite manifests by Iceberg's own code into fewer manifests.

Up to V2 the Spark action does it, ordered by partition. On V3 that action (Iceberg 1.11) gives every row a new
`_row_id`, because it writes entries without the ids that they inherit. Iceberg's core `RewriteManifests` keeps the ids.
It merges manifests in their present order and does not change delete manifests.

Each snapshot is sent once, against the metadata that were checked for it. Iceberg's own `commit()` would send it again
after an upgrade to V3, where another commit has given the rows their ids: every row would get a new one. And it takes a
refusal for a proof, and deletes what the same request may still commit (sends.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from compactor.commit.deletion import delete_unused_metadata
from compactor.commit.sends import Sent, can_still_land, java_state_of
from compactor.commit.statistics import carry_statistics
from compactor.errors import FirnlineError, ReplanError, RetryError
from compactor.events import Listener, ManifestsRewritten, ignore
from compactor.iceberg.other_compactors import DEPLOYMENT, RUN_ID
from compactor.iceberg.tables import TableView
from compactor.lease.right import UNLIMITED, CommitRight
from compactor.reasons import Reason
from compactor.spark.java_table import (
    COMMIT_FAILED,
    COMMIT_STATE_UNKNOWN,
    JAVA_ERRORS,
    VALIDATION,
    JavaTable,
    exception_class,
    first_line,
)

LOG = logging.getLogger("firnline")
ATTEMPTS: Final = 5
"""As many as Iceberg's own commit makes by default."""


def rewrite_manifests(
    session: SparkSession,
    table: TableView,
    specs: Iterable[int],
    run_id: str,
    clock: Callable[[], float] = time.monotonic,
    right: CommitRight = UNLIMITED,
    check_turn: Callable[[], object] = lambda: None,
    listener: Listener = ignore,
) -> ManifestsRewritten:
    """Rewrite the manifests of the given partition specs, at most one commit a spec. No data file is touched.

    Iceberg validates each commit: manifests that another commit added stay, and nothing is committed if another commit
    replaced the same manifests. `right` is confirmed before each attempt. What fails after a commit is logged.

    `check_turn` is called right before each commit, minutes after the start; an exception from it ends the rewrite.
    `listener` is told which manifests were deleted again.

    Raises:
        LaterError: from `check_turn`; not everything was rewritten.
        StoppedError: another process has taken over; not everything was rewritten.
        RetryError: the catalog or the store does not answer, or it is unknown whether a commit has landed; a later run
            starts from the table's state at that time.
        ReplanError: the table was replaced or upgraded, or another commit replaced its manifests.
    """
    started = clock()
    snapshot = table.snapshot
    if snapshot is None:
        return ManifestsRewritten(run_id=run_id, table=table.name, before=0, after=0, seconds=0.0)
    java = JavaTable.load(session, table, snapshot.snapshot_id)
    session.sparkContext.setJobGroup(run_id, f"firnline {table.name} manifests")
    properties = {RUN_ID: run_id} | ({DEPLOYMENT: right.deployment} if right.deployment else {})

    def about_to_send() -> None:
        check_turn()
        right.confirm()  # last: nothing may come between it and the commit

    try:
        before = len(_manifests(java))
        if table.keeps_row_lineage:
            java.refresh()
            java.check_unchanged()
            _merge(java, properties, about_to_send, listener)
            with _after_commit(table):
                _carry_statistics(java, run_id, right)
        else:
            for spec_id in specs:
                java.refresh()
                java.check_unchanged()
                right.confirm()  # the Spark job may take minutes
                _order_and_merge(java, spec_id, properties, about_to_send, listener)
                with _after_commit(table):
                    _carry_statistics(java, run_id, right)
    except JAVA_ERRORS as error:
        if exception_class(error) != COMMIT_STATE_UNKNOWN:
            java.refresh()
            java.check_unchanged()
        raise _failure(table, error) from error
    after = before
    with _after_commit(table):
        java.refresh()
        after = len(_manifests(java))
    return ManifestsRewritten(run_id=run_id, table=table.name, before=before, after=after, seconds=clock() - started)


@contextmanager
def _after_commit(table: TableView) -> Iterator[None]:
    """Errors of the block, which follows a commit that has landed, are only logged: they undo nothing."""
    try:
        yield
    except (Py4JError, *JAVA_ERRORS, FirnlineError) as error:
        LOG.warning("%s: manifests were rewritten, but then it could not be read: %s", table.name, first_line(error))


def _manifests(java: JavaTable) -> list[str]:
    snapshot = java.handle.currentSnapshot()
    return [manifest.path() for manifest in snapshot.allManifests(java.handle.io())] if snapshot is not None else []


def _order_and_merge(
    java: JavaTable,
    spec_id: int,
    properties: Mapping[str, str],
    about_to_send: Callable[[], object],
    listener: Listener,
) -> None:
    """Merge the manifests of one spec with the Spark action, in a transaction that is not committed."""
    staged = java.handle.newTransaction().table()
    actions = java.jvm.org.apache.iceberg.spark.actions.SparkActions.get(java.session._jsparkSession)  # noqa: SLF001
    rewrite = actions.rewriteManifests(staged).specId(spec_id)
    for name, value in properties.items():
        rewrite.snapshotProperty(name, value)
    done = rewrite.execute()
    snapshot = staged.currentSnapshot()
    if java.handle.snapshot(snapshot.snapshotId()) is not None:
        return  # nothing was merged

    def again() -> Any | None:
        if java.view.metadata.format_version == 1:
            return None  # Iceberg has deleted what the action wrote, and kept copies for the first snapshot
        update = java.handle.rewriteManifests()
        for manifest in done.rewrittenManifests():
            update.deleteManifest(manifest)
        for manifest in done.addedManifests():
            update.addManifest(manifest)
        return _with(update, properties).apply()

    _commit(java, snapshot, again, about_to_send, properties[RUN_ID], listener)


def _merge(
    java: JavaTable, properties: Mapping[str, str], about_to_send: Callable[[], object], listener: Listener
) -> None:
    """Merge the manifests of all specs in one commit, as one cluster; Iceberg splits it by target size and by spec.

    The update keeps what is merged; where another commit came first, it merges again only what that has replaced.
    """
    one_cluster = java.jvm.com.google.common.base.Functions.constant("")  # Spark ships Guava
    update = _with(java.handle.rewriteManifests().clusterBy(one_cluster), properties)
    _commit(java, update.apply(), update.apply, about_to_send, properties[RUN_ID], listener)


def _with(update: Any, properties: Mapping[str, str]) -> Any:
    for name, value in properties.items():
        update.set(name, value)
    return update


def _commit(
    java: JavaTable,
    snapshot: Any,
    again: Callable[[], Any | None],
    about_to_send: Callable[[], object],
    run_id: str,
    listener: Listener,
) -> None:
    """Send the snapshot. If another commit came first, send the one that is made `again`; None: it cannot be made.

    What was sent is never deleted: it costs little, and no record of it is kept.

    Raises:
        FirnlineError: from `about_to_send`, or the table is another; nothing was committed.
        JAVA_ERRORS: it was refused, or whether it was committed is unknown.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            java.check_unchanged()
            about_to_send()
        except FirnlineError:
            if attempt == 1:
                _delete_unsent(java, snapshot, run_id, listener)
            raise
        try:
            java.send(snapshot)
        except JAVA_ERRORS as error:
            if exception_class(error) != COMMIT_FAILED or attempt == ATTEMPTS:
                raise
            java.refresh()
            if java.handle.snapshot(snapshot.snapshotId()) is not None:
                return  # the refusal answered a second request
            # Iceberg deletes what was merged before when it merges again: nothing may have it, nor hide it.
            state = java_state_of(java)
            next_one = again() if state.shows_history and not can_still_land(Sent.of(snapshot), state) else None
            if next_one is None:
                raise
            snapshot = next_one
        else:
            return


def _delete_unsent(java: JavaTable, snapshot: Any, run_id: str, listener: Listener) -> None:
    """Delete the manifest list of a snapshot that was not sent, and its own manifests: others are the table's."""
    with suppress(Py4JError, *JAVA_ERRORS, FirnlineError):
        manifests = snapshot.allManifests(java.handle.io())
        own = [each.path() for each in manifests if each.snapshotId() == snapshot.snapshotId()]
        written = [*own, snapshot.manifestListLocation()]
        delete_unused_metadata(java.view, run_id, written, set(_manifests(java)), listener)


def _carry_statistics(java: JavaTable, run_id: str, right: CommitRight) -> None:
    """Keep the table's statistics after a commit of this run. Iceberg does not tell the snapshot, if it made one."""
    java.refresh()
    snapshot = java.handle.currentSnapshot()
    while snapshot is not None and snapshot.snapshotId() != java.snapshot_id:
        if snapshot.summary().get(RUN_ID) == run_id:
            carry_statistics(java, snapshot.snapshotId(), right.confirm)
            return
        parent = snapshot.parentId()
        snapshot = java.handle.snapshot(parent) if parent is not None else None


def _failure(table: TableView, error: Exception) -> RetryError | ReplanError:
    kind, message = exception_class(error), f"manifests of {table.name} were not rewritten: {first_line(error)}"
    if kind == VALIDATION:
        return ReplanError(message, reason=Reason.CONFLICT)
    unknown = kind == COMMIT_STATE_UNKNOWN
    return RetryError(message, reason=Reason.COMMIT_STATE_UNKNOWN if unknown else Reason.MANIFEST_REWRITE_FAILED)
