"""`firnline compact`: rewrite one table once."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from compactor.commit.in_flight import new_run_id
from compactor.events import RunSkipped, ignore
from compactor.iceberg.tables import Catalogs
from compactor.lease.opening import known_deployment
from compactor.lease.right import CommitRight
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import Request, TablePlan
from compactor.reasons import Reason
from compactor.runs.results import RunResult
from compactor.runs.rewrite import Progress as ReportProgress
from compactor.settings.spark_options import RunOptions
from compactor.settings.tree import Settings, load_settings, table_switch
from compactor.spark.session import spark_session
from streaming.commands import reports
from streaming.commands.console import result_console
from streaming.commands.options import FAILED_SAFELY, OUTPUT, fail, print_result, rewrite_options
from streaming.commands.plan import plan_of, show_plan
from streaming.commands.progress import progress_display
from streaming.logs.events import log_event
from streaming.service.event_bus import EventBus
from streaming.wiring import check_switch, check_turn, history_of, rewriting

HISTORY_SECONDS = 60.0


@click.command()
@click.argument("table")
@rewrite_options
@click.option("--dry-run", is_flag=True, help="Only show the plan, as `plan` does.")
@OUTPUT
@click.pass_obj
def compact(
    config: Path | None, /, table: str, branch: str, dry_run: bool, output: str, options: RunOptions, **request: Any
) -> None:
    """Rewrite the due partitions of TABLE now, in one `replace` commit (a large run: several).

    Ignores `tables.include`; needs no Kafka.
    """
    settings = options.settings(load_settings(config))
    made, cache = plan_of(settings, table, branch, Request(**request), options, output)
    if dry_run:
        show_plan(made, output)
        return
    check_switch(made.table)
    if made.has_work:
        check_turn(settings, made.table)
    with progress_display(output) as progress:
        bar = progress.add_task("rewriting", total=sum(len(group.file_group.tasks) for group in made.groups))
        result = _run(
            settings, made, cache, lambda done, total, _bytes: progress.update(bar, completed=done, total=total)
        )
    document = reports.run_document(result, made)
    print_result(output, document, lambda: reports.print_run(result_console(), result, made))
    if result.dropped:
        fail(result.dropped[0].error, FAILED_SAFELY)


def _run(settings: Settings, plan: TablePlan, cache: ManifestCache, progress: ReportProgress) -> RunResult:
    """Carry out `plan` in a Spark session of its own; nothing is started when there is nothing to do.

    Raises:
        FirnlineError: by class the reaction; the table is as it was.
    """
    name, run_id = plan.table.name, new_run_id(plan.table)
    catalogs = Catalogs(settings.catalogs)
    bus = EventBus(last=(log_event,))
    with ExitStack() as stack:
        history = history_of(settings, catalogs, ignore)
        if history is not None:
            history.start()  # before Spark: a table that is no history is refused first
            stack.callback(history.stop, HISTORY_SECONDS)
            bus.subscribe(history)
        if not plan.has_work:
            bus.publish(RunSkipped(table=name, reason=Reason.NOTHING_DUE))
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
        stack.callback(session.stop)
        checkpoint = settings.state.checkpoint.rstrip("/")
        right = CommitRight(known_deployment(checkpoint))  # the service's: this is no other firnline
        parts = rewriting(
            settings, session, catalogs, cache, bus.publish, checkpoint=checkpoint, beside_stream=False, right=right
        )
        stack.callback(parts.cluster.stop)
        parts.sweep(time.time())

        def enabled() -> bool:
            return table_switch(catalogs.load(name).properties) is not False

        return parts.rewriter.run(plan, enabled=enabled, run_id=run_id, progress=progress)
