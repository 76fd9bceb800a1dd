"""The command line. Exit codes: 0 done or nothing to do, 2 bad input, 3 failed safely (nothing lost, try again)."""

from __future__ import annotations

import json
import signal
import sys
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from compactor.errors import FirnlineError, InputError
from compactor.iceberg.tables import MAIN, Catalogs, TableView
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import Request, TablePlan, plan_table
from compactor.settings.log import LogSettings
from compactor.settings.policy import refused_properties
from compactor.settings.spark_options import RunOptions, run_options
from compactor.settings.tree import CONFIG_FILE_VARIABLE, Settings, load_settings, table_switch
from compactor.table_names import TableName
from streaming.commands import reports
from streaming.commands.assess import assess_tables
from streaming.commands.history import history
from streaming.commands.jars import jars
from streaming.commands.options import OUTPUT, for_people, tell
from streaming.commands.request import request_rewrite
from streaming.commands.simulate import simulate
from streaming.garbage_collection import collect_rarely
from streaming.ledger.table_resolution import watched_tables
from streaming.logs.events import LOG
from streaming.logs.format import set_up_logging
from streaming.logs.json_output import output_as_json
from streaming.version import VERSION
from streaming.wiring import manifest_cache

BAD_INPUT, FAILED_SAFELY = 2, 3
HELP = ["-h", "--help"]
CONTEXT = {"help_option_names": HELP, "max_content_width": 110}
WHERE = click.option(
    "--where",
    metavar="EXPR",
    help="Only partitions that can hold matching rows, e.g. \"day = '2024-01-15' AND id IN (1, 2)\". Selects files, "
    "never rows; docs/where.md lists what can be written.",
)
BRANCH = click.option("--branch", metavar="NAME", default=MAIN, show_default=True, help="The branch to look at.")
FORCE = click.option("--force", is_flag=True, help="Merge every small file, whatever the thresholds.")
ENGINE = click.option(
    "--engine",
    type=click.Choice(["auto", "splice", "encode", "spark"]),
    default="auto",
    show_default=True,
    help="auto takes the cheapest that is safe: splice copies row groups, encode decodes and encodes Parquet once, "
    "spark reads and writes through Iceberg's own code.",
)
STRATEGY = click.option(
    "--strategy",
    type=click.Choice(["threshold", "tiered"]),
    default="threshold",
    show_default=True,
    help="threshold merges all small files once there are min_input_files, as Spark's action. tiered is what the "
    "service does by default: fewer bytes over many runs.",
)
OPTION = click.option(
    "--option",
    "options",
    metavar="NAME=VALUE",
    multiple=True,
    callback=lambda _context, _parameter, given: run_options(given),
    help="An option of Spark's rewrite_data_files by its own name, e.g. min-input-files=3; docs/spark-options.md.",
)


