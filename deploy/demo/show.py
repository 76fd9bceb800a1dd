"""Output of the demo: a live view on a terminal, else plain lines, and a summary at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from deploy.demo.service_facts import Readings
from deploy.demo.table_facts import BucketFiles, Content, TableCommit

Status = Sequence[tuple[str, str]]
BARS = "▁▂▃▄▅▆▇█"
HISTORY = 72
OTHER_COLUMNS = 34
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
        self._live: Live | None = None
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

    def progress(self, text: str) -> None:
        """Print a line, except during the live view."""
        if self._live is None:
            self.say(text)

    def failure(self, text: str) -> None:
        self._console.print(Text(text, style="bold red"), soft_wrap=True)

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show the live view until the end of the block; only on a terminal."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, refresh_per_second=4) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def scene(self, status: Status, buckets: Mapping[int, BucketFiles], history: Mapping[int, Sequence[int]]) -> None:
        """Update the live view: state of each process, and the table's files per bucket over time."""
        if self._live is not None:
            bars = max(8, min(HISTORY, self._console.width - OTHER_COLUMNS))
            self._live.update(_scene(status, buckets, {number: values[-bars:] for number, values in history.items()}))

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


def _scene(status: Status, buckets: Mapping[int, BucketFiles], history: Mapping[int, Sequence[int]]) -> RenderableType:
    states = Table.grid(padding=(0, 2))
    for name, text in status:
        states.add_row(Text(name, style="bold"), text)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("bucket", "files", "small", "MB"):
        table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
    table.add_column("files over time", no_wrap=True)
    highest = max((max(values, default=0) for values in history.values()), default=0)
    for number, bucket in buckets.items():
        style = "yellow" if bucket.due else "green"
        table.add_row(
            str(number), Text(str(bucket.files), style=f"bold {style}"), str(bucket.small_files),
            f"{bucket.bytes / 1e6:.0f}", Text(sparkline(history.get(number, ()), highest), style=style),
        )  # fmt: skip
    return Padding(Group(states, Text(), table), (1, 0, 0, 2))


def sparkline(values: Sequence[int], highest: int) -> str:
    """Values as bars; zero is the lowest bar."""
    top = len(BARS) - 1
    return "".join(BARS[round(value * top / max(highest, 1))] for value in values)


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
