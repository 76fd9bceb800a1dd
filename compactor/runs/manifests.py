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
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pyspark.sql import SparkSession

from compactor.commit.deletion import delete_unused_metadata
from compactor.commit.history import CommitSummary
from compactor.commit.sends import Sent, can_still_land, java_state_of
from compactor.errors import ReplanError, RetryError
from compactor.events import Listener, ManifestsRewritten
from compactor.iceberg.tables import TableView
from compactor.lease.right import CommitRight
from compactor.planning.budget import Charge, uncharged
from compactor.reasons import Reason
from compactor.runs.committable import CommitTools, Head, Pending
from compactor.runs.committing import UNREADABLE, commit
from compactor.runs.supervisor import RunWatch
from compactor.spark.java_table import JAVA_ERRORS, VALIDATION, JavaTable, exception_class, first_line

LOG = logging.getLogger("firnline")
ENGINE = "manifests"


def rewrite_manifests(
    session: SparkSession,
    table: TableView,
    specs: Iterable[int],
    run_id: str,
    tools: CommitTools,
    check_turn: Callable[[], object] = lambda: None,
    watch: RunWatch | None = None,
    charge: Charge = uncharged,
) -> ManifestsRewritten:
    """Rewrite the manifests of the given partition specs, at most one commit a spec. No data file is touched.

    Iceberg validates each commit: manifests that another commit added stay, and nothing is committed if another commit
    replaced the same manifests. What fails after a commit was found in the table is logged.

    `check_turn` is called right before each commit, minutes after the start; an exception from it ends the rewrite.
    `watch` can stop it before a commit. `charge` is called with the costs of commits.

    Raises:
        LaterError: from `check_turn`, or Flink's maintenance holds its lock; not everything was rewritten.
        StoppedError: another process has taken over; not everything was rewritten.
        CommitUnknownError: it is unknown whether a commit has landed.
        RetryError: the catalog or the store does not answer; a later run starts from the table's state at that time.
        ReplanError: the table was replaced or upgraded, or another commit replaced its manifests.
    """
    started = tools.ticks()
    if table.snapshot is None:
        return ManifestsRewritten(run_id=run_id, table=table.name, before=0, after=0, seconds=0.0)
    java = JavaTable.load(session, table, table.snapshot.snapshot_id)
    session.sparkContext.setJobGroup(run_id, f"firnline {table.name} manifests")
    before = after = len(_manifests(java))
    parts = [None] if table.keeps_row_lineage else [*specs]
    pending = Pending(java, run_id, watch=watch or RunWatch(), charge=charge)
    for number, spec_id in enumerate(parts, 1):
        part = f"{number}/{len(parts)}"
        summary = CommitSummary(run_id, (ENGINE,), part, deployment=tools.right.deployment)
        commit(_Merging(java, spec_id, summary, check_turn, tools.right, tools.listener), pending, tools)
    try:
        java.refresh()
        after = len(_manifests(java))
    except UNREADABLE as error:
        LOG.warning("%s: manifests were rewritten, but then it could not be read: %s", table.name, first_line(error))
    seconds = tools.ticks() - started
    return ManifestsRewritten(run_id=run_id, table=table.name, before=before, after=after, seconds=seconds)


def _manifests(java: JavaTable) -> list[str]:
    snapshot = java.handle.currentSnapshot()
    return [manifest.path() for manifest in snapshot.allManifests(java.handle.io())] if snapshot is not None else []


@dataclass
class _Merging:
    """Merges the manifests of one spec by the Spark action, or of all specs by Iceberg's core (None)."""

    java: JavaTable
    spec_id: int | None
    summary: CommitSummary
    check_turn: Callable[[], object]
    right: CommitRight
    listener: Listener
    stage: str = "hold"
    waits_for_writers: ClassVar[bool] = False

    def prepare(self, head: Head) -> _Merged | None:
        """As of `Committable`. None: nothing was merged."""
        if head.attempt > 1:
            raise ReplanError(
                f"manifests of {head.table.name} were not rewritten: other commits came first", reason=Reason.CONFLICT
            )
        if self.spec_id is None:
            return _Merged(_Merge(self.java, self.summary, self.listener), self.check_turn)
        self.right.confirm()  # the Spark job may take minutes
        try:
            done, snapshot = self._ordered(self.spec_id)
        except JAVA_ERRORS as error:
            raise _failure(head.table, error) from error
        if self.java.handle.snapshot(snapshot.snapshotId()) is not None:
            return None
        return _Merged(_Ordered(self.java, self.summary, self.listener, done=done, staged=snapshot), self.check_turn)

    def _ordered(self, spec_id: int) -> tuple[Any, Any]:
        """The Spark action in a transaction that is not committed: its result, and its snapshot."""
        java = self.java
        staged = java.handle.newTransaction().table()
        actions = java.jvm.org.apache.iceberg.spark.actions.SparkActions.get(java.session._jsparkSession)  # noqa: SLF001
        rewrite = actions.rewriteManifests(staged).specId(spec_id)
        for name, value in self.summary.properties.items():
            rewrite.snapshotProperty(name, value)
        return rewrite.execute(), staged.currentSnapshot()


