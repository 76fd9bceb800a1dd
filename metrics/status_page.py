"""The status page as HTML and as JSON, from one document. Read-only, no external assets, no build step."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from compactor.debt.board import PartitionCounts
from compactor.iceberg.other_compactors import DAY_SECONDS
from compactor.patience.holds import Hold
from compactor.runs.dispatcher import Work
from compactor.runs.file_holds import waits_of
from compactor.runs.pauses import Pause, pause_of
from compactor.runs.work_order import ALL_TABLES
from metrics.debt_collector import TableSummary
from metrics.recent_work import Finished, Running
from metrics.slot_collector import SlotUse, bounded

Document = dict[str, Any]
MOST_TABLES = 200
MOST_RUNS = 20
REFRESH_SECONDS = 5

STYLE = """\
:root { color-scheme: light dark; --ink: #1c2733; --paper: #fff; --line: #d5dde5; --dim: #5b6b7a;
  --well: #17693a; --ill: #a32018; --bar: #2f6fab; --card: #f4f7fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dbe4ec; --paper: #12181f; --line: #33414f; --dim: #93a3b3; --well: #6cce93; --ill: #ff9488;
    --bar: #5fa4e6; --card: #1a222b; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem; }
h1 { margin: 0; } h2 { margin: 2rem 0 .5rem; font-size: 1.05rem; }
table { border-collapse: collapse; width: 100%; }
th { font-weight: 500; color: var(--dim); font-size: .85rem; }
th, td { text-align: left; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.well { color: var(--well); } .ill { color: var(--ill); } .dim { color: var(--dim); }
.cards { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1rem 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .6rem 1rem;
  min-width: 8rem; }
.card b { display: block; font-size: 1.4rem; font-variant-numeric: tabular-nums; }
.bar { display: inline-block; height: .55rem; background: var(--bar); border-radius: .2rem; }
a { color: inherit; }"""

SCRIPT = f"""\
setInterval(async () => {{
  try {{
    const page = new DOMParser().parseFromString(await (await fetch("/")).text(), "text/html");
    document.querySelector("main").replaceWith(page.querySelector("main"));
  }} catch (error) {{ document.querySelector("#state").textContent = "The service does not answer."; }}
}}, {REFRESH_SECONDS * 1000});"""

CONTENT_SECURITY = (
    "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; script-src 'sha256-"
    + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    + "'"
)


@dataclass(frozen=True)
class Health:
    """Whether the service is alive and ready. `details`: each failing part with the reason.

    `active`: whether it may commit; False for a standby. `deployment`: the id in its commits.
    """

    live: bool
    ready: bool
    details: dict[str, str] = field(default_factory=dict)
    active: bool = True
    deployment: str = ""


@dataclass(frozen=True)
class Counting:
    """Progress of the first count: tables counted since the start, of the tables found by sweeps."""

    counted: int
    found: int

    @property
    def left(self) -> int:
        """Tables that were not looked at yet."""
        return max(0, self.found - self.counted)


def status_document(
    health: Health,
    tables: Sequence[TableSummary],
    running: Sequence[Running],
    finished: Sequence[Finished],
    now: float | None = None,
    counting: Counting | None = None,
    slots: SlotUse | None = None,
    work: Work | None = None,
    pauses: Sequence[Pause] = (),
    waits: Sequence[Hold] = (),
) -> Document:
    """The content of the page as JSON: sizes in bytes, durations in seconds, times in seconds since the epoch."""
    moment = time.time() if now is None else now
    total = sum((one.total for one in tables), PartitionCounts())
    return {
        "service": {
            "live": health.live,
            "ready": health.ready,
            "active": health.active,
            "deployment": health.deployment or None,
            "details": dict(health.details),
        },
        "counting": asdict(counting) if counting is not None else None,
        "fleet": {
            "tables": len(tables),
            "rewritten": sum(one.debt.acted_on for one in tables),
            "stale": sum(one.debt.stale is not None for one in tables),
            "due_tables": sum(one.debt.acted_on and one.debt.has_work for one in tables),
            "data_files": total.data_files,
            "small_files": total.small_files,
            "data_bytes": total.data_bytes,
            "small_bytes": total.small_bytes,
            "delete_files": total.delete_files,
            "debt_files": sum(one.debt_files for one in tables),
        },
        "slots": _slots(slots) if slots is not None else None,
        "pauses": [_pause(pause, tables) for pause in pauses],
        "waits": waits_of(waits[:MOST_TABLES]),
        "limits": _limits(work) if work is not None else None,
        "tables": [_table(one, moment, pauses) for one in tables[:MOST_TABLES]],
        "running": [_running(one, moment) for one in running],
        "recent": [_finished(one) for one in finished[:MOST_RUNS]],
    }


def _pause(pause: Pause, tables: Sequence[TableSummary]) -> Document:
    return asdict(pause) | {"tables": sum(one.table.matches(pause.glob) for one in tables)}


def _table(one: TableSummary, now: float, pauses: Sequence[Pause]) -> Document:
    debt, total = one.debt, one.total
    waiting = debt.waiting_since
    return {
        "table": str(one.table),
        "rewritten": debt.acted_on,
        "paused": pause_of(one.table, pauses, now) is not None,
        "data_files": total.data_files,
        "small_files": total.small_files,
        "mean_file_bytes": total.data_bytes // total.data_files if total.data_files else None,
        "delete_files": total.delete_files,
        "due_partitions": one.due_partitions,
        "debt_files": one.debt_files,
        "manifests": debt.manifests.manifests if debt.manifests is not None else None,
        "waiting_seconds": round(max(0.0, now - waiting), 1) if waiting is not None else None,
        "stale": debt.stale,
        "refused": list(debt.refused),
        "other_firnlines": [other.name for other in debt.other_firnlines if other.last > now - DAY_SECONDS],
    }


def _limits(work: Work) -> Document:
    return {
        "quiet": work.quiet,
        "held_back_tables": work.limited + work.capped,
        "budgets": [
            {"tables": each.tables, "limit": each.limit, "cap": each.cap, "left": each.left} for each in work.budgets
        ],
    }


def _slots(use: SlotUse) -> Document:
    return {
        "slots": use.slots,
        "in_use": use.in_use,
        "waiting_runs": use.waiting_runs,
        "executor_cores": use.cores,
        "executors": use.executors,
        "hosts": [{"host": host, "tasks": tasks} for host, tasks in bounded(use.host_tasks)],
    }


def _running(one: Running, now: float) -> Document:
    left = one.seconds_left(now)
    return {
        "run_id": one.run_id,
        "table": str(one.table),
        "groups": one.groups,
        "files": one.files,
        "bytes": one.bytes,
        "seconds": round(max(0.0, now - one.since), 1),
        "tasks_done": one.tasks_done,
        "tasks": one.tasks,
        "bytes_done": one.bytes_done,
        "seconds_left": round(left, 1) if left is not None else None,
        "estimated_end": round(now + left) if left is not None else None,
        "waits_for_writer_until": round(one.waits_until) if one.waits_until is not None else None,
    }


def _finished(one: Finished) -> Document:
    return {
        "run_id": one.run_id,
        "table": str(one.table),
        "at": round(one.at, 3),
        "snapshot_id": one.snapshot_id,
        "files_in": one.files_in,
        "files_out": one.files_out,
        "bytes_in": one.bytes_in,
        "bytes_out": one.bytes_out,
        "seconds": round(one.seconds, 3),
        "engines": dict(one.engines or {}),
        "failed": one.message or None,
    }


def status_page(document: Document) -> str:
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>firnline</title>
<style>
{STYLE}
</style>
</head>
<body>
<main>
<h1>firnline</h1>
{_service_html(document["service"])}
{_pauses_html(document["pauses"])}
{_fleet_html(document["fleet"])}
{_running_html(document["running"])}
{_waits_html(document["waits"])}
{_slots_html(document["slots"])}
{_limits_html(document["limits"])}
{_counting_html(document["counting"])}
{_tables_html(document["tables"], document["fleet"]["tables"])}
{_recent_html(document["recent"])}
<p class="dim"><a href="/api/v1/status">JSON</a> · <a href="/metrics">Metrics</a> · <a href="/healthz">Health</a> ·
<a href="/readyz">Readiness</a></p>
</main>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _service_html(service: Mapping[str, Any]) -> str:
    well = service["live"] and service["ready"]
    state = "ready" if well else "not ready"
    parts = "".join(f"<li>{escape(part)}: {escape(why)}</li>" for part, why in sorted(service["details"].items()))
    return f'<p id="state" class="{"well" if well else "ill"}">The service is {state}.</p>\n<ul>{parts}</ul>'


def _pauses_html(pauses: Sequence[Mapping[str, Any]]) -> str:
    lines = "".join(f"<li>{escape(_pause_line(pause))}</li>" for pause in pauses)
    return f"<p>Paused tables are counted, not rewritten:</p>\n<ul>{lines}</ul>" if pauses else ""


def _pause_line(pause: Mapping[str, Any]) -> str:
    until = f"until {_moment(pause['until'])}" if pause["until"] is not None else "until `firnline resume`"
    count = pause["tables"]
    known = f"{count} table{'s' if count > 1 else ''}" if count else "no table that is known"
    return f"{pause['glob']} ({known}), {until}{': ' if pause['reason'] else ''}{pause['reason']}"


def _fleet_html(fleet: Mapping[str, Any]) -> str:
    cards = (
        ("tables", f"{fleet['tables']:,}"),
        ("rewritten", f"{fleet['rewritten']:,}"),
        ("due now", f"{fleet['due_tables']:,}"),
        ("data files", f"{fleet['data_files']:,}"),
        ("small files", f"{fleet['small_files']:,}"),
        ("files that due rewrites remove", f"{fleet['debt_files']:,}"),
        ("data", _size(fleet["data_bytes"])),
        ("cannot be read", f"{fleet['stale']:,}"),
    )
    shown = "".join(f'<div class="card"><b>{value}</b><span class="dim">{name}</span></div>' for name, value in cards)
    return f'<div class="cards">{shown}</div>'


def _running_html(running: Sequence[Mapping[str, Any]]) -> str:
    if not running:
        return ""
    rows = (
        (
            one["table"],
            one["groups"],
            one["files"],
            f"{_size(one['bytes_done'])} of {_size(one['bytes'])}" if one["bytes_done"] else _size(one["bytes"]),
            f"{one['tasks_done']:,} of {one['tasks']:,}" if one["tasks"] is not None else "",
            _span(one["seconds"]),
            _end(one),
        )
        for one in running
    )
    return _section("Running", ("Table", "Groups", "Files", "Bytes", "Outputs", "For", "Estimated end"), rows)


def _end(run: Mapping[str, Any]) -> str:
    if run["waits_for_writer_until"] is not None:
        until = time.strftime("%H:%M:%SZ", time.gmtime(run["waits_for_writer_until"]))
        return f"waits for a writer's commit, until {until} at most"
    if run["estimated_end"] is None:
        return ""
    return f"{time.strftime('%H:%M:%SZ', time.gmtime(run['estimated_end']))} (in {_span(run['seconds_left'])})"


def _waits_html(waits: Sequence[Mapping[str, Any]]) -> str:
    if not waits:
        return ""
    rows = [(f"{one['what']} {one['of']}", one["part"], one["why"], _moment(one["until"])) for one in waits]
    return _section("Waits", ("What", "Part", "Why", "Until"), rows)


def _slots_html(slots: Mapping[str, Any] | None) -> str:
    if slots is None:
        return ""
    waiting = f", {slots['waiting_runs']:,} runs wait" if slots["waiting_runs"] else ""
    text = (
        f"<p>Rewrite slots: {slots['in_use']:,} of {slots['slots']:,} in use{waiting}; "
        f"{slots['executor_cores']:,} cores of {slots['executors']:,} executors.</p>"
    )
    rows = [(one["host"], one["tasks"]) for one in slots["hosts"]]
    return text + (_section("Hosts", ("Host", "Running tasks"), rows) if len(rows) > 1 else "")


def _limits_html(limits: Mapping[str, Any] | None) -> str:
    if limits is None:
        return ""
    quiet = "<p>Quiet hours: no run starts.</p>" if limits["quiet"] else ""
    left = [f"{_budget_name(each)}: {each['left']:,} of {each['cap']:,}" for each in limits["budgets"]]
    held = f"{limits['held_back_tables']:,} due tables wait" if limits["held_back_tables"] else ""
    if not left:
        return quiet + (f"<p>Limits of the hour: {held}.</p>" if held else "")
    rest = f"; {held}" if held else ""
    return f"{quiet}<p>Left of the limits of the hour: {escape(', '.join(left))}{rest}.</p>"


def _budget_name(budget: Mapping[str, Any]) -> str:
    tables = budget["tables"]
    return str(budget["limit"]) if tables == ALL_TABLES else f"{budget['limit']} of {tables}"


def _counting_html(counting: Mapping[str, int] | None) -> str:
    """Progress of the first count, which takes minutes for many tables: the totals cover the tables counted so far."""
    if counting is None:
        return "<p>No catalog has been listed yet.</p>"
    counted, found = counting["counted"], counting["found"]
    if not found:
        return "<p>The catalogs have no table to rewrite or observe; see tables.* in the settings.</p>"
    return f"<p>counting: {counted:,} of {found:,} tables</p>" if counted < found else ""


def _tables_html(tables: Sequence[Mapping[str, Any]], known: int) -> str:
    if not tables:
        return ""
    heading = f"Tables ({known:,})"
    if len(tables) < known:
        heading = f"Tables ({len(tables):,} of {known:,}, most small files first)"
    most = max(1, *(one["small_files"] for one in tables))
    rows = (
        (
            one["table"],
            one["data_files"],
            _Bar(one["small_files"], one["small_files"] / most),
            _size(one["mean_file_bytes"]),
            one["due_partitions"],
            one["manifests"] if one["manifests"] is not None else "",
            _span(one["waiting_seconds"]),
            _state(one),
        )
        for one in tables
    )
    heads = ("Table", "Files", "Small files", "Mean size", "Due partitions", "Manifests", "Waiting", "")
    return _section(heading, heads, rows)


def _state(table: Mapping[str, Any]) -> _Trouble | str:
    trouble = [table["stale"]] if table["stale"] else []
    trouble += [*table["refused"], *(f"rewritten also by {name}" for name in table["other_firnlines"])]
    if trouble:
        return _Trouble("; ".join(trouble))
    return "observed" if not table["rewritten"] else "paused" if table["paused"] else "rewritten"


def _recent_html(recent: Sequence[Mapping[str, Any]]) -> str:
    if not recent:
        return ""
    rows = (
        (
            _moment(one["at"]),
            one["table"],
            _Trouble(one["failed"]) if one["failed"] else f"{one['files_in']:,} → {one['files_out']:,} files",
            _size(one["bytes_in"]) if not one["failed"] else "",
            _span(one["seconds"]) if not one["failed"] else "",
            ", ".join(f"{engine} ({count})" for engine, count in sorted(one["engines"].items())),
            str(one["snapshot_id"] or ""),
        )
        for one in recent
    )
    return _section("Recent rewrites", ("At", "Table", "Done", "Bytes", "Took", "By", "Snapshot"), rows)


@dataclass(frozen=True)
class _Bar:
    number: int
    share: float


@dataclass(frozen=True)
class _Trouble:
    text: str


def _section(heading: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    shown = list(rows)
    numeric = [isinstance(value, int) for value in shown[0]]
    head = "".join(map(_head, heads, numeric))
    body = "\n".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in shown)
    return f"<h2>{escape(heading)}</h2>\n<table>\n<tr>{head}</tr>\n{body}\n</table>"


def _head(text: str, numeric: bool) -> str:
    return f'<th scope="col"{" class=number" if numeric else ""}>{escape(text)}</th>'


def _cell(value: object) -> str:
    match value:
        case _Bar():
            bar = f'<span class="bar" style="width: {value.share * 6:.2f}rem"></span>'
            return f"<td>{value.number:,} {bar}</td>"
        case _Trouble():
            return f'<td class="ill">{escape(value.text)}</td>'
        case int():
            return f'<td class="number">{value:,}</td>'
        case _:
            return f"<td>{escape(str(value))}</td>"


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))


def _size(size: int | None) -> str:
    if size is None:
        return ""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"


def _span(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, scale in (("h", 3600), ("min", 60)):
        if seconds >= 2 * scale:
            return f"{seconds / scale:.0f} {unit}"
    return f"{seconds:.1f} s"
