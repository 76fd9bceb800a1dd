"""Consoles of the commands: names, values and messages appear as they are, never as markup or control characters."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from streaming.commands.streams import printable

PIPED_WIDTH = 160


class PlainConsole(Console):
    """Prints texts as they are: brackets and colons are no markup. One text is one line; see `printable`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Every text passes here, the cells and titles of tables too."""
        return super().render_str(printable(text), **options)


def styled(text: str, style: str) -> Text:
    """The text for a `PlainConsole`, in a style of Rich."""
    return Text(printable(text), style)


def columns(headings: Iterable[str], rows: Iterable[Iterable[str]], left: Collection[str], **options: Any) -> Table:
    """A table. `left`: headings of texts; the other columns are numbers. `options`: of Rich."""
    table = Table(**options)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def result_console() -> PlainConsole:
    """A console on standard output. It is wide for files and pipes, so that tables are not folded there."""
    console = PlainConsole()
    return console if console.is_terminal or "COLUMNS" in os.environ else PlainConsole(width=PIPED_WIDTH)
