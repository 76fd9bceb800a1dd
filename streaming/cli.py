"""The command line. Exit codes: 0 success or nothing to do, 2 bad input, 3 failed safely (no data lost, try again)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from compactor.errors import FirnlineError, InputError
from compactor.settings.environment import CONFIG_FILE_VARIABLE
from compactor.settings.tree import LogSettings, load_settings
from streaming.commands.assess import assess_tables
from streaming.commands.check_config import check_config
from streaming.commands.compact import compact
from streaming.commands.debt import debt
from streaming.commands.demo import demo
from streaming.commands.history import history
from streaming.commands.jars import jars
from streaming.commands.options import exit_code, fail
from streaming.commands.pause import pause, resume
from streaming.commands.plan import plan
from streaming.commands.request import request_rewrite
from streaming.commands.run import run
from streaming.commands.simulate import simulate
from streaming.garbage_collection import collect_rarely
from streaming.logs.events import LOG
from streaming.logs.format import set_up_logging
from streaming.logs.json_output import output_as_json
from streaming.version import VERSION

HELP = ["-h", "--help"]
CONTEXT = {"help_option_names": HELP, "max_content_width": 110}


class Commands(click.Group):
    """Prints firnline's errors as one message on stderr and sets the exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FirnlineError as error:
            if ctx.invoked_subcommand == run.name:  # the service reports its end as a log line
                LOG.error("ended", reason=error.reason, error=str(error))
                sys.exit(exit_code(error))
            fail(error)


@click.group(cls=Commands, context_settings=CONTEXT)
@click.version_option(VERSION, prog_name="firnline")
@click.option(
    "-c",
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar=CONFIG_FILE_VARIABLE,
    help="Settings file (YAML). Every key is also an environment variable: FIRNLINE_SECTION__KEY.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log every event (level DEBUG).")
@click.pass_context
def main(context: click.Context, config: Path | None, verbose: bool) -> None:
    """Commit events in, healthy files out: compacts small files of Apache Iceberg tables while writers write.

    \b
    Try it:             firnline demo
    Count small files:  firnline -c firnline.yaml debt db.events
    Show a rewrite:     firnline -c firnline.yaml plan db.events
    Do it:              firnline -c firnline.yaml compact db.events
    Run the service:    firnline -c firnline.yaml run
    """  # noqa: D301 - \b keeps click from re-wrapping
    context.obj = config
    log = _log_settings(config)
    is_service = context.invoked_subcommand == run.name and not set(HELP) & set(sys.argv)
    to = output_as_json() if is_service and log.as_json(terminal=sys.stderr.isatty()) else None
    set_up_logging(log, verbose=verbose, to=to)
    collect_rarely()


def _log_settings(config: Path | None) -> LogSettings:
    """Log settings, or the defaults if the settings are invalid: the command that needs them reports the error."""
    try:
        return load_settings(config).logging
    except InputError:
        return LogSettings()


for command in (
    run, plan, compact, debt, check_config, demo, assess_tables, jars, history, request_rewrite, simulate,
    pause, resume,
):  # fmt: skip
    main.add_command(command)

if __name__ == "__main__":
    main()
