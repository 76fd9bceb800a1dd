"""What came out of a run: a table for people, and a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from tests.writers.judgement import Facts, Found


@dataclass(frozen=True)
class Outcome:
    """`wrong`: broken expectations with what was seen. `busy_cores`: of the whole machine, in the measured time.

    `rewrites`: commits of the service.
    """

    facts: Sequence[Facts]
    wrong: dict[str, str]
    measured_seconds: float
    busy_cores: float
    rewrites: int


def shown(outcome: Outcome) -> Table:
    """A line for each writer."""
    table = Table(title="seconds from the commit to the ledger's count of it")
    columns = (
        "writer", "announced by", "commits", "p50", "p95", "max", "at start: commits", "max", "by event",
        "by look after rewrite", "by sweep", "rows", "rewrites", "commits made again", "failures",
    )  # fmt: skip
    for name in columns:
        table.add_column(name, justify="left" if name in columns[:2] else "right")
    for each in outcome.facts:
        latency, starting = each.latency, [one.seconds for one in each.starting if one.seconds is not None]
        cells = [
            each.name, each.announced_by, len(each.heard), f"{latency.p50:.2f}", f"{latency.p95:.2f}",
            f"{latency.max:.2f}", len(each.starting), f"{max(starting, default=0):.2f}", each.found_by(Found.EVENT),
            each.found_by(Found.OWN_COMMIT), each.found_by(Found.SWEEP), each.rows, each.rewrites,
            "" if each.retries is None else each.retries,
            len(each.failures),
        ]  # fmt: skip
        table.add_row(*map(str, cells))
    return table


def document(outcome: Outcome, seed: int, machine: str) -> dict[str, Any]:
    """The result as JSON: figures of each writer, not its single commits."""
    writers = [
        {name: value for name, value in asdict(each).items() if name not in {"heard", "starting", "announced"}}
        | {
            "commits": len(each.heard),
            "commits_at_start": len(each.starting),
            "seconds": asdict(each.latency),
            "found_by": {found.value: each.found_by(found) for found in Found},
            "unannounced": each.unannounced,
        }
        for each in outcome.facts
    ]
    return {**asdict(outcome), "facts": writers, "seed": seed, "machine": machine}
