"""`firnline run`: run the service."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import click

from compactor.settings.tree import load_settings
from streaming.service.stopping import STOP_SECONDS


def end_in_time(code: int) -> None:
    """End the process with this exit code a second after the stop: Python waits for threads of pools that hang."""
    last = threading.Timer(STOP_SECONDS + 1, os._exit, (code,))
    last.daemon = True
    last.start()


@click.command()
@click.option("--observe", is_flag=True, help="Decide and report, but write nothing. Read-only credentials suffice.")
@click.pass_obj
def run(config: Path | None, observe: bool) -> None:
    """Run the service: read commit events from Kafka, count small files, rewrite due partitions.

    Stops cleanly on SIGTERM or Ctrl-C; resumes from state.checkpoint. Serves /metrics, /healthz and /readyz on
    http.port. SIGHUP, or a change of the settings file, reloads tables, policy, limits, manifests and logging.level.
    SIGUSR1 drains: no run starts any more, and the service ends when the running ones have committed.
    """
    from streaming.service.service import Service  # noqa: PLC0415 - start-up time: imports Spark

    stop = threading.Event()
    service = Service(load_settings(config), observe=observe, path=config)

    def stop_service(*_: object) -> None:
        if not stop.is_set():
            service.stops_now()
            end_in_time(0)
        stop.set()
        if service.starting:  # the main thread may be waiting for Spark or a catalog
            raise SystemExit(0)

    def drain(*_: object) -> None:
        service.drain()
        if service.starting:  # or a standby: it has no run to wait for
            stop_service()

    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, stop_service)
    signal.signal(signal.SIGHUP, lambda *_: service.reload())
    signal.signal(signal.SIGUSR1, drain)
    try:
        service.start()
        service.run_until(stop)
    finally:
        if not stop.is_set():
            end_in_time(3)
        service.stop()
