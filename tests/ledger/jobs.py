"""Play sequences in several processes, and say now and then how far they are."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty
from typing import Any

from rich.console import Console

from tests.ledger.play import Order, play_alone
from tests.ledger.rules import Figures

LINE_SECONDS = 15.0


@dataclass
class Job:
    """One process and what it has told so far."""

    process: Any
    figures: Figures = field(default_factory=Figures)
    failed: str | None = None
    done: bool = False


def _play_job(number: int, order: Order, folder: Path, queue: Any) -> None:
    def tell(figures: Figures, failed: str | None, done: bool) -> None:
        queue.put((number, deepcopy(figures), failed, done))

    play_alone(order, folder / str(number), tell)


def orders_of(order: Order, jobs: int) -> list[Order]:
    """The order divided among `jobs` processes, each with a seed of its own."""
    shares = [order.sequences // jobs + (number < order.sequences % jobs) for number in range(jobs)]
    return [
        replace(order, sequences=share, seed=order.seed * 1000 + number) for number, share in enumerate(shares) if share
    ]


def play_in_processes(console: Console, order: Order, jobs: int, folder: Path) -> list[Job]:
    """Play in several processes and print a line now and then. Stops all when a sequence fails in one."""
    context = multiprocessing.get_context("spawn")
    queue, started = context.Queue(), time.monotonic()
    running = [
        Job(context.Process(target=_play_job, args=(number, each, folder, queue), daemon=True))
        for number, each in enumerate(orders_of(order, jobs))
    ]
    for job in running:
        job.process.start()
    printed = started
    while not all(job.done for job in running):
        try:
            number, figures, failed, done = queue.get(timeout=1.0)
            running[number].figures, running[number].failed, running[number].done = figures, failed, done
        except Empty:
            for job in running:
                if not job.done and job.process.exitcode is not None:
                    job.failed, job.done = f"the process ended with exit code {job.process.exitcode}", True
        if time.monotonic() > printed + LINE_SECONDS:
            printed = time.monotonic()
            console.print(_line(running, order, printed - started), highlight=False)
        if any(job.failed for job in running):
            break
    for job in running:
        if job.failed or job.done:
            job.process.join()
        else:
            job.process.terminate()
    return running


def _line(running: Sequence[Job], order: Order, seconds: float) -> str:
    figures = total(running)
    kinds = ", ".join(f"{name} {times}" for name, times in figures.by_kind.most_common(6))
    return (
        f"{seconds:.0f} s: {figures.sequences} of {order.sequences} sequences, {figures.steps} steps, "
        f"{figures.looks} counts; {kinds}"
    )


def total(running: Sequence[Job]) -> Figures:
    """The figures of all processes."""
    return Figures(
        sum(job.figures.sequences for job in running),
        sum(job.figures.steps for job in running),
        sum(job.figures.looks for job in running),
        sum((job.figures.by_kind for job in running), Counter()),
        sum((job.figures.recounts for job in running), Counter()),
    )


def document_of(running: Sequence[Job], order: Order, seconds: float) -> dict[str, Any]:
    """The result, for scripts."""
    figures = total(running)
    return {
        "seed": order.seed,
        "writers": "both" if order.spark else "pyiceberg",
        "sequences": figures.sequences,
        "steps": figures.steps,
        "counts": figures.looks,
        "seconds": round(seconds, 1),
        "operations": dict(figures.by_kind.most_common()),
        "counts_by_reason": dict(figures.recounts.most_common()),
        "failed": [job.failed for job in running if job.failed],
    }
