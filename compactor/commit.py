"""One `replace` commit for a whole run, through Iceberg's own RewriteDataFilesCommitManager.

Sequence numbers: outputs carry the planned snapshot's data sequence number and validation starts from it (spec:
sequence numbers; seed rules 1 to 3), so deletes committed meanwhile either still apply or fail the commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError, Py4JNetworkError

from compactor.errors import CommitUnknownError, FirnlineError, ReplanError, RetryError
from compactor.java_table import COMMIT_FAILED, COMMIT_STATE_UNKNOWN, VALIDATION, JavaTable, exception_class, first_line

RUN_ID = "firnline.run-id"
ENGINES = "firnline.engines"
SETTLE_ATTEMPTS = 5
COMMIT_ATTEMPTS = 3  # each holds Iceberg's own retries (commit.retry.num-retries)


@dataclass(frozen=True)
class Replacement:
    """One group's share ready to be committed: Java scan tasks of the inputs, Java `DataFile`s of the outputs."""

    tasks: Any
    outputs: tuple[Any, ...]
    files_in: int


def commit_replacements(
    table: JavaTable,
    replacements: Sequence[Replacement],
    run_id: str,
    engines: Sequence[str],
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Commit all replacements as one `replace` snapshot and return its id.

    Raises:
        ReplanError: a file to be replaced is gone, or a delete was committed against it; nothing was committed.
        RetryError: the catalog kept refusing; nothing was committed.
        CommitUnknownError: nobody can say yet whether it was committed; delete nothing.
    """
    for attempt in range(1, COMMIT_ATTEMPTS + 1):
        table.refresh()
        table.check_unchanged()
        try:
            _commit_once(table, replacements, run_id, engines)
        except Py4JJavaError as error:
            retry = _react(table, error, run_id, last=attempt == COMMIT_ATTEMPTS, sleep=sleep)
            if retry:
                sleep(attempt)
                continue
        except Py4JNetworkError as error:
            raise CommitUnknownError(f"the JVM went away during the commit of run {run_id}: {error}") from error
        return _verified(table, replacements, run_id)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _commit_once(table: JavaTable, replacements: Sequence[Replacement], run_id: str, engines: Sequence[str]) -> None:
    jvm = table.jvm
    groups = jvm.java.util.HashSet()
    for index, replacement in enumerate(replacements):
        groups.add(_file_group(table, index, replacement))
    summary = jvm.java.util.HashMap()
    summary.put(RUN_ID, run_id)
    summary.put(ENGINES, ",".join(sorted(set(engines))))
    manager = jvm.org.apache.iceberg.actions.RewriteDataFilesCommitManager(
        table.handle,
        table.snapshot_id,
        True,
        summary,
    )
    manager.commitFileGroups(groups)


def _file_group(table: JavaTable, index: int, replacement: Replacement) -> Any:
    actions = table.jvm.org.apache.iceberg.actions
    first = replacement.tasks.get(0).file()
    info = (
        actions.ImmutableRewriteDataFiles.FileGroupInfo.builder()
        .globalIndex(index)
        .partitionIndex(index)
        .partition(first.partition())
        .build()
    )
    unbounded = 1 << 50  # sizes steer Iceberg's own runner, which is not used here
    group = actions.RewriteFileGroup(
        info, replacement.tasks, first.specId(), unbounded, unbounded, len(replacement.outputs)
    )
    outputs = table.jvm.java.util.HashSet()
    for output in replacement.outputs:
        outputs.add(output)
    group.setOutputFiles(outputs)
    return group


def _react(table: JavaTable, error: Py4JJavaError, run_id: str, *, last: bool, sleep: Callable[[float], None]) -> bool:
    """True to try again, False when the commit turns out to have landed; else raises the reaction's error."""
    kind, message = exception_class(error), first_line(error)
    if kind == VALIDATION:
        raise ReplanError(f"another commit touched the files of run {run_id}: {message}", reason="conflict") from error
    if kind == COMMIT_FAILED:
        if last:
            raise RetryError(f"the catalog kept refusing run {run_id}: {message}", reason="commit_refused") from error
        return True
    if kind != COMMIT_STATE_UNKNOWN and not _may_have_landed(kind):
        raise RetryError(f"run {run_id} could not be committed: {message}", reason="commit_failed") from error
    if find_run(table, run_id, sleep=sleep) is not None:
        return False
    raise CommitUnknownError(
        f"whether run {run_id} was committed is unknown ({message}); nothing is deleted, the sweep settles it"
    ) from error


def _may_have_landed(kind: str) -> bool:
    """Only errors raised before the catalog is asked are known failures."""
    return not kind.startswith(("java.lang.IllegalArgument", "org.apache.iceberg.exceptions.NoSuch"))


def find_run(table: JavaTable, run_id: str, sleep: Callable[[float], None] = time.sleep) -> int | None:
    """The id of the snapshot that carries the run id, looked for a few times; None when it is not there (yet)."""
    for attempt in range(SETTLE_ATTEMPTS):
        try:
            table.refresh()
            found = _snapshot_of(table, run_id)
            if found is not None:
                return found
        except (Py4JJavaError, RetryError, ReplanError):
            pass  # the catalog is still unwell, or the table is gone: ask again below
        sleep(2**attempt / 4)
    return None


def _snapshot_of(table: JavaTable, run_id: str) -> int | None:
    snapshot = table.handle.currentSnapshot()
    while snapshot is not None and snapshot.snapshotId() != table.snapshot_id:
        if snapshot.summary().get(RUN_ID) == run_id:
            return int(snapshot.snapshotId())
        parent = snapshot.parentId()
        snapshot = table.handle.snapshot(parent) if parent is not None else None
    return None


def _verified(table: JavaTable, replacements: Sequence[Replacement], run_id: str) -> int:
    """The committed snapshot must hold the run whole: "success" without a commit was seen (apache/iceberg 17202)."""
    try:
        table.refresh()
        snapshot_id = _snapshot_of(table, run_id)
    except (Py4JJavaError, RetryError, ReplanError) as error:
        raise CommitUnknownError(f"run {run_id} was sent, reading it back failed: {first_line(error)}") from error
    if snapshot_id is None:
        raise CommitUnknownError(f"run {run_id} reported success, yet no snapshot carries it")
    summary = table.handle.snapshot(snapshot_id).summary()
    removed = int(summary.get("deleted-data-files") or 0)
    added = int(summary.get("added-data-files") or 0)
    expected_in = sum(replacement.files_in for replacement in replacements)
    expected_out = sum(len(replacement.outputs) for replacement in replacements)
    if (removed, added) != (expected_in, expected_out):
        raise FirnlineError(
            f"snapshot {snapshot_id} of run {run_id} replaced {removed} files by {added}, planned were "
            f"{expected_in} by {expected_out}; roll the table back to {table.snapshot_id} and report this",
            reason="commit_differs",
        )
    return snapshot_id
