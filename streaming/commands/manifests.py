"""`firnline manifests`: merge the manifests of a table now, whether the service would do so or not."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import click
from rich.filesize import decimal

from compactor.debt.manifest_debt import ManifestCounts, manifests_of
from compactor.events import ManifestsRewritten
from compactor.iceberg.tables import Catalogs, TableView
from compactor.lease.opening import known_deployment
from compactor.lease.right import CommitRight
from compactor.runs.committable import CommitTools
from compactor.runs.manifests import rewrite_manifests
from compactor.settings.tree import ManifestSettings, Settings, load_settings
from compactor.spark.session import spark_session
from compactor.table_names import TableName
from streaming.commands.options import OUTPUT, print_result
from streaming.commands.progress import in_attempts, progress_display
from streaming.commands.streams import printable
from streaming.logs.events import log_event
from streaming.wiring import check_switch, check_turn

ANY_GAIN = ManifestSettings.model_construct(rewrite=True, min_count=2, min_reduction=1 + 1e-9)
"""What a person asks for pays as soon as one manifest less is enough."""


@click.command("manifests")
@click.argument("table")
@click.option("--dry-run", is_flag=True, help="Only show how many manifests there are and how many would be enough.")
@OUTPUT
@click.pass_obj
def manifests(config: Path | None, /, table: str, dry_run: bool, output: str) -> None:
    """Merge the manifests of TABLE into as few as possible, in one commit for each partition spec that has too many.

    No data file is read or written. Plans then open fewer manifests. The service does this by itself, from
    100 on; this command ignores this threshold, as Spark's rewrite_manifests. Needs no Kafka.

    \b
        firnline -c firnline.yaml manifests db.events
        firnline -c firnline.yaml manifests db.events --dry-run

    On tables of format version 3, manifests of delete files stay as they are.
    """  # noqa: D301 - \b keeps click from re-wrapping
    settings = load_settings(config)
    catalogs = Catalogs(settings.catalogs)
    view = catalogs.load(TableName.parse(table, settings.catalogs))
    counts = manifests_of(view, ANY_GAIN)
    if dry_run:
        _show_plan(view, counts, output)
        return
    if not counts.due:
        _show(ManifestsRewritten("", view.name, counts.manifests, counts.manifests, 0.0), output)
        return
    _check(settings, view)
    _show(_run(settings, catalogs, view, output), output)


def _check(settings: Settings, view: TableView) -> None:
    """Make sure that manifests may be merged now.

    Raises:
        InputError: the table is switched off.
        LaterError, RetryError: as `check_turn`.
    """
    check_switch(view)
    check_turn(settings, view)


def _run(settings: Settings, catalogs: Catalogs, view: TableView, output: str) -> ManifestsRewritten:
    """Merge in a Spark session of its own.

    Raises:
        FirnlineError: by class the reaction; the manifests of some specs may have been merged before.
    """
    session, run_id, before = spark_session(settings), str(uuid.uuid4()), len(view.manifests())
    try:
        right = CommitRight(known_deployment(settings.state.checkpoint.rstrip("/")))  # the service's
        tools = CommitTools(catalogs, right=right)

        def turn() -> None:
            _check(settings, catalogs.load(view.name))

        with progress_display(output) as progress:
            progress.add_task("merging", total=None)

            def merged(now: TableView) -> ManifestsRewritten:
                specs = manifests_of(now, ANY_GAIN).due_specs
                return rewrite_manifests(session, now, specs, run_id, tools, turn)

            done = in_attempts(merged, view, catalogs)
        log_event(done)
        return ManifestsRewritten(run_id, view.name, before, done.after, done.seconds)
    finally:
        session.stop()


def _show_plan(view: TableView, counts: ManifestCounts, output: str) -> None:
    document: dict[str, Any] = {
        "table": str(view.name),
        "manifests": counts.manifests,
        "delete_manifests": counts.delete_manifests,
        "bytes": counts.bytes,
        "specs_to_merge": list(counts.due_specs),
        "why": counts.why,
    }
    found = f"{counts.manifests} manifests ({decimal(counts.bytes)}), {counts.delete_manifests} of them of delete files"
    text = f"{view.name}: {found}; {counts.why or 'no fewer would do'}"
    print_result(output, document, lambda: click.echo(printable(text)))


def _show(done: ManifestsRewritten, output: str) -> None:
    document = {
        "run_id": done.run_id or None,
        "table": str(done.table),
        "manifests_before": done.before,
        "manifests_after": done.after,
        "seconds": round(done.seconds, 3),
    }
    merged = f"{done.before} manifests became {done.after}, {done.seconds:.1f} s"
    text = f"{done.table}: {merged if done.run_id else f'{done.before} manifests, no fewer would do'}"
    print_result(output, document, lambda: click.echo(printable(text)))
