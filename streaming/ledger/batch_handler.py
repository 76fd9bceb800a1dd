"""Handle a micro-batch of the ledger on the driver: update the debt board, request recounts, send dead letters.

One action consumes every row, or Spark would not commit the state. Nothing here rewrites or waits for a rewrite.
Applying a batch twice has no effect: rows contain counts, not changes.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pyspark.sql import DataFrame

from compactor.debt.board import DebtBoard, PartitionCounts, TableDebt, earliest
from compactor.debt.manifest_debt import ManifestCounts
from compactor.events import DeadLettered, LedgerUpdated, Listener, PartitionsSkipped, TableUnreadable
from compactor.partitions import PartitionKey
from compactor.runs.table_planner import skipped_partition
from compactor.runs.work_order import commit_rate
from compactor.settings.tree import Settings
from compactor.table_names import TableName
from streaming.commit_events.decoder import BadEvent, BadEventReason, RawEvent
from streaming.ledger.dead_letters import DeadLetter, dead_letter
from streaming.ledger.rows import parse_table_key, partition_debt
from streaming.logs.events import LOG

RETRY_SECONDS = 15.0
Row = dict[str, Any]


class RecountRequester(Protocol):
    def request_recount(self, table: TableName, *, continues: bool, after_seconds: float = 0.0) -> None: ...


@dataclass(eq=False)
class BatchHandler:
    """The callable for `foreachBatch`.

    `send_dead_letter` returns whether it was sent; `wake` notifies the dispatcher that the board changed.
    """

    settings: Settings
    board: DebtBoard
    recounts: RecountRequester
    send_dead_letter: Callable[[DeadLetter], bool]
    wake: Callable[[], None]
    listener: Listener
    clock: Callable[[], float] = time.time
    answered: frozenset[TableName] = field(default=frozenset(), init=False)
    """Tables that the ledger has counted or reported as unreadable, unknown or ignored."""

    def __call__(self, frame: DataFrame, _batch_id: int) -> None:
        """Consume one batch. Exceptions of the action must end the stream, so do not catch them."""
        self.apply(frame.collect())

    def apply(self, rows: Iterable[Any]) -> None:
        tables: dict[str, Row] = {}
        partitions: defaultdict[str, list[Row]] = defaultdict(list)
        dead: list[tuple[Row, bytes | None]] = []
        for row in rows:
            body = json.loads(row["body"])
            if row["kind"] == "table":
                tables[row["table_name"]] = body
            elif row["kind"] == "partition":
                partitions[row["table_name"]].append(body)
            else:
                dead.append((body, bytes(row["value"]) if row["value"] is not None else None))
        answered = set()
        for name, body in tables.items():
            table = parse_table_key(name)
            self._apply_table(table, body, partitions[name])
            if body["status"] != "counting":
                answered.add(table)
        self.answered |= answered  # assign a new set: other threads read it
        self._send_dead_letters(dead)
        self.wake()

    def _apply_table(self, table: TableName, body: Row, partitions: Sequence[Row]) -> None:
        status = body["status"]
        if status == "ignored":
            return
        if status == "unknown":
            self.board.forget(table)
            return
        if body["requests"]:
            self.board.request(table, body["requests"])
        if status == "unreadable":
            self._mark_stale(table, body, body["message"])
            self.listener(TableUnreadable(table=table, reason=body["reason"] or "unexpected", message=body["message"]))
            self.recounts.request_recount(table, continues=False, after_seconds=RETRY_SECONDS)
            return
        if body["more"]:
            self.recounts.request_recount(table, continues=True)
        if status == "counting":
            reason = f"a recount is under way ({body['recount_reason']})"
            self._mark_stale(table, body, reason)
        else:
            debt = self._debt(table, body, partitions)
            self.board.put(debt)
            self._report_skipped(debt, partitions)
        self._report_update(table, body)

    def _mark_stale(self, table: TableName, body: Row, reason: str) -> None:
        acted_on = self.settings.tables.acts_on(table, {})
        self.board.mark_stale(table, reason, _seconds(body["oldest_event_ms"]), acted_on=acted_on)

    def _debt(self, table: TableName, body: Row, changed: Sequence[Row]) -> TableDebt:
        known = self.board.get(table)
        partitions = {} if known is None or body["whole"] else dict(known.partitions)
        for partition in map(partition_debt, changed):
            partitions.pop(partition.key, None)
            if partition.counts.has_debt:
                partitions[partition.key] = partition
        # An event about a snapshot that was counted before (a duplicate or late event) does not wait for a rewrite.
        oldest = body["oldest_event_ms"] if known is None or known.snapshot_id != body["snapshot_id"] else None
        debt = TableDebt(
            table=table,
            snapshot_id=body["snapshot_id"],
            partitions=partitions,
            counted=PartitionCounts.from_list(body["totals"]),
            acted_on=self.settings.tables.acts_on(table, {"firnline.enabled": body["enabled"]}),
            waiting_since=earliest(known.waiting_since if known else None, _seconds(oldest)),
            manifests=ManifestCounts.from_list(body["manifests"]) if body.get("manifests") else None,
            refused=tuple(body.get("refused", ())),
        )
        for refused in set(debt.refused) - set(known.refused if known else ()):
            LOG.warning("table property not used", table=str(table), reason=refused)
        now = self.clock()
        due_since = (known.due_since if known else None) or now
        debt = replace(debt, due_since=due_since if debt.has_work else None)
        if known is not None and known.snapshot_id == debt.snapshot_id:
            return replace(debt, commits_per_hour=known.commits_per_hour, counted_at=known.counted_at)
        since_last = now - known.counted_at if known is not None and known.counted_at is not None else None
        rate = commit_rate(known.commits_per_hour if known else 0.0, since_last)
        return replace(debt, commits_per_hour=rate, counted_at=now)

    def _report_skipped(self, debt: TableDebt, changed: Sequence[Row]) -> None:
        """Publish the partitions of this batch that have debt and are not due."""
        if not debt.acted_on:
            if debt.has_work:
                self.listener(PartitionsSkipped(table=debt.table, snapshot_id=debt.snapshot_id, reason="not_acted_on"))
            return
        keys = [PartitionKey(body["spec_id"], body["values"]) for body in changed]
        judged = [debt.partitions[key] for key in keys if key in debt.partitions]
        skipped = tuple(skipped_partition(each, each.why) for each in judged if not each.due)
        if skipped:
            self.listener(
                PartitionsSkipped(table=debt.table, snapshot_id=debt.snapshot_id, reason="not_due", partitions=skipped)
            )

    def _report_update(self, table: TableName, body: Row) -> None:
        oldest = body["oldest_event_ms"]
        self.listener(
            LedgerUpdated(
                table=table,
                snapshot_id=body["snapshot_id"],
                events_by_source=body["sources"],
                recount_reason=body["recount_reason"],
                event_to_ledger_seconds=None if oldest is None else max(0.0, self.clock() - oldest / 1000),
            )
        )

    def _send_dead_letters(self, dead: list[tuple[Row, bytes | None]]) -> None:
        for body, value in dead:
            headers = tuple((name, bytes.fromhex(text)) for name, text in body["headers"])
            key = bytes.fromhex(body["key"]) if body["key"] is not None else None
            event = RawEvent(key=key, value=value, headers=headers, timestamp_ms=body["timestamp_ms"])
            bad = BadEvent(BadEventReason(body["reason"]), body["message"])
            place = {key: body[key] for key in ("topic", "partition", "offset")}
            if not self.send_dead_letter(dead_letter(event, bad, **place)):
                break  # each attempt can take seconds, and the batch must end
        for reason, count in Counter(body["reason"] for body, _ in dead).items():
            self.listener(DeadLettered(reason=reason, count=count))


def _seconds(event_ms: int | None) -> float | None:
    return None if event_ms is None else event_ms / 1000
