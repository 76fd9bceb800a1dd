"""Decisions: the rows of the history, made from events. Pure.

Each committed or dropped file group is a row. Every commit finds the same reasons to skip a partition again, so the
same reason is a row only once a day.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from compactor.events import (
    EqualityDeletesConverted,
    Event,
    FileDeleted,
    GroupCommitted,
    GroupDropped,
    GroupPlan,
    ManifestsRewritten,
    PartitionsSkipped,
    RunCommitted,
    RunFailed,
    RunSkipped,
    SkippedPartition,
)
from compactor.partitions import JsonValue, PartitionKey, partition_text
from compactor.table_names import TableName

DONE, DROPPED, SKIPPED, DELETED = "done", "dropped", "skipped", "deleted"
RECORDED = (
    GroupCommitted, GroupDropped, RunCommitted, RunFailed, RunSkipped, PartitionsSkipped, ManifestsRewritten,
    EqualityDeletesConverted, FileDeleted,
)  # fmt: skip
"""Events that become rows."""
LONGEST_WHY = 2000  # characters; error messages of other systems can be very long
MOST_REMEMBERED = 100_000  # reasons to skip, about 15 MB; a forgotten reason is recorded again
REPEAT_SECONDS = 86_400.0  # so that every day of the history is complete
_FIGURES = re.compile(r"\d+")


@dataclass(frozen=True)
class Decision:
    """One row. docs/history.md explains the columns. `at`: seconds since the epoch."""

    at: float
    table: TableName
    decision: str
    reason: str
    why: str = ""
    run_id: str | None = None
    spec_id: int | None = None
    partition: str | None = None
    partition_json: str | None = None
    branch: str | None = None
    strategy: str | None = None
    engine: str | None = None
    engine_reason: str | None = None
    files_in: int | None = None
    files_out: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    bytes_decoded: int | None = None
    rows_in: int | None = None
    rows_deleted: int | None = None
    rows_out: int | None = None
    delete_files_removed: int | None = None
    seconds: float | None = None
    planned_snapshot_id: int | None = None
    committed_snapshot_id: int | None = None


def decisions_of(event: Event, at: float) -> list[Decision]:  # noqa: C901 - one case per event type
    """The rows of one event received `at`; most events have none."""
    found: list[Decision] = []
    table: Any = getattr(event, "table", None)
    row = partial(Decision, at, table)
    match event:
        case GroupCommitted():
            found = [_done(event, at)]
        case RunCommitted(groups=0):
            why = f"{event.delete_files_removed} delete files applied to no data file"
            found = [_whole_table(event, at, "dangling_deletes", why, event.commit_seconds, event.delete_files_removed)]
        case GroupDropped():
            found = [_planned(row(DROPPED, event.reason, event.message, event.run_id), event.key, event.plan)]
        case RunFailed(run_id=""):  # it failed before there was a plan
            found = [row(SKIPPED, event.reason, event.message)]
        case RunFailed():
            found = [row(DROPPED, event.reason, f"{event.stage}: {event.message}", event.run_id)]
        case RunSkipped():
            found = [row(SKIPPED, event.reason)]
        case PartitionsSkipped():
            skipped = row(SKIPPED, event.reason, planned_snapshot_id=event.snapshot_id)
            found = [_skipped(skipped, partition) for partition in event.partitions] or [skipped]
        case EqualityDeletesConverted():
            why = f"{event.delete_files} equality delete files became positions of {event.rows} rows"
            found = [_whole_table(event, at, "equality_deletes", why, event.seconds, event.delete_files)]
        case FileDeleted():
            found = [row(DELETED, event.reason, event.path, event.run_id)]
        case ManifestsRewritten():
            why = f"{event.before} manifests became {event.after}"
            found = [_whole_table(event, at, "manifests", why, event.seconds)]
    return [replace(decision, why=decision.why[:LONGEST_WHY]) for decision in found]


class RepeatFilter:
    """Remembers why partitions were skipped. Not thread-safe: one thread uses it."""

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most = most
        self._recorded: dict[int, float] = {}

    def is_new(self, decision: Decision) -> bool:
        """Whether to record the row. Two reasons that differ only in their numbers are the same reason."""
        if decision.decision != SKIPPED:
            return True
        reason = (decision.reason, _FIGURES.sub("#", decision.why))
        seen = hash((decision.table, decision.spec_id, decision.partition_json, reason))
        recorded = self._recorded.get(seen)
        if recorded is not None and abs(decision.at - recorded) < REPEAT_SECONDS:  # the clock may be set back
            return False
        self._recorded.pop(seen, None)  # insert at the end again: the first entry is the oldest
        self._recorded[seen] = decision.at
        if len(self._recorded) > self._most:
            del self._recorded[next(iter(self._recorded))]
        return True


def _whole_table(
    event: RunCommitted | EqualityDeletesConverted | ManifestsRewritten,
    at: float,
    reason: str,
    why: str,
    seconds: float,
    delete_files_removed: int | None = None,
) -> Decision:
    """A commit that replaced no data file."""
    snapshot_id = None if isinstance(event, ManifestsRewritten) else event.snapshot_id
    return replace(
        Decision(at, event.table, DONE, reason, why, event.run_id),
        delete_files_removed=delete_files_removed,
        seconds=seconds,
        committed_snapshot_id=snapshot_id,
    )


def _about(decision: Decision, key: PartitionKey, partition: Mapping[str, JsonValue]) -> Decision:
    return replace(
        decision,
        spec_id=key.spec_id,
        partition=partition_text(partition),
        partition_json=json.dumps(dict(partition), ensure_ascii=False),
    )


def _planned(decision: Decision, key: PartitionKey, plan: GroupPlan) -> Decision:
    return replace(
        _about(decision, key, plan.partition),
        branch=plan.branch,
        strategy=plan.strategy,
        engine=plan.engine,
        engine_reason=plan.engine_reason,
        files_in=plan.files,
        bytes_in=plan.bytes,
        planned_snapshot_id=plan.snapshot_id,
    )


def _done(event: GroupCommitted, at: float) -> Decision:
    group = event.rewritten
    done = Decision(at, group.table, DONE, "due", group.plan.why, group.run_id)
    return replace(
        _planned(done, group.key, group.plan),
        engine=group.engine,  # the files' footers may have changed the planned engine
        engine_reason=group.reason,
        files_in=group.files_in,
        files_out=group.files_out,
        bytes_in=group.bytes_in,
        bytes_out=group.bytes_out,
        bytes_decoded=group.bytes_decoded,
        rows_in=group.rows_in,
        rows_deleted=group.rows_deleted,
        rows_out=group.rows_out,
        delete_files_removed=event.delete_files_removed,
        seconds=group.seconds,
        committed_snapshot_id=event.snapshot_id,
    )


def _skipped(decision: Decision, partition: SkippedPartition) -> Decision:
    about = _about(decision, partition.key, partition.partition)
    return replace(about, why=partition.why, files_in=partition.files, bytes_in=partition.bytes)
