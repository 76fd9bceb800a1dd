"""The status page as HTML and as JSON, from one document. Read-only, no external assets, no build step."""

from __future__ import annotations

import base64
import hashlib
import heapq
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from operator import itemgetter
from pathlib import Path
from string import Template
from typing import Any

from compactor.debt.board import DebtBoard, PartitionCounts, TableDebt
from compactor.events import RunFailed
from compactor.iceberg.other_compactors import DAY_SECONDS
from compactor.runs.dispatcher import Work
from compactor.runs.file_holds import waits_of
from compactor.runs.pauses import Pause, pause_of
from compactor.runs.work_order import ALL_TABLES
from metrics.gauges import worst_first
from metrics.recent_work import Finished, RecentWork, Running
from metrics.service_view import Health, ServiceView, SlotUse

Document = dict[str, Any]
MOST_TABLES = 200
MOST_RUNS = 20
MOST_HOSTS = 100
OTHER_HOSTS = "other"
_PAGE = Template((Path(__file__).parent / "status_page.html").read_text(encoding="utf-8"))
_SCRIPT = _PAGE.template.partition("<script>")[2].partition("</script>")[0]
CONTENT_SECURITY = (
    "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; script-src 'sha256-"
    + base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    + "'"
)


def status_document(
    health: Health, service: ServiceView, board: DebtBoard, recent: RecentWork, now: float | None = None
) -> Document:
    """The content of the page as JSON: sizes in bytes, durations in seconds, times in seconds since the epoch."""
    moment = time.time() if now is None else now
    tables, pauses, counting = worst_first(board), service.current_pauses, service.counting
    total = sum((debt.total for debt in tables), PartitionCounts())
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
            "rewritten": sum(debt.acted_on for debt in tables),
            "stale": sum(debt.stale is not None for debt in tables),
            "due_tables": sum(debt.acted_on and debt.has_work for debt in tables),
            "data_files": total.data_files,
            "small_files": total.small_files,
            "data_bytes": total.data_bytes,
            "small_bytes": total.small_bytes,
            "delete_files": total.delete_files,
            "debt_files": sum(debt.debt_files for debt in tables),
        },
        "slots": _slots(service.rewriting),
        "pauses": [
            asdict(pause) | {"tables": sum(debt.table.matches(pause.glob) for debt in tables)} for pause in pauses
        ],
        "waits": waits_of(board.holds.waits[:MOST_TABLES]),
        "limits": _limits(service.work),
        "tables": [_table(debt, moment, pauses) for debt in tables[:MOST_TABLES]],
        "running": [_running(one, moment) for one in recent.running],
        "recent": [_finished(one) for one in recent.finished[:MOST_RUNS]],
    }


