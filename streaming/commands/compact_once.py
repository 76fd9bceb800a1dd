"""`firnline compact`: one run of one table in a Spark session of its own."""

from __future__ import annotations

import time

from compactor.commit.in_flight import sweep
from compactor.events import Event, Listener, RunSkipped, ignore
from compactor.iceberg.tables import Catalogs
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import TablePlan
from compactor.reasons import Reason
from compactor.runs.results import RunResult
from compactor.runs.rewriter import Progress, Rewriter
from compactor.settings.tree import Settings, table_switch
from compactor.spark.session import spark_session
from streaming.logs.events import log_event
from streaming.wiring import history_of, in_flight_records, rewrite_slots

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

    def tell(event: Event) -> None:
        history(event)
        log_event(event)

    try:
        return _run(settings, catalogs, plan, cache, run_id, progress, tell)
    finally:
        history.stop(HISTORY_SECONDS)


def _run(
    settings: Settings,
    catalogs: Catalogs,
    plan: TablePlan,
    cache: ManifestCache,
    run_id: str,
    progress: Progress | None,
    tell: Listener,
) -> RunResult:
    name = plan.table.name
    if not plan.has_work:
        tell(RunSkipped(table=name, reason=Reason.NOTHING_DUE))
        return RunResult(
            run_id=run_id,
            table=name,
            snapshot_before=plan.plan.snapshot_id,
            snapshot_after=plan.plan.snapshot_id,
            groups=(),
            plan_seconds=plan.seconds,
            rewrite_seconds=0.0,
            commit_seconds=0.0,
        )
    records = in_flight_records(settings, settings.state.checkpoint.rstrip("/"))
    session = spark_session(settings)
    try:
        sweep(records, catalogs, cache, now=time.time(), grace_seconds=settings.service.grace_seconds)
        rewriter = Rewriter(
            session,
            catalogs,
            cache,
            records,
            slots=rewrite_slots(session, settings.service.max_concurrent_file_group_rewrites, beside_stream=False),
            lease_seconds=settings.service.lease_seconds,
            check_seconds=settings.service.switch_check_seconds,
            commit=settings.commit,
            listener=tell,
        )

        def not_forbidden() -> bool:
            return table_switch(catalogs.load(name).properties) is not False

        return rewriter.run(plan, enabled=not_forbidden, run_id=run_id, progress=progress)
    finally:
        session.stop()
