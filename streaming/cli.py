"""The command line. Exit codes: 0 success or nothing to do, 2 bad input, 3 failed safely (no data lost, try again)."""

from __future__ import annotations

import ast
import sys
from collections import UserDict
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from compactor.errors import FirnlineError, InputError, RetryError
from compactor.settings.origins import CONFIG_FILE_VARIABLE
from streaming.commands.options import exit_code, fail
from streaming.commands.streams import escape_what_cannot_be_encoded, unwritable
from streaming.garbage_collection import collect_rarely
from streaming.version import VERSION

HELP = ["-h", "--help"]
CONTEXT = {"help_option_names": HELP, "max_content_width": 110}
RUN: Final = "run"


class CommandsByName(UserDict[str, Any]):
    """Each command's module in streaming/commands, and its function there. A command is imported when it is called.

    All together take two seconds, and jobs that call `emit` after each commit wait for it.
    """

    def __getitem__(self, name: str) -> click.Command:
        module, _, function = self.data[name].partition(":")
        command: click.Command = getattr(import_module(f"streaming.commands.{module}"), function)
        return command


COMMANDS: Final = CommandsByName(
    {
        "run": "run:run",
        "plan": "plan:plan",
        "compact": "compact:compact",
        "convert": "convert:convert",
        "manifests": "manifests:manifests",
        "debt": "debt:debt",
        "check-config": "check_config:check_config",
        "assess": "assess:assess_tables",
        "jars": "jars:jars",
        "history": "history:history",
        "request": "request:request_rewrite",
        "emit": "emit:emit",
        "simulate": "simulate:simulate",
        "pause": "pause:pause",
        "resume": "pause:resume",
    }
)


def first_sentence(command: str, limit: int) -> str:
    """The short help of a command of `COMMANDS`, from the text of its module: the list of all imports none."""
    module, _, function = command.partition(":")
    source = (Path(__file__).parent / "commands" / f"{module}.py").read_text(encoding="utf-8")
    found = next(node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == function)
    return click.Command(None, help=ast.get_docstring(found)).get_short_help_str(limit)


class Commands(click.Group):
    """Prints firnline's errors as one message on stderr and sets the exit code."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does, which would import every command."""
        limit = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            formatter.write_dl([(name, first_sentence(COMMANDS.data[name], limit)) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FirnlineError as error:
            if ctx.invoked_subcommand == RUN:  # the service reports its end as a log line
                from streaming.logs.events import LOG  # noqa: PLC0415 - the service has imported it

                LOG.error("ended", extra={"reason": error.reason, "error": str(error)})
                sys.exit(exit_code(error))
            fail(error)
        except OSError as error:
            if not unwritable(error):
                raise
            fail(RetryError(f"the output cannot be written: {error.strerror}; the command itself did its work"))


@click.group(cls=Commands, commands=COMMANDS, context_settings=CONTEXT)
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
    Count small files:  firnline -c firnline.yaml debt db.events
    Show a rewrite:     firnline -c firnline.yaml plan db.events
    Do it:              firnline -c firnline.yaml compact db.events
    Run the service:    firnline -c firnline.yaml run
    """  # noqa: D301 - \b keeps click from re-wrapping
    escape_what_cannot_be_encoded()
    context.obj = config
    _set_up_logging(config, verbose=verbose)
    collect_rarely()


def _set_up_logging(config: Path | None, *, verbose: bool) -> None:
    """As the settings say, or by default if they are invalid: the command that needs them reports the error."""
    from compactor.settings.tree import LogSettings, load_with_sources  # noqa: PLC0415 - start-up time: `--help`
    from streaming.logs.set_up import set_up_logging  # noqa: PLC0415

    try:
        log = load_with_sources(config).settings.logging
    except InputError:
        log = LogSettings()
    set_up_logging(log, verbose=verbose)


if __name__ == "__main__":
    main()
