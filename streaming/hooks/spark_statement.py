"""A statement in the service's own Spark session: it refreshes what this session and its clients have cached."""

from __future__ import annotations

from pyspark.sql import SparkSession

from compactor.events import RunCommitted
from compactor.settings.hooks import HookSettings
from streaming.hooks.hook import Hook, statement


def spark_hook(settings: HookSettings, session: SparkSession) -> Hook:
    """Run the statement to its end; Spark has no timeout for it."""

    def run(committed: RunCommitted) -> None:
        session.sql(statement(settings, committed, "`")).collect()

    return run
