"""One `replace` commit through Iceberg's RewriteFiles: remove input files and covered delete files, add outputs.

Iceberg makes and validates the snapshot (`apply`). The snapshot is then inspected and sent once, against the metadata
for which it was made. Iceberg's own `commit()` makes a new snapshot, not inspected, whenever another commit comes
first. Then it is unknown which snapshot lands, and until when the commit of a dead process can still land.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from py4j.protocol import Py4JError

from compactor.commit.history import REPLACE, goes_on_without, rolled_back_with, snapshots_between
from compactor.commit.search import SETTLE_ATTEMPTS, Search, committed_id, find_commit
from compactor.commit.sends import Sent
from compactor.commit.snapshots import NO_DELETES, Changes, CommitSummary, NewDeletes, Replacement, Snapshots
from compactor.errors import CommitUnknownError, FirnlineError, ReplanError, RetryError
from compactor.events import Listener, ignore
from compactor.iceberg.manifest_entries import FileEntry
from compactor.patience.backoff import SOON
from compactor.patience.deadline import NEVER, Deadline
from compactor.reasons import Reason
from compactor.spark.java_table import (
    COMMIT_FAILED,
    JAVA_ERRORS,
    NOT_AUTHORIZED,
    JavaTable,
    delete_file,
    exception_class,
    first_line,
)
from compactor.whole_numbers import whole_number

LOG = logging.getLogger("firnline")
FEWEST_ATTEMPTS = 10  # Iceberg's default (4 retries) is too few beside a writer that commits every second
FIRST_LOGGED_ATTEMPT = 3  # one or two lost races are usual beside a writer
RENEWALS = 4  # times that a credential may end while the commit is prepared; the next one ends the run
REFUSALS = {
    COMMIT_FAILED: Reason.COMMIT_REFUSED,
    NOT_AUTHORIZED: Reason.CREDENTIALS_EXPIRED,
    "org.apache.iceberg.exceptions.ForbiddenException": Reason.ACCESS_DENIED,
    "org.apache.iceberg.exceptions.BadRequestException": Reason.COMMIT_REFUSED,
}
"""Answers to a commit that was not carried out: another came first, or Java's login has expired or lacks a right.

REST catalogs before Iceberg 1.11 also answer 400 where a commit to another branch came first.
"""
HOPELESS = ("java.lang.IllegalArgument", "org.apache.iceberg.exceptions.NoSuch")
"""Answers after which the same snapshot is not sent again, nor another one made: the next would be the same."""
ADDED_DELETES = "added-delete-files"
RETRIES = "commit.retry.num-retries"
CLOCK_SIGNS = ("Invalid update timestamp", "Invalid snapshot timestamp", "sorted snapshot log entries")
CLOCK_REMEDY = "; the clocks of this host, the catalog and the writers differ by more than a minute: set them (NTP)"
"""Iceberg refuses a snapshot that is more than a minute older than the one before, or newer than the catalog's time."""


class Landed(NamedTuple):
    """A snapshot that was committed, and the ones before it that may be rolled back together with it, and one more."""

    snapshot_id: int
    before: tuple[int, ...]


def commit_replacements(
    table: JavaTable,
    replacements: Sequence[Replacement],
    dangling: Sequence[FileEntry],
    summary: CommitSummary,
    about_to_send: Callable[[Sent], object] = lambda _send: None,
    sleep: Callable[[float], None] = time.sleep,
    new: NewDeletes = NO_DELETES,
    listener: Listener = ignore,
    deadline: Deadline = NEVER,
) -> Landed:
    """Commit all replacements as one `replace` snapshot on the table's branch.

    Args:
        table: Loaded at the planned snapshot.
        replacements: Files to remove and files to add.
        dangling: Delete files without any row left to delete; the same commit removes them.
        summary: Properties for the snapshot's summary.
        about_to_send: Called before each attempt is sent, to put it on record. If it raises, nothing more is sent.
        sleep: Called between attempts with a number of seconds.
        new: Delete files for rows of the outputs.
        listener: Is told which metadata files of attempts were deleted.
        deadline: After which no other attempt is made.

    Raises:
        ReplanError: an input file was removed or added again, a delete was committed against it, or the table was
            replaced (`check_unchanged`); nothing was committed so far. What was sent before is on record.
        RetryError: the catalog refused all attempts; nothing was committed.
        CommitUnknownError: the outcome is unknown, or a snapshot that was sent can still land; delete nothing.
    """
    changes = Changes(
        replacements, table.delete_files([delete_file(entry) for entry in dangling]), table.delete_files(new.files), new
    )
    return _Commit(table, changes, summary, about_to_send, sleep, listener, deadline).carry_out()


