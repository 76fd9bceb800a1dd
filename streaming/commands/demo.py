"""`firnline demo`: a demonstration on real parts."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
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
    from streaming.demo.acts import run_demo  # noqa: PLC0415 - Spark takes a second to import

    sys.exit(run_demo(keep=keep, commits=commits, file_size=file_size, folder=folder, on=on))
