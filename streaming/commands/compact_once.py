"""`firnline compact`: one run of one table in a Spark session of its own."""

from __future__ import annotations

import time

from compactor.events import Event, Listener, RunSkipped, ignore
from compactor.iceberg.tables import Catalogs
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import TablePlan
from compactor.reasons import Reason
from compactor.runs.results import RunResult
from compactor.runs.run import Progress
from compactor.settings.tree import Settings, table_switch
from compactor.spark.session import spark_session
from streaming.logs.events import log_event
from streaming.wiring import history_of, rewriting

HISTORY_SECONDS = 60.0


def compact_once(
    settings: Settings, plan: TablePlan, cache: ManifestCache, *, run_id: str, progress: Progress | None = None
) -> RunResult:
    """Carry out `plan`; nothing is started when there is nothing to do.

    Raises:
        FirnlineError: by class the reaction; the table is as it was.
    """
    catalogs = Catalogs(settings.catalogs)
    history = history_of(settings, catalogs, ignore)
    if history is None:
        return _run(settings, catalogs, plan, cache, run_id, progress, log_event)
    history.start()  # before Spark: a table that is no history is refused first

    def publish(event: Event) -> None:
        history(event)
        log_event(event)

    try:
        return _run(settings, catalogs, plan, cache, run_id, progress, publish)
    finally:
        history.stop(HISTORY_SECONDS)


def _run(
    settings: Settings,
    catalogs: Catalogs,
    plan: TablePlan,
    cache: ManifestCache,
    run_id: str,
    progress: Progress | None,
    listener: Listener,
) -> RunResult:
    name = plan.table.name
    if not plan.has_work:
        listener(RunSkipped(table=name, reason=Reason.NOTHING_DUE))
        return RunResult(
            run_id=run_id,
            table=name,
            snapshot_before=plan.snapshot_id,
            snapshot_after=plan.snapshot_id,
            groups=(),
            plan_seconds=plan.seconds,
            rewrite_seconds=0.0,
            commit_seconds=0.0,
        )
    session = spark_session(settings)
    try:
        parts = rewriting(
            settings,
            session,
            catalogs,
            cache,
            listener,
            checkpoint=settings.state.checkpoint.rstrip("/"),
            beside_stream=False,
        )
        parts.sweep(time.time(), settings.service.grace_seconds)

        def enabled() -> bool:
            return table_switch(catalogs.load(name).properties) is not False

        return parts.rewriter.run(plan, enabled=enabled, run_id=run_id, progress=progress)
    finally:
        session.stop()