class _Commit:
    """One commit, in several attempts. `sent`: the snapshots of those whose answer was no success."""

    def __init__(
        self,
        table: JavaTable,
        changes: Changes,
        summary: CommitSummary,
        about_to_send: Callable[[Sent], object],
        sleep: Callable[[float], None],
        listener: Listener,
        deadline: Deadline,
    ) -> None:
        self.deadline = deadline
        self.table = table
        self.changes = changes
        self.summary = summary
        self.about_to_send = about_to_send
        self.sleep = sleep
        self.snapshots = Snapshots(table, changes, summary, listener)
        self.sent: list[Any] = []

    def carry_out(self) -> Landed:
        """Raises as `commit_replacements`."""
        table, changes, summary = self.table, self.changes, self.summary
        try:
            snapshot = self._sent_at_last()
        except CommitUnknownError:
            raise
        except BaseException as error:
            snapshot = self._landed_late(error) if self.sent else None
            if snapshot is None:
                self.snapshots.clean_up()
                raise
        before = rolled_back_with(table, snapshot)
        found = _verified(table, snapshot, changes, summary, self.sleep)
        self.snapshots.clean_up(table.handle.snapshot(found) or snapshot)
        return Landed(found, before)

    def _sent_at_last(self) -> Any:
        """Make, check and send a snapshot until the catalog accepts one; returns that one."""
        table, attempts = self.table, max(FEWEST_ATTEMPTS, 1 + _retries(self.table))
        last = RetryError(
            f"run {self.summary.run_id} was not committed: other commits came first in all attempts",
            reason=Reason.COMMIT_REFUSED,
        )
        for attempt in range(attempts):
            table.refresh()
            snapshot = _made(self.snapshots, table, renew=attempt < RENEWALS)
            if snapshot is None:
                continue
            self._check(snapshot)
            self.sent.append(snapshot)
            self.snapshots.sent(snapshot)
            why = "another commit came first"
            try:
                if _sent(table, snapshot, self.summary, self.sleep):
                    return snapshot
            except RefusedError as error:
                last, why = error, str(error)
            pause = SOON.seconds(attempt + 1)
            if attempt + 1 >= FIRST_LOGGED_ATTEMPT:
                message = "%s: %s in attempt %d of %d to commit run %s; next attempt in %.1f s"
                LOG.info(message, table.view.name, why, attempt + 1, attempts, self.summary.run_id, pause)
            if pause > self.deadline.left:
                break
            self.sleep(pause)
        raise last

    def _check(self, snapshot: Any) -> None:
        """What is looked at before the snapshot is sent. Raises: it is not sent."""
        if any(self.table.handle.snapshot(each.snapshotId()) is not None for each in self.sent):
            raise ReplanError(  # an expiry of that snapshot may delete the outputs
                f"run {self.summary.run_id} was committed, and another commit rolled it back", reason=Reason.CONFLICT
            )
        self.table.check_unchanged()  # `make` has refreshed the table: check the metadata that is sent against
        _check_parent(self.table, snapshot, self.changes, self.summary)
        _check_counts(snapshot, self.changes, self.summary)
        try:
            self.table.with_snapshot(snapshot)
        except JAVA_ERRORS as error:
            raise _hopeless(error, self.summary) from error
        self.about_to_send(Sent.of(snapshot))

    def _landed_late(self, error: BaseException) -> Any | None:
        """The commit has failed, but what was sent may have landed since: that snapshot. None: nothing has landed.

        Where the work is planned again, what was sent need not be settled: it can land in the place of the next commit,
        not beside it.

        Raises:
            CommitUnknownError: that is not known, or a snapshot can still land.
        """
        unknown = CommitUnknownError(
            f"whether run {self.summary.run_id} was committed is unknown ({error}); nothing is deleted until the sweep "
            "finds out",
            reason=error.reason if isinstance(error, RetryError) else Reason.COMMIT_STATE_UNKNOWN,
        )
        if not isinstance(error, FirnlineError):
            raise unknown from error
        try:
            seen = find_commit(self.table, self.sent[-1], self.summary, self.sleep, attempts=1)
            is_over = isinstance(error, ReplanError) or not self.snapshots.can_still_land()
        except BaseException as second:
            raise unknown from second
        if seen is Search.FOUND:
            return self.sent[-1]
        if seen is Search.MISSING and is_over:
            return None
        raise unknown from error


