"""Shared by the commands: options, exit codes, output of results and errors."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import click

from compactor.errors import FirnlineError, InputError
from compactor.table_names import MAIN

BAD_INPUT, FAILED_SAFELY = 2, 3
JSON_VERSION = 1
"""Of the JSON documents of all commands. New keys leave it as it is; a key that goes, or changes its meaning, raises
it."""

OUTPUT = click.option(
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Output format: a table, or JSON for scripts.",
)


def not_empty(everything: str) -> Callable[[Any, Any, str | None], str | None]:
    """A click callback that refuses an empty text. `everything`: what is meant if nothing is given."""

    def check(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
        if text is not None and not text.strip():
            raise click.BadParameter(f"it is empty; leave it out for {everything}")
        return text

    return check


WHERE = click.option(
    "--where",
    metavar="EXPR",
    callback=not_empty("the whole table"),
    help="Only partitions that can contain matching rows, e.g. \"day = '2024-01-15' AND id IN (1, 2)\". Selects files, "
    "never rows. Syntax: docs/where.md.",
)
BRANCH = click.option("--branch", metavar="NAME", default=MAIN, show_default=True, help="Branch of the table.")
FORCE = click.option("--force", is_flag=True, help="Merge all small files; ignore the thresholds.")
ENGINE = click.option(
    "--engine",
    type=click.Choice(["auto", "splice", "encode", "spark"]),
    default="auto",
    show_default=True,
    help="auto: the cheapest engine that is safe. splice: copy row groups. encode: decode and encode Parquet once. "
    "spark: read and write with Iceberg's own code.",
)
STRATEGY = click.option(
    "--strategy",
    type=click.Choice(["threshold", "tiered"]),
    default="threshold",
    show_default=True,
    help="threshold: merge all small files of partitions with min_input_files of them, as Spark's action. tiered: the "
    "service's default, which rewrites fewer bytes over many runs.",
)


def _run_options(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> Any:
    from compactor.settings.spark_options import run_options  # noqa: PLC0415 - start-up time: `--help`

    return run_options(given)


OPTION = click.option(
    "--option",
    "options",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_run_options,
    help="Option of Spark's rewrite_data_files by Spark's name, e.g. min-input-files=3. See docs/spark-options.md.",
)


def rewrite_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that `plan` and `compact` share, in the order of their `--help`."""
    for option in (OPTION, STRATEGY, ENGINE, FORCE, BRANCH, WHERE):
        command = option(command)
    return command


def numbers(kind: Callable[[str], Any], least: float) -> Callable[[Any, Any, str], tuple[Any, ...]]:
    """A click callback that parses a comma-separated list of numbers, each at least `least`."""

    def read(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[Any, ...]:
        try:
            found = tuple(kind(part) for part in text.split(",") if part.strip())
            if any(isinstance(number, float) and not math.isfinite(number) for number in found):
                raise ValueError(text)  # noqa: TRY301
        except ValueError:
            raise click.BadParameter(f"{text!r} is not a list of numbers such as 2,4,8") from None
        if any(number < least for number in found):
            raise click.BadParameter(f"numbers must be at least {least:g}")
        return found

    return read


def print_error(error: FirnlineError) -> None:
    from streaming.commands.console import PlainConsole, styled  # noqa: PLC0415 - Rich is slow to import

    console, (first, *more) = PlainConsole(stderr=True), str(error).split("\n")
    console.print(styled("firnline:", "bold red"), first, soft_wrap=True)
    for line in more:
        console.print(line, soft_wrap=True)


def exit_code(error: FirnlineError) -> int:
    """2 for bad input, else 3: no data is lost, and a retry may succeed."""
    return BAD_INPUT if isinstance(error, InputError) else FAILED_SAFELY


def fail(error: FirnlineError, code: int | None = None) -> NoReturn:
    print_error(error)
    sys.exit(exit_code(error) if code is None else code)


def print_result(output: str, document: Mapping[str, Any], show: Callable[[], object]) -> None:
    """Print the result of a command as its `--output` says: the document, or what `show` prints for people."""
    if output == "json":
        print_json(document)
    else:
        show()


def print_json(document: Mapping[str, Any]) -> None:
    """Print the document of a command, with its version."""
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    click.echo(json.dumps({"version": JSON_VERSION, **document}, indent=2, ensure_ascii=ascii_only, allow_nan=False))
