"""Kafka Connect with Iceberg's sink: one connector announces on its control topic, another by the metrics reporter."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

from tests.services.kafka_connect import ConnectWorker, kafka_connect, sink_settings
from tests.services.waiting import wait_for
from tests.writers.rows_topic import RowsTopic
from tests.writers.stage import CONTROL_TOPIC, ROWS_TOPIC, Stage, Target
from tests.writers.writer import Ended, Writer, retries_in, wait_for_rows

TROUBLE = ("failed to commit for commit", "Coordinator error")
"""What the sink logs when a commit failed for good; it tries again in its next cycle."""
OTHER_CONTROL_TOPIC = "control-reported"  # firnline does not read it


class ConnectWriter(Writer):
    """Two connectors in one worker. Both read the same topic."""

    targets = (
        Target("Kafka Connect", "connect", "the sink's control topic"),
        Target("Kafka Connect, reporter", "connect_reported", "metrics reporter"),
    )

    def __init__(self, stage: Stage, source: RowsTopic) -> None:
        self._stage, self._source = stage, source
        self._running = ExitStack()
        self._worker: ConnectWorker | None = None
        self._ended = Ended()

    def start(self) -> None:
        stage = self._stage
        self._worker = self._running.enter_context(
            kafka_connect(stage.folder / "connect", stage.broker, [stage.reporter])
        )
        plain = {"type": "rest", **stage.java_catalog}
        settings = {
            "connect": sink_settings("db.connect", ROWS_TOPIC, plain, CONTROL_TOPIC),
            "connect_reported": sink_settings(
                "db.connect_reported",
                ROWS_TOPIC,
                {**plain, **stage.reporter_properties},
                OTHER_CONTROL_TOPIC,
            ),
        }
        for name, given in settings.items():
            self._worker.create(name, given)
            wait_for(f"connector {name} to run", partial(self._runs, name))

    def finish(self) -> None:
        for target in self.targets:
            wait_for_rows(self._stage, self._ended, target.table, lambda: len(self._source.rows))

    def close(self) -> None:
        self._running.close()

    @property
    def rows(self) -> Mapping[int, str]:
        return self._source.rows

    @property
    def failures(self) -> list[str]:
        if self._worker is None:
            return []
        lines = self._worker.log.read_text(errors="replace").splitlines()
        reported = [line[:500] for line in lines if any(each in line for each in TROUBLE)]
        states = [failure for target in self.targets for failure in self._worker.failures(target.table)]
        return [*self._ended.failures, *states, *reported]

    @property
    def retries(self) -> int:
        return 0 if self._worker is None else retries_in(self._worker.log)

    def _runs(self, name: str) -> bool:
        assert self._worker is not None
        states = self._worker.states(name)
        assert "FAILED" not in states, self._worker.failures(name)
        return len(states) == 3 and set(states) == {"RUNNING"}
