"""The matrix: every kind by every writer that can, compacted by every engine; one table per kind and writer, rolled
back between engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.conftest import Lake
from tests.correctness.checks import CellResult, Outcome, check_compaction, read_baseline
from tests.correctness.kinds import KINDS
from tests.correctness.scripts import Script, WriterCannot, play, roll_back_to

ENGINES = ("auto", "splice", "encode", "spark")


@dataclass(frozen=True)
class Cell:
    """A place in the matrix and what came of it."""

    kind: str
    writer: str
    result: CellResult


def cells_of(kind: str, writer: str, engines: Sequence[str], lake: Lake, filters: int = 12) -> list[Cell]:
    """Play a kind by one writer and compact it with each engine in turn."""
    return [Cell(kind, writer, result) for result in results_of(KINDS[kind].script, writer, engines, lake, filters)]


def results_of(script: Script, writer: str, engines: Sequence[str], lake: Lake, filters: int = 12) -> list[CellResult]:
    """The results of one script, engine by engine; what cannot be played is a single failed or refused one."""
    try:
        table = play(lake, script, writer)
        baseline = read_baseline(lake, table, filters=filters)
    except WriterCannot as error:
        return [CellResult("", engine, Outcome.REFUSED, reason=f"the writer: {error}") for engine in engines]
    except Exception as error:  # noqa: BLE001 - a script that cannot be played must show up, not end the matrix
        failed = CellResult(
            "", "", Outcome.FAILED, problems=(f"cannot be set up: {type(error).__name__}: {error}"[:600],)
        )
        return [replace(failed, engine=engine) for engine in engines]
    results = []
    for engine in engines:
        results.append(check_compaction(lake, table, engine, baseline))
        if baseline.snapshot_id is not None and len(results) < len(engines):
            roll_back_to(lake, table, baseline.snapshot_id)
    return results


def chosen(kinds: Sequence[str], writers: Sequence[str]) -> list[tuple[str, str]]:
    """The (kind, writer) pairs asked for; empty sequences mean all."""
    return [
        (name, writer)
        for name, kind in KINDS.items()
        if not kinds or name in kinds
        for writer in kind.writers
        if not writers or writer in writers
    ]