def _table(debt: TableDebt, now: float, pauses: Sequence[Pause]) -> Document:
    total, waiting = debt.total, debt.waiting_since
    return {
        "table": str(debt.table),
        "rewritten": debt.acted_on,
        "paused": pause_of(debt.table, pauses, now) is not None,
        "data_files": total.data_files,
        "small_files": total.small_files,
        "mean_file_bytes": total.data_bytes // total.data_files if total.data_files else None,
        "delete_files": total.delete_files,
        "due_partitions": debt.due_partitions,
        "debt_files": debt.debt_files,
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


def bounded(host_tasks: Mapping[str, int], most: int = MOST_HOSTS) -> list[tuple[str, int]]:
    """The hosts with the most tasks; beyond `most` the others together as `other`."""
    if len(host_tasks) <= most:
        return sorted(host_tasks.items())
    busiest = dict(heapq.nlargest(most - 1, sorted(host_tasks.items()), key=itemgetter(1)))
    return [*sorted(busiest.items()), (OTHER_HOSTS, sum(host_tasks.values()) - sum(busiest.values()))]


def _running(one: Running, now: float) -> Document:
    left, moved = one.seconds_left(now), one.moved
    return {
        "run_id": one.plan.run_id,
        "table": str(one.plan.table),
        "groups": one.plan.groups,
        "files": one.plan.files,
        "bytes": one.bytes,
        "seconds": round(max(0.0, now - one.since), 1),
        "tasks_done": moved.tasks_done if moved is not None else 0,
        "tasks": moved.tasks if moved is not None else None,
        "bytes_done": moved.bytes_done if moved is not None else 0,
        "seconds_left": round(left, 1) if left is not None else None,
        "estimated_end": round(now + left) if left is not None else None,
        "waits_for_writer_until": round(one.waits_until) if one.waits_until is not None else None,
    }


def _finished(one: Finished) -> Document:
    """What a failed run has not is 0."""
    end = one.end
    return {
        "run_id": end.run_id,
        "table": str(end.table),
        "at": round(one.at, 3),
        "snapshot_id": getattr(end, "snapshot_id", None),
        **{name: getattr(end, name, 0) for name in ("files_in", "files_out", "bytes_in", "bytes_out")},
        "seconds": round(sum(getattr(end, f"{stage}_seconds", 0.0) for stage in ("plan", "rewrite", "commit")), 3),
        "engines": {} if isinstance(end, RunFailed) else dict(one.engines),
        "failed": f"{end.stage}: {end.message}" if isinstance(end, RunFailed) else None,
    }


def status_page(document: Document) -> str:
    parts = (
        _service_html(document["service"]),
        _pauses_html(document["pauses"]),
        _fleet_html(document["fleet"]),
        _running_html(document["running"]),
        _waits_html(document["waits"]),
        _slots_html(document["slots"]),
        _limits_html(document["limits"]),
        _counting_html(document["counting"]),
        _tables_html(document["tables"], document["fleet"]["tables"]),
        _recent_html(document["recent"]),
    )
    return _PAGE.substitute(main="\n".join(parts))


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
    rows = [(f"{one['what']} {one['of']}", one["part"], one["why"], _moment(one["until"])) for one in waits]
    return _section("Waits", ("What", "Part", "Why", "Until"), rows)


def _slots_html(slots: Mapping[str, Any]) -> str:
    waiting = f", {slots['waiting_runs']:,} runs wait" if slots["waiting_runs"] else ""
    text = (
        f"<p>Rewrite slots: {slots['in_use']:,} of {slots['slots']:,} in use{waiting}; "
        f"{slots['executor_cores']:,} cores of {slots['executors']:,} executors.</p>"
    )
    rows = [(one["host"], one["tasks"]) for one in slots["hosts"]]
    return text + (_section("Hosts", ("Host", "Running tasks"), rows) if len(rows) > 1 else "")


def _limits_html(limits: Mapping[str, Any]) -> str:
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
    heading = f"Tables ({known:,})"
    if len(tables) < known:
        heading = f"Tables ({len(tables):,} of {known:,}, most small files first)"
    most = max([1, *(one["small_files"] for one in tables)])
    rows = (
        (
            one["table"],
            one["data_files"],
            _bar(one["small_files"], most),
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


def _state(table: Mapping[str, Any]) -> str:
    trouble = [table["stale"]] if table["stale"] else []
    trouble += [*table["refused"], *(f"rewritten also by {name}" for name in table["other_firnlines"])]
    if trouble:
        return _trouble("; ".join(trouble))
    return "observed" if not table["rewritten"] else "paused" if table["paused"] else "rewritten"


def _recent_html(recent: Sequence[Mapping[str, Any]]) -> str:
    rows = (
        (
            _moment(one["at"]),
            one["table"],
            _trouble(one["failed"]) if one["failed"] else f"{one['files_in']:,} → {one['files_out']:,} files",
            _size(one["bytes_in"]) if not one["failed"] else "",
            _span(one["seconds"]) if not one["failed"] else "",
            ", ".join(f"{engine} ({count})" for engine, count in sorted(one["engines"].items())),
            str(one["snapshot_id"] or ""),
        )
        for one in recent
    )
    return _section("Recent rewrites", ("At", "Table", "Done", "Bytes", "Took", "By", "Snapshot"), rows)


class _Html(str):
    """A cell that is no text to be escaped."""

    __slots__ = ()


def _bar(number: int, most: int) -> _Html:
    return _Html(f'{number:,} <span class="bar" style="width: {number / most * 6:.2f}rem"></span>')


def _trouble(text: str) -> _Html:
    return _Html(f'<span class="ill">{escape(text)}</span>')


def _section(heading: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table, if it has rows. Columns of numbers are aligned to the right."""
    shown = list(rows)
    if not shown:
        return ""
    head = "".join(
        f'<th scope="col"{" class=number" if isinstance(value, int) else ""}>{escape(text)}</th>'
        for text, value in zip(heads, shown[0], strict=True)
    )
    body = "\n".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in shown)
    return f"<h2>{escape(heading)}</h2>\n<table>\n<tr>{head}</tr>\n{body}\n</table>"


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{value if isinstance(value, _Html) else escape(str(value))}</td>"


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
