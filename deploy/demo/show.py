"""Output of the demo: lines, and a summary at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from deploy.demo.service_facts import Readings
from deploy.demo.table_facts import Content, TableCommit

PLAIN_WIDTH = 110
CHECKSUM_DIGITS = 16


@dataclass(frozen=True)
class Check:
    holds: bool
    text: str


@dataclass(frozen=True)
class ActResult:
    """Result of an act. `before`: the ingested files; `after`: the table at the end; `readings`: of the service."""

    title: str
    before: Content
    after: Content
    ingested_bytes: int
    replaces: Sequence[TableCommit]
    readings: Readings
    latency_note: str
    seconds: float
    checks: Sequence[Check]

    @property
    def write_amplification(self) -> float:
        rewritten = sum(replace.bytes_added for replace in self.replaces)
        return (self.ingested_bytes + rewritten) / max(1, self.ingested_bytes)


class Show:
    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._started = time.monotonic()
        if not self._console.is_terminal:
            self._console.width = PLAIN_WIDTH

    def heading(self, text: str) -> None:
        self._console.print()
        if self._console.is_terminal:
            self._console.print(Rule(f"[bold]{text}", align="left", style="cyan"))
        else:
            self._console.print(f"== {text}", soft_wrap=True)

    def say(self, text: str, style: str = "") -> None:
        line = Text(f"{time.monotonic() - self._started:6.1f} s  ", style="dim")
        self._console.print(line.append(text, style=style or "not dim"), soft_wrap=True)

    def failure(self, text: str) -> None:
        self._console.print(Text(text, style="bold red"), soft_wrap=True)

    def summary(self, acts: Sequence[ActResult]) -> None:
        table = Table(box=box.SIMPLE_HEAD, title="Before and after", title_justify="left", title_style="bold")
        table.add_column("")
        for act in acts:
            table.add_column(act.title)
        for label, cells in zip(_LABELS, zip(*(_cells(act) for act in acts), strict=True), strict=True):
            table.add_row(label, *cells)
        self._console.print()
        self._console.print(table)
        for check in (check for act in acts for check in act.checks):
            mark, style = ("ok  ", "green") if check.holds else ("FAIL", "bold red")
            self._console.print(Text(f"  {mark}  {check.text}", style=style), soft_wrap=True)

    def lines(self, *pairs: tuple[str, str]) -> None:
        self._console.print()
        width = max(len(name) for name, _ in pairs)
        for name, value in pairs:
            self._console.print(f"  [dim]{name:<{width}}[/]  {value}", soft_wrap=True)


def checksum_text(checksum: int) -> str:
    return f"{checksum:0{CHECKSUM_DIGITS}x}"


_LABELS = (
    "files", "MB", "rows before", "rows after", "checksum before", "checksum after", "replace commits",
    "failed attempts", "engine", "plan", "rewrite", "commit", "event → compacted", "write amplification",
    "the act took",
)  # fmt: skip


def _cells(act: ActResult) -> tuple[str, ...]:
    readings = act.readings
    engines = (f"{engine}: {groups} groups" for engine, groups in readings.engines.items())
    failures = (f"{failure}: {count}" for failure, count in readings.failures.items())
    latency = readings.event_to_compacted_seconds
    return (
        f"{act.before.files:,} → {act.after.files:,}",
        f"{act.before.bytes / 1e6:,.1f} → {act.after.bytes / 1e6:,.1f}",
        f"{act.before.rows:,}",
        f"{act.after.rows:,}",
        checksum_text(act.before.checksum),
        checksum_text(act.after.checksum),
        f"{len(act.replaces)}",
        "\n".join(failures) or "none",
        "\n".join(engines) or "none",
        *(f"{readings.stage_seconds(stage):.2f} s" for stage in ("plan", "rewrite", "commit")),
        "found by the first sweep" if latency is None else f"{latency:.1f} s, {act.latency_note}",
        f"{act.write_amplification:.2f} bytes per byte",
        f"{act.seconds:.0f} s",
    )