def _made(snapshots: Snapshots, table: JavaTable, *, renew: bool) -> Any | None:
    """The snapshot of one attempt; None if the credential had ended, and was renewed."""
    try:
        return snapshots.make()
    except RetryError as error:
        if error.reason != Reason.CREDENTIALS_EXPIRED or not renew:
            raise
        table.load_anew()
        return None


def _retries(table: JavaTable) -> int:
    return whole_number(table.view.properties.get(RETRIES, "")) or 0


class RefusedError(RetryError):
    """The catalog refused the commit for another reason than that another came first, and it was not found."""


def _sent(table: JavaTable, snapshot: Any, summary: CommitSummary, sleep: Callable[[float], None]) -> bool:
    """Send the snapshot once; whether it was committed. If not, it may still land after any answer (`sends.py`).

    Raises:
        RetryError: it was refused, and would be again.
        RefusedError: it was refused.
        CommitUnknownError: the outcome is unknown.
    """
    try:
        return _answered(table, snapshot, summary, sleep)
    except FirnlineError:
        raise
    except BaseException as error:  # an interrupt, or the JVM is lost, also while its answer is judged
        raise CommitUnknownError(
            f"the commit of run {summary.run_id} was interrupted ({type(error).__name__}: {error}); nothing is deleted "
            "until the sweep finds out"
        ) from error


def _answered(table: JavaTable, snapshot: Any, summary: CommitSummary, sleep: Callable[[float], None]) -> bool:
    try:
        table.send(snapshot)
    except JAVA_ERRORS as error:
        return _landed(table, snapshot, error, summary, sleep)
    return True


def _check_parent(table: JavaTable, snapshot: Any, changes: Changes, summary: CommitSummary) -> None:
    """Check the commits between the head that was compared and the snapshot's parent, where Iceberg does not.

    Iceberg makes the snapshot for the newest head, which may be another one. It validates nothing where no data file is
    replaced, and never looks for deletes in `replace` snapshots. Conversions of equality deletes are such snapshots.

    Raises:
        ReplanError: another commit came in between; it was not sent.
    """
    compared, parent = changes.new.compared, snapshot.parentId()
    if compared is None:
        return
    if not changes.replacements:
        if parent != compared:
            raise ReplanError(f"another commit came before that of run {summary.run_id}", reason=Reason.CONFLICT)
        return
    between = snapshots_between(table, parent, compared)
    if between is None:
        raise ReplanError(
            f"commits that came before that of run {summary.run_id} are not listed by the table", reason=Reason.CONFLICT
        )
    if any(each.operation() == REPLACE and int(each.summary().get(ADDED_DELETES) or 0) for each in between):
        raise ReplanError(
            f"another process added deletes before the commit of run {summary.run_id}", reason=Reason.CONFLICT
        )


def _check_counts(snapshot: Any, changes: Changes, summary: CommitSummary) -> None:
    """Check that the snapshot replaces the planned number of files, and deletes the planned rows of the outputs.

    Iceberg removes by path: a path listed twice in the table would be removed twice.

    Raises:
        ReplanError: the numbers differ; it was not sent.
    """
    if _counts(snapshot.summary()) != changes.planned:
        raise ReplanError(
            f"the commit of run {summary.run_id} would {_told(_counts(snapshot.summary()))}, but the plan would "
            f"{_told(changes.planned)}: the table now lists a file twice",
            reason=Reason.CONFLICT,
        )


