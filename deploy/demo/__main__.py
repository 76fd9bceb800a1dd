"""`python -m deploy.demo`, which `make demo` runs: a demonstration with real systems. Not in the wheel."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from compactor.errors import FirnlineError
from compactor.settings.tree import LogSettings
from deploy.demo.acts import run_demo
from streaming.commands.options import fail
from streaming.logs.set_up import set_up_logging


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--keep", is_flag=True, envvar="KEEP", help="Keep the service running at the end, until Ctrl-C.")
@click.option("--commits", default=28, show_default=True, help="Commits per act; each adds one file to every bucket.")
@click.option("--file-size", default=1_500_000, show_default=True, help="Approximate bytes of each ingested file.")
@click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), help="Working folder [default: a temporary one]."
)
@click.option(
    "--on",
    type=click.Choice(["sqlite", "rest-s3"]),
    default="sqlite",
    show_default=True,
    help="Catalog and store: SQLite and local files, or a REST catalog and an S3 server.",
)
def demo(keep: bool, commits: int, file_size: int, folder: Path | None, on: str) -> None:
    """Show the service at work with a real broker, catalog and writer: 112 small files become 4."""
    set_up_logging(LogSettings(), verbose=False)
    try:
        sys.exit(run_demo(keep=keep, commits=commits, file_size=file_size, folder=folder, on=on))
    except FirnlineError as error:
        fail(error)


if __name__ == "__main__":
    demo()