@dataclass(frozen=True)
class _Merged:
    """As of `Prepared`."""

    update: _Merge
    check_turn: Callable[[], object]
    files: Collection[str] = ()

    def check_outputs(self) -> None:
        """It may be another's turn by now."""
        self.check_turn()


@dataclass(eq=False)
class _Merge:
    """All manifests, as one cluster; Iceberg splits it by target size and by spec.

    The update keeps what is merged; where another commit came first, it merges again only what that has replaced.
    """

    java: JavaTable
    summary: CommitSummary
    listener: Listener
    update: Any = None
    made: list[Any] = field(default_factory=list)
    planned: ClassVar[None] = None

    def make(self) -> Any:
        """As of `Update`."""
        try:
            if self.made:
                self._check_lost(self.made[-1])
            self.made.append(self._next())
        except JAVA_ERRORS as error:
            raise _failure(self.java.view, error) from error
        return self.made[-1]

    def _check_lost(self, sent: Any) -> None:
        """Iceberg deletes what was merged before when it merges again: nothing may have it, nor hide it.

        Raises:
            RetryError: what was sent has landed, can still land, or is hidden.
        """
        state, sending = java_state_of(self.java), Sent.of(sent)
        has_landed = state.manifest_list_of(sending.snapshot_id) == sending.manifest_list
        if not state.shows_history or has_landed or can_still_land(sending, state):
            raise _not_again(self.java.view)

    def _next(self) -> Any:
        if self.update is None:
            one_cluster = self.java.jvm.com.google.common.base.Functions.constant("")  # Spark ships Guava
            self.update = self._with_summary(self.java.handle.rewriteManifests().clusterBy(one_cluster))
        return self.update.apply()

    def _with_summary(self, update: Any) -> Any:
        for name, value in self.summary.properties.items():
            update.set(name, value)
        return update

    @property
    def _written(self) -> Sequence[Any]:
        """The snapshots whose files were written."""
        return self.made

    def clean_up(self, used: Collection[Any], *, sent: bool) -> None:
        """As of `Update`. What was sent is never deleted: it costs little, and no record of it is kept."""
        if sent:
            return
        java, run_id = self.java, self.summary.run_id
        kept = {str(each.path()) for snapshot in used for each in snapshot.allManifests(java.handle.io())}
        for snapshot in self._written:
            with suppress(*UNREADABLE):
                manifests = snapshot.allManifests(java.handle.io())
                own = [each.path() for each in manifests if each.snapshotId() == snapshot.snapshotId()]
                delete_unused_metadata(java.view, run_id, [*own, snapshot.manifestListLocation()], kept, self.listener)


@dataclass(eq=False)
class _Ordered(_Merge):
    """Manifests that the Spark action has merged. `staged`: the snapshot that it made, for the head of that time."""

    done: Any = None
    staged: Any = None

    @property
    def _written(self) -> Sequence[Any]:
        return [self.staged, *(each for each in self.made if each is not self.staged)]

    def _next(self) -> Any:
        head = self.java.handle.snapshot(self.java.view.ref)
        if not self.made and head is not None and head.snapshotId() == self.staged.parentId():
            return self.staged
        if self.java.view.metadata.format_version == 1:  # Iceberg has deleted what the action wrote, and kept copies
            raise _not_again(self.java.view)
        update = self.java.handle.rewriteManifests()
        for manifest in self.done.rewrittenManifests():
            update.deleteManifest(manifest)
        for manifest in self.done.addedManifests():
            update.addManifest(manifest)
        return self._with_summary(update).apply()


def _not_again(table: TableView) -> RetryError:
    what = f"manifests of {table.name} were not rewritten: another commit came first"
    return RetryError(what, reason=Reason.MANIFEST_REWRITE_FAILED)


def _failure(table: TableView, error: Exception) -> RetryError | ReplanError:
    kind, message = exception_class(error), f"manifests of {table.name} were not rewritten: {first_line(error)}"
    if kind == VALIDATION:
        return ReplanError(message, reason=Reason.CONFLICT)
    return RetryError(message, reason=Reason.MANIFEST_REWRITE_FAILED)
