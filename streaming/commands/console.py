"""Consoles of the commands: names, values and messages appear as they are, never as markup or control characters."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

PIPED_WIDTH = 160


class PlainConsole(Console):
    """Prints texts as they are: brackets and colons are no markup. One text is one line; see `printable`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Every text passes here, the cells and titles of tables too."""
        return super().render_str(printable(text), **options)


def printable(text: str) -> str:
    """The text in one line: line ends and characters that cannot be printed appear as their escapes in Python."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def escape_what_cannot_be_encoded() -> None:
    """Characters that the encoding of the terminal lacks appear as escapes: they end no command after its work."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def unwritable(error: OSError) -> bool:
    """Whether standard output cannot take what was printed. Then what it did not take is dropped.

    A reader that has closed its pipe is no such error: it has what it wants.
    """
    if error.errno == errno.EPIPE:
        return False
    try:
        sys.stdout.write("\n")  # asks again: the error may be of another file
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python fails once more at its end
        return True
    return False


def styled(text: str, style: str) -> Text:
    """The text for a `PlainConsole`, in a style of Rich."""
    return Text(printable(text), style)


def result_console() -> PlainConsole:
    """A console on standard output. It is wide for files and pipes, so that tables are not folded there."""
    console = PlainConsole()
    return console if console.is_terminal or "COLUMNS" in os.environ else PlainConsole(width=PIPED_WIDTH)
