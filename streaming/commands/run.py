"""`firnline run`: the service."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from compactor.settings.tree import load_settings


@click.command()
@click.option("--observe", is_flag=True, help="Decide and report, but write nothing: read-only credentials suffice.")
@click.pass_obj
def run(config: Path | None, observe: bool) -> None:
    """Run the service: hear commits from Kafka, keep the ledger, rewrite what is due.

    Stops cleanly on SIGTERM or Ctrl-C; resumes from state.checkpoint. Pages: /metrics /healthz /readyz on http.port.
    """
    from streaming.service.service import Service  # noqa: PLC0415 - Spark takes a second to import; --help should not wait

    stop = threading.Event()
    service = Service(load_settings(config), observe=observe)

    def hear(*_: object) -> None:
        stop.set()
        if service.starting:  # the main thread may be waiting for Spark or a catalog
            raise SystemExit(0)

    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, hear)
    try:
        service.start()
        service.run_until(stop)
    finally:
        service.stop()
