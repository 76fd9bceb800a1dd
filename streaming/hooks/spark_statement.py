"""Refresh hook that runs a statement in the service's own Spark session, to refresh the caches of that session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from compactor.events import RunCommitted
from compactor.settings.hooks import HookSettings
from streaming.hooks.hook import Hook, statement


def spark_hook(settings: HookSettings, session: SparkSession) -> Hook:
    """Run the statement and wait for its end; Spark has no timeout for it."""

    def run(committed: RunCommitted) -> None:
        session.sql(statement(settings, committed, "`")).collect()

    return run
