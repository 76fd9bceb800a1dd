"""Decisions: which events become which rows of the history. Pure.

Done and dropped groups are always rows. Why a partition is left alone is found anew with every commit: the same reason,
whatever its figures, is a row once in `repeat_seconds`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from compactor.events import (
    Event,
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

DONE, DROPPED, SKIPPED = "done", "dropped", "skipped"
TELLING = (GroupCommitted, GroupDropped, RunCommitted, RunFailed, RunSkipped, PartitionsSkipped, ManifestsRewritten)
"""The events that become rows."""
MOST_OF_A_SENTENCE = 2000  # characters; errors of others may be pages
MOST_REMEMBERED = 100_000  # reasons to skip, about 15 MB; a forgotten one is recorded once more
_FIGURES = re.compile(r"\d+")


@dataclass(frozen=True)
class Decision:
    """One row; the columns of docs/history.md, where the meaning of each is told. `at`: seconds since the epoch."""

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


def decisions_of(event: Event, at: float) -> list[Decision]:
    """The rows of one event that was told `at`; of most events none."""
    found: list[Decision] = []
    match event:
        case GroupCommitted():
            found = [_done(event, at)]
        case RunCommitted(groups=0):
            why = f"{event.delete_files_removed} delete files applied to no data file"
            done = Decision(
                at=at, table=event.table, decision=DONE, reason="dangling_deletes", why=why, run_id=event.run_id
            )
            removed, seconds = event.delete_files_removed, event.commit_seconds
            found = [
                replace(done, delete_files_removed=removed, seconds=seconds, committed_snapshot_id=event.snapshot_id)
            ]
        case GroupDropped():
            dropped = Decision(
                at=at, table=event.table, decision=DROPPED, reason=event.reason, why=event.message, run_id=event.run_id
            )
            found = [_planned(_about(dropped, event.key, event.plan.partition), event.plan)]
        case RunFailed() if event.run_id:
            found = [
                Decision(
                    at=at,
                    table=event.table,
                    decision=DROPPED,
                    reason=event.reason,
                    why=f"{event.stage}: {event.message}",
                    run_id=event.run_id,
                )
            ]
        case RunFailed():  # it could not even be planned
            found = [Decision(at=at, table=event.table, decision=SKIPPED, reason=event.reason, why=event.message)]
        case RunSkipped():
            found = [Decision(at=at, table=event.table, decision=SKIPPED, reason=event.reason)]
        case PartitionsSkipped():
            skipped = Decision(
                at=at, table=event.table, decision=SKIPPED, reason=event.reason, planned_snapshot_id=event.snapshot_id
            )
            found = [_skipped(skipped, partition) for partition in event.partitions] or [skipped]
        case ManifestsRewritten():
            why = f"{event.before} manifests became {event.after}"
            found = [
                Decision(
                    at=at,
                    table=event.table,
                    decision=DONE,
                    reason="manifests",
                    why=why,
                    run_id=event.run_id,
                    seconds=event.seconds,
                )
            ]
    return [replace(decision, why=decision.why[:MOST_OF_A_SENTENCE]) for decision in found]


class Repeats:
    """Remembers why partitions were left alone. Not thread-safe; one caller owns it."""

    def __init__(self, repeat_seconds: float, most: int = MOST_REMEMBERED) -> None:
        self._repeat_seconds = repeat_seconds
        self._most = most
        self._told: dict[int, float] = {}

    def are_news(self, decision: Decision) -> bool:
        """Whether the row is wanted; a reason whose figures alone have changed is the same reason."""
        if decision.decision != SKIPPED:
            return True
        reason = (decision.reason, _FIGURES.sub("#", decision.why))
        seen = hash((decision.table, decision.spec_id, decision.partition_json, reason))
        told = self._told.get(seen)
        if told is not None and decision.at - told < self._repeat_seconds:
            return False
        self._told.pop(seen, None)  # put in again at the end: the oldest is first
        self._told[seen] = decision.at
        if len(self._told) > self._most:
            del self._told[next(iter(self._told))]
        return True


def _about(decision: Decision, key: PartitionKey, partition: Mapping[str, JsonValue]) -> Decision:
    return replace(
        decision,
        spec_id=key.spec_id,
        partition=partition_text(partition),
        partition_json=json.dumps(dict(partition), ensure_ascii=False),
    )


def _planned(decision: Decision, plan: GroupPlan) -> Decision:
    return replace(
        decision,
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
    done = Decision(at=at, table=group.table, decision=DONE, reason="due", why=group.plan.why, run_id=group.run_id)
    return replace(
        _planned(_about(done, group.key, group.plan.partition), group.plan),
        engine=group.engine,  # footers may have changed it since the plan
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
