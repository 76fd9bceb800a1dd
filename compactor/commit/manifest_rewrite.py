"""Rewrite manifests by Iceberg's own code into fewer manifests.

Up to V2 the Spark action does it, ordered by partition. On V3 that action (Iceberg 1.11) gives every row a new
`_row_id`, because it writes entries without the ids that they inherit. Iceberg's core `RewriteManifests` keeps the ids.
It merges manifests in their present order and does not change delete manifests.

Iceberg commits what was read before an upgrade to V3 also after it, where another commit has given the rows their ids:
every row would get a new one. So the action commits together with a change that a table of another version refuses, and
core's snapshot is sent once as long as the rows have no ids.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from compactor.commit.deletion import delete_unused_metadata
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
FORMAT_VERSION: Final = "format-version"
REFUSED: Final = "java.lang.IllegalArgumentException"
"""Iceberg's answer to a downgrade of the format version."""
NOT_COMMITTED: Final = (REFUSED, VALIDATION, COMMIT_FAILED)


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
    replaced the same manifests. `right` is confirmed before each commit, which Iceberg may repeat: a JVM that is paused
    in between commits late, against the same validation. What fails after a commit is logged.

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
                right.confirm()
                _order_and_merge(java, spec_id, properties, about_to_send, listener)
                with _after_commit(table):
                    _carry_statistics(java, run_id, right)
    except JAVA_ERRORS as error:
        if exception_class(error) == REFUSED:
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
    """Merge the manifests of one spec with the Spark action, in a transaction that another format version refuses."""
    transaction = java.handle.newTransaction()
    actions = java.jvm.org.apache.iceberg.spark.actions.SparkActions.get(java.session._jsparkSession)  # noqa: SLF001
    rewrite = actions.rewriteManifests(transaction.table()).specId(spec_id)
    for name, value in properties.items():
        rewrite.snapshotProperty(name, value)
    written = [manifest.path() for manifest in rewrite.execute().addedManifests()]
    try:
        # No change, unless the version is another. Iceberg applies it in each attempt again, and refuses a downgrade.
        version = str(java.view.metadata.format_version)
        transaction.updateProperties().set(FORMAT_VERSION, version).commit()
        about_to_send()
        transaction.commitTransaction()
    except (*JAVA_ERRORS, FirnlineError) as error:
        if isinstance(error, FirnlineError):
            _delete_merged(java, properties[RUN_ID], transaction.table().currentSnapshot(), listener)
        elif exception_class(error) in NOT_COMMITTED:
            _delete_unused(java, properties[RUN_ID], written, listener)
        raise


def _delete_unused(java: JavaTable, run_id: str, written: Sequence[str], listener: Listener) -> None:
    """Delete the action's manifests, unless the commit has landed: a refusal may answer its second request."""
    with suppress(Py4JError, *JAVA_ERRORS, FirnlineError):
        java.refresh()
        if not any(each.summary().get(RUN_ID) == run_id for each in java.handle.snapshots()):
            delete_unused_metadata(java.view, run_id, written, set(_manifests(java)), listener)


def _merge(
    java: JavaTable, properties: Mapping[str, str], about_to_send: Callable[[], object], listener: Listener
) -> None:
    """Merge the manifests of all specs in one commit, as one cluster; Iceberg splits it by target size and by spec.

    A transaction keeps what is merged; where another commit comes first, it merges again only what that has replaced.
    """
    one_cluster = java.jvm.com.google.common.base.Functions.constant("")  # Spark ships Guava
    transaction = java.handle.newTransaction()
    rewrite = transaction.rewriteManifests().clusterBy(one_cluster)
    for name, value in properties.items():
        rewrite.set(name, value)
    rewrite.commit()
    snapshot = transaction.table().currentSnapshot()
    try:
        java.check_unchanged()
        about_to_send()
    except FirnlineError:
        _delete_merged(java, properties[RUN_ID], snapshot, listener)
        raise
    if not java.plans_without_row_ids:
        transaction.commitTransaction()
        return
    java.send(snapshot)


def _delete_merged(java: JavaTable, run_id: str, snapshot: Any, listener: Listener) -> None:
    """Delete the manifest list of a snapshot that was not sent, and its own manifests: others are the table's."""
    with suppress(Py4JError, *JAVA_ERRORS):
        if java.handle.snapshot(snapshot.snapshotId()) is not None:
            return  # nothing was merged: it is the table's
        manifests = snapshot.allManifests(java.handle.io())
        own = [each.path() for each in manifests if each.snapshotId() == snapshot.snapshotId()]
        _delete_unused(java, run_id, [*own, snapshot.manifestListLocation()], listener)


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
