"""What the commands print to: characters that cannot be shown, and output that cannot be written."""

from __future__ import annotations

import errno
import io
import os
import sys


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
