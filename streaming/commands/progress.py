"""Attempts of the commands, and their progress: on a terminal's error output, never in a pipe or beside JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from pyiceberg.io import FileIO
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from compactor.errors import ReplanError
from compactor.iceberg.tables import Catalogs, TableView
from compactor.manifests.reads import Decoded, Reader, Wanted, read_here

_Item = TypeVar("_Item")
ATTEMPTS = 3


def progress_display(output: str, console: Console | None = None) -> Progress:
    """A display of bars, to be entered with `with`; it leaves no line behind. `output`: the command's `--output`."""
    console = console or Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=output == "json" or not console.is_terminal,
    )  # fmt: skip


def shown(progress: Progress, items: Sequence[_Item], text: str) -> Iterator[_Item]:
    """The items, with a bar that counts those that are done."""
    return iter(progress.track(items, description=text))


def in_attempts(attempt: Callable[[TableView], _Item], view: TableView, catalogs: Catalogs) -> _Item:
    """Another commit may touch the same files meanwhile: each attempt begins with a new look at the table.

    Raises:
        ReplanError: of the last attempt.
    """
    for _ in range(ATTEMPTS - 1):
        with suppress(ReplanError):
            return attempt(view)
        view = catalogs.load(view.name, view.ref)
    return attempt(view)


def reads_shown(progress: Progress) -> Reader:
    """A reader of manifests with a bar that counts them: those that no cache has, which take the time of a plan."""
    bar = progress.add_task("reading manifests", total=0, visible=False)
    found = 0

    def read(io: FileIO, wanted: Sequence[Wanted]) -> Iterator[Decoded]:
        nonlocal found
        found += len(wanted)
        progress.update(bar, total=found, visible=found > 0)
        for decoded in read_here(io, wanted):
            progress.advance(bar, len(decoded.wanted))
            yield decoded

    return read