def _counts(summary: Mapping[str, str]) -> tuple[int, int, int]:
    """Data files that a snapshot removed and added, and rows that its new delete files delete by position."""
    names = ("deleted-data-files", "added-data-files", "added-position-deletes")
    removed, added, rows = (int(summary.get(name) or 0) for name in names)
    return removed, added, rows


def _told(counts: tuple[int, int, int]) -> str:
    removed, added, rows = counts
    return f"replace {removed} files by {added}" + (f" and delete {rows} of their rows" if rows else "")


def _landed(
    table: JavaTable, snapshot: Any, error: Exception, summary: CommitSummary, sleep: Callable[[float], None]
) -> bool:
    kind, message, run_id = exception_class(error), first_line(error), summary.run_id
    if kind.startswith(HOPELESS):
        raise _hopeless(error, summary) from error
    unknown = CommitUnknownError(
        f"whether run {run_id} was committed is unknown ({message}); nothing is deleted until the sweep finds out"
    )
    try:
        # A refusal may answer a retry of the HTTP client, whose first request was committed.
        found = find_commit(table, snapshot, summary, sleep, attempts=1 if kind == COMMIT_FAILED else SETTLE_ATTEMPTS)
    except BaseException as second:
        raise unknown from second
    if found is Search.UNANSWERED or (found is Search.MISSING and kind not in REFUSALS):
        raise unknown from error
    if found is Search.FOUND:
        return True
    if kind != COMMIT_FAILED:
        raise RefusedError(f"the catalog refuses to commit run {run_id}: {message}", reason=REFUSALS[kind]) from error
    return False


def _hopeless(error: Exception, summary: CommitSummary) -> RetryError:
    message = first_line(error)
    remedy = CLOCK_REMEDY if any(sign in message for sign in CLOCK_SIGNS) else ""
    return RetryError(f"run {summary.run_id} could not be committed: {message}{remedy}", reason=Reason.COMMIT_FAILED)


def _verified(
    table: JavaTable, snapshot: Any, changes: Changes, summary: CommitSummary, sleep: Callable[[float], None]
) -> int:
    """Read the table again and check that a snapshot holds the whole run: a catalog has reported success without a
    commit (apache/iceberg 17202).
    """
    run_id = summary.run_id
    try:
        snapshot_id = _seen_again(table, snapshot, summary, sleep)
    except CommitUnknownError:
        raise
    except (Py4JError, FirnlineError) as error:
        raise CommitUnknownError(
            f"run {run_id} was sent, but the table cannot be read again: {first_line(error)}"
        ) from error
    if snapshot_id is None:
        raise ReplanError(
            f"run {run_id} was committed, and the catalog rolled it back for a writer", reason=Reason.CONFLICT
        )
    landed = table.handle.snapshot(snapshot_id)
    if landed is None:  # a catalog that lists the newest snapshot alone; what was sent has been checked
        return snapshot_id
    found = landed.summary()
    if _counts(found) != changes.planned:
        raise FirnlineError(
            f"snapshot {snapshot_id} of run {run_id} did {_told(_counts(found))}, but the plan would "
            f"{_told(changes.planned)}; roll the table back to snapshot {table.snapshot_id} and report this",
            reason=Reason.COMMIT_DIFFERS,
        )
    return snapshot_id


def _seen_again(table: JavaTable, snapshot: Any, summary: CommitSummary, sleep: Callable[[float], None]) -> int | None:
    """The id of the run's snapshot in the table, which a catalog may show late; None if it was rolled back for a
    writer: the branch goes on from its parent without it, or from an older one that was rolled back too.

    Raises:
        FirnlineError: the table cannot be read (CommitUnknownError: it can, and the snapshot is not there).
    """
    before = rolled_back_with(table, snapshot)
    for attempt in range(1, SETTLE_ATTEMPTS + 1):
        table.refresh()
        snapshot_id = committed_id(table, snapshot, summary)
        if snapshot_id is not None:
            return snapshot_id
        if goes_on_without(table, before):
            return None
        if attempt < SETTLE_ATTEMPTS:
            sleep(SOON.seconds(attempt))
    raise CommitUnknownError(f"the catalog reported success for run {summary.run_id}, but no snapshot has its id")