class Commands(click.Group):
    """Turns firnline's errors into a sentence on stderr and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except FirnlineError as error:
            if ctx.invoked_subcommand == run.name:  # a service's last word is a line of its log
                LOG.error("ended", reason=error.reason, error=str(error))
                sys.exit(_exit_code(error))
            _fail(error)


def _exit_code(error: FirnlineError) -> int:
    return BAD_INPUT if isinstance(error, InputError) else FAILED_SAFELY


def _fail(error: FirnlineError, code: int | None = None) -> None:
    tell(error)
    sys.exit(_exit_code(error) if code is None else code)


@click.group(cls=Commands, context_settings=CONTEXT)
@click.version_option(VERSION, prog_name="firnline")
@click.option(
    "-c",
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar=CONFIG_FILE_VARIABLE,
    help="Settings file (YAML). Every key is also an environment variable: FIRNLINE_SECTION__KEY.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log every event, not only work and trouble.")
@click.pass_context
def main(context: click.Context, config: Path | None, verbose: bool) -> None:
    """Commit events in, healthy files out: keeps Apache Iceberg tables free of small files while writers write.

    \b
    Try it:           firnline demo
    Look at a table:  firnline -c firnline.yaml debt db.events
    What would be     firnline -c firnline.yaml plan db.events
    done, and do it:  firnline -c firnline.yaml compact db.events
    Always on:        firnline -c firnline.yaml run
    """  # noqa: D301 - \b keeps click from re-wrapping
    context.obj = config
    log = _log_settings(config)
    is_service = context.invoked_subcommand == run.name and not set(HELP) & set(sys.argv)
    to = output_as_json() if is_service and log.as_json(terminal=sys.stderr.isatty()) else None
    set_up_logging(log, verbose=verbose, to=to)
    collect_rarely()


def _log_settings(config: Path | None) -> LogSettings:
    """Before any command runs; settings that cannot be used are told by the command that needs them."""
    try:
        return load_settings(config).logging
    except InputError:
        return LogSettings()


@main.command()
@click.option("--observe", is_flag=True, help="Decide and report, but write nothing: read-only credentials suffice.")
@click.pass_obj
def run(config: Path | None, observe: bool) -> None:
    """Run the service: hear commits from Kafka, keep the ledger, rewrite what is due.

    Stops cleanly on SIGTERM or Ctrl-C; resumes from state.checkpoint. Pages: /metrics /healthz /readyz on http.port.
    """
    from streaming.service.service import Service  # noqa: PLC0415 - Spark takes a second to import; --help should not wait

    stop = threading.Event()
    service = Service(load_settings(config), observe=observe)

    def hear(*_: object) -> None:
        stop.set()
        if service.starting:  # the main thread may be waiting for Spark or a catalog
            raise SystemExit(0)

    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, hear)
    try:
        service.start()
        service.run_until(stop)
    finally:
        service.stop()


@main.command()
@click.argument("table")
@WHERE
@BRANCH
@FORCE
@ENGINE
@STRATEGY
@OPTION
@click.option("--explain", is_flag=True, help="Also say where the time went and where manifests were read from.")
@OUTPUT
@click.pass_obj
def plan(
    config: Path | None, /, table: str, branch: str, output: str, options: RunOptions, explain: bool, **request: Any
) -> None:
    """Show what `compact` would do to TABLE (namespace.table or catalog.namespace.table). Writes nothing."""
    settings = load_settings(config)
    made, _ = _plan(settings, table, branch, Request(**request), options)
    _show_plan(made, output)
    if explain and output != "json":
        reports.print_planning(for_people(), made)


@main.command()
@click.argument("table")
@WHERE
@BRANCH
@FORCE
@ENGINE
@STRATEGY
@OPTION
@click.option("--dry-run", is_flag=True, help="Only show the plan, as `plan` does.")
@OUTPUT
@click.pass_obj
def compact(
    config: Path | None, /, table: str, branch: str, dry_run: bool, output: str, options: RunOptions, **request: Any
) -> None:
    """Rewrite what is due in TABLE now, as one `replace` commit. Needs no `tables.include` and no Kafka."""
    from streaming.commands.compact_once import compact_once  # noqa: PLC0415 - see `run`

    settings = options.settings(load_settings(config))
    made, cache = _plan(settings, table, branch, Request(**request), options)
    if dry_run:
        _show_plan(made, output)
        return
    if table_switch(made.table.properties) is False:
        raise InputError(f"table {made.table.name} has the property firnline.enabled=false; unset it first")
    console = Console(stderr=True)
    with _progress(console) as progress:
        bar = progress.add_task("rewriting", total=sum(len(group.group.shares) for group in made.groups), bytes=0)
        result = compact_once(
            settings,
            made,
            cache,
            run_id=str(uuid.uuid4()),
            progress=lambda done, total, _bytes: progress.update(bar, completed=done, total=total),
        )
    if output == "json":
        _print_json(reports.run_document(result))
    else:
        reports.print_run(for_people(), result)
    if result.dropped:
        _fail(result.dropped[0].error, FAILED_SAFELY)


@main.command()
@click.argument("table", required=False)
@click.option("--why", is_flag=True, help="Also say why the files are small, and what would help at the source.")
@OUTPUT
@click.pass_obj
def debt(config: Path | None, table: str | None, why: bool, output: str) -> None:
    """Count small files per partition and bucket, of TABLE or of all tables. Reads metadata only."""
    settings = load_settings(config)
    catalogs = Catalogs(settings.catalogs)
    names = [_name(table, catalogs)] if table else watched_tables(settings, catalogs)
    with manifest_cache(settings) as cache:
        documents, failed = reports.debt_documents(settings, catalogs, cache, names, why=why)
    if output != "json":
        reports.print_debt(for_people(), documents)
    elif not table:
        _print_json(documents)
    elif documents:
        _print_json(documents[0])
    for error in failed:
        tell(error)
    if failed:
        sys.exit(_exit_code(failed[0]))


@main.command("check-config")
@click.option("--connect", is_flag=True, help="Try all that they name instead: catalogs, stores, folders, Kafka.")
@click.option("--observe", is_flag=True, help="With --connect: only what `run --observe` needs; writes nothing.")
@OUTPUT
@click.pass_obj
def check_config(config: Path | None, connect: bool, observe: bool, output: str) -> None:
    """Check the settings and print them with every default. With -c FILE, the environment still wins.

    With --connect, one line a check: ok, failed with the remedy, or skipped. A probe object is written where outputs
    go and deleted again; nothing is written to Kafka.
    """
    settings = load_settings(config)
    if connect:
        _check_connections(settings, observe=observe, output=output)
    elif output == "json":
        _print_json(reports.settings_document(settings))
    else:
        click.echo(reports.settings_yaml(settings), nl=False)


def _check_connections(settings: Settings, *, observe: bool, output: str) -> None:
    from streaming.commands.connection_checks import Status, check_connections  # noqa: PLC0415 - see `run`

    checks = []
    for check in check_connections(settings, observe=observe):
        checks.append(check)
        if output != "json":
            remedy = f"; {check.remedy}" if check.status is Status.FAILED else ""
            click.echo(f"{check.status.value:8}{check.name}: {check.detail}{remedy}")
    if output == "json":
        _print_json({"checks": [check.document() for check in checks]})
    failed = [check for check in checks if check.status is Status.FAILED]
    if failed:
        sys.exit(FAILED_SAFELY if all(check.again for check in failed) else BAD_INPUT)


@main.command()
@click.option("--keep", is_flag=True, envvar="KEEP", help="Leave the service running at the end, until Ctrl-C.")
@click.option("--commits", default=28, show_default=True, help="Commits per act; each adds one file to every bucket.")
@click.option("--file-size", default=1_500_000, show_default=True, help="Bytes of each ingested file, about.")
@click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), help="Work here [default: a temporary one]."
)
@click.option(
    "--on",
    type=click.Choice(["sqlite", "rest-s3"]),
    default="sqlite",
    show_default=True,
    help="What the table lives on: a SQLite catalog and local files, or a REST catalog and an S3 server.",
)
def demo(keep: bool, commits: int, file_size: int, folder: Path | None, on: str) -> None:
    """Watch it work: a real broker, catalog and ingestion; 112 small files become 4 while writers write."""
    from streaming.demo.acts import run_demo  # noqa: PLC0415 - see `run`

    sys.exit(run_demo(keep=keep, commits=commits, file_size=file_size, folder=folder, on=on))


main.add_command(assess_tables)
main.add_command(jars)
main.add_command(history)
main.add_command(request_rewrite)
main.add_command(simulate)


def _show_plan(made: TablePlan, output: str) -> None:
    made = reports.with_footers_read(made)
    if output == "json":
        _print_json(reports.plan_document(made))
    else:
        reports.print_plan(for_people(), made)


def _name(text: str, catalogs: Catalogs) -> TableName:
    return TableName.parse(text, catalogs.names)


def _load(settings: Settings, text: str, branch: str) -> TableView:
    catalogs = Catalogs(settings.catalogs)
    return catalogs.load(_name(text, catalogs), branch)


def _plan(
    settings: Settings, text: str, branch: str, request: Request, options: RunOptions
) -> tuple[TablePlan, ManifestCache]:
    cache = click.get_current_context().with_resource(manifest_cache(settings))
    table = _load(settings, text, branch)
    for refused in refused_properties(table.properties):
        LOG.warning("table property refused", table=str(table.name), reason=refused)
    values = options.values(settings.policy.for_table(table.name, table.properties))
    request = replace(request, rewrite_all=options.rewrite_all)
    return plan_table(table, values, cache, request), cache


def _print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip


if __name__ == "__main__":
    main()
