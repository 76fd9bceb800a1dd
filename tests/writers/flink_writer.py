"""Flink upserts: FlinkSink on a V2 table, IcebergSink on a V3 table, in one job."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from subprocess import TimeoutExpired

from tests.services.flink_job import FlinkJob, UpsertJob, flink_job, upserted
from tests.writers.stage import Stage, Target
from tests.writers.writer import Writer, retries_in


class FlinkWriter(Writer):
    """One job; both tables get the same changes."""

    targets = (
        Target("Flink, FlinkSink", "flink_v2", "metrics reporter", upserts=True),
        Target("Flink, IcebergSink in SQL", "flink_v3", "metrics reporter", version=3, upserts=True),
    )

    def __init__(self, stage: Stage, rate: float, seed: int) -> None:
        self._stage = stage
        flink_sink, iceberg_sink = (target.table for target in self.targets)
        self._settings = UpsertJob(flink_sink, iceberg_sink, rate=rate, seed=seed)
        self._running = ExitStack()
        self._job: FlinkJob | None = None
        self._failures: list[str] = []

    def start(self) -> None:
        stage = self._stage
        catalog = {**stage.java_catalog, **stage.reporter_properties}
        self._job = self._running.enter_context(
            flink_job(stage.folder / "flink", catalog, self._settings, [stage.reporter])
        )

    def finish(self) -> None:
        if self._job is not None and not self._job.failure:
            try:
                self._job.stop()
            except TimeoutExpired as error:
                self._failures.append(f"the job does not stop: {error}")

    def close(self) -> None:
        self._running.close()

    @property
    def rows(self) -> Mapping[int, str]:
        return {} if self._job is None else upserted(self._job.journal.read_text().splitlines())

    @property
    def failures(self) -> list[str]:
        ended = self._job.failure if self._job is not None else ""
        return [*self._failures, *([ended] if ended else [])]

    @property
    def retries(self) -> int:
        return 0 if self._job is None else retries_in(self._job.log)
