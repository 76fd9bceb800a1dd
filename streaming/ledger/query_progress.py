"""Publish the progress of the streaming queries as typed events. Spark keeps the last 100 batches."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from compactor.events import BatchFinished, DeadLettered, Listener
from streaming.ledger.queries import DEAD_LETTERS


class ProgressReader:
    """Publishes each finished batch once. Not thread-safe: one thread polls."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._reported: dict[str, int] = {}

    def poll(self, query: StreamingQuery) -> None:
        """Publish the batches that finished since the last call."""
        name = str(query.name)
        for progress in query.recentProgress:
            if progress.batchId <= self._reported.get(name, -1):
                continue
            self._reported[name] = progress.batchId
            self._listener(_finished(name, progress))
            for reason, count in _dead_letters(progress).items():
                if count:
                    self._listener(DeadLettered(reason=reason, count=count))


def _finished(name: str, progress: Any) -> BatchFinished:
    behind = [int(source.metrics.get("maxOffsetsBehindLatest") or 0) for source in progress.sources]
    return BatchFinished(
        query=name,
        batch_id=progress.batchId,
        seconds=progress.durationMs.get("triggerExecution", 0) / 1000,
        input_rows=progress.numInputRows,
        lag_offsets=sum(behind),
        state_rows=sum(operator.numRowsTotal for operator in progress.stateOperators),
    )


def _dead_letters(progress: Any) -> dict[str, int]:
    row = (progress.observedMetrics or {}).get(DEAD_LETTERS)
    return dict(row.asDict()) if row is not None else {}
