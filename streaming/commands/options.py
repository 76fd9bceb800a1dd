"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from compactor.errors import FirnlineError

PIPED_WIDTH = 160

OUTPUT = click.option(
    "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="For people or scripts."
)


def numbers(kind: Callable[[str], Any], least: float) -> Callable[[Any, Any, str], tuple[Any, ...]]:
    """Reads a comma-separated list of numbers, none below `least`."""

    def read(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[Any, ...]:
        try:
            found = tuple(kind(part) for part in text.split(",") if part.strip())
        except ValueError:
            raise click.BadParameter(f"{text!r} is no list of numbers, as in 2,4,8") from None
        if any(number < least for number in found):
            raise click.BadParameter(f"numbers must be at least {least:g}")
        return found

    return read


def tell(error: FirnlineError) -> None:
    """The sentence of an error, on standard error."""
    Console(stderr=True).print(f"[bold red]firnline:[/] {escape(str(error))}", highlight=False, soft_wrap=True)


def for_people() -> Console:
    """Standard output. In a file or a pipe, which have no width, tables are not folded as on a narrow terminal."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=PIPED_WIDTH)
