"""The page of tables and runs, and its JSON twin: what they show, and that no name becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from compactor.debt.board import DebtBoard, PartitionCounts
from compactor.events import (
    CommitHeld,
    CommitWaits,
    GroupRewritten,
    RunCommitted,
    RunFailed,
    RunMoved,
    RunPlanned,
    RunSkipped,
)
from compactor.partitions import PartitionKey
from compactor.patience.holds import Holds, Key, What
from compactor.runs.dispatcher import Work
from compactor.runs.pauses import Pause
from compactor.runs.work_order import Budget
from compactor.table_names import TableName
from metrics.recent_work import RecentWork
from metrics.service_view import Counting, Health, SlotUse
from metrics.status_page import MOST_TABLES, status_document, status_page
from tests.unit.metrics.support import HOSTILE, Service, ask, board_of, debt, hostile_board, partition, small

pytestmark = pytest.mark.usefixtures("info_logged")


ORDERS = TableName("lake", ("db",), "orders")
PLANNED = RunPlanned(run_id="p", table=ORDERS, groups=4, files=112, bytes=4_000_000, seconds=0.5)
COMMITTED = RunCommitted(
    "r", ORDERS, snapshot_id=777, groups=1, files_in=40, files_out=2, bytes_in=5_000, bytes_out=5_432,
    plan_seconds=0.1, rewrite_seconds=0.2, commit_seconds=0.3,
)  # fmt: skip
FAILED = RunFailed("q", ORDERS, stage="commit", reason="conflict", reaction="replan", message="<access> denied")


def rewritten(engine: str, reason: str) -> GroupRewritten:
    counts = {"files_in": 2, "files_out": 1, "bytes_in": 9, "bytes_out": 9, "rows_in": 1, "rows_deleted": 0}
    return GroupRewritten("r", ORDERS, PartitionKey(0, "[]"), engine, reason, rows_out=1, seconds=0.1, **counts)


def worked(*told, at: float = 86_400.0) -> RecentWork:
    work = RecentWork(lambda: at)
    for event in told:
        work(event)
    return work


def at_work() -> RecentWork:
    """A failed run, a committed one, and one under way."""
    by = [rewritten("splice", "same_schema")] * 3 + [rewritten("encode", "tiny")]
    done = (replace(PLANNED, run_id="r"), *by, COMMITTED)
    return worked(replace(PLANNED, run_id="q"), FAILED, *done, PLANNED)


def document_of(service: Service | None = None, board: DebtBoard | None = None, recent=None, now=None):
    service = service or Service()
    return status_document(service.health, service, board or DebtBoard(), recent or RecentWork(), now)


def test_page_lists_tables_readiness_and_runs(serve):
    counts = PartitionCounts(12_345, 678, 12_345_000, 9, 0, 1, 0)
    board = board_of(debt("orders", partition({}, counts, due=True), stale="not found"))
    status, headers, body = ask(serve(board=board, recent=at_work()), "/")
    page = body.decode()
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    _, running, tables, orders, heads, done, failed = rows_of(page)
    assert running[:4] == ["lake.db.orders", "4", "112", "4.0 MB"]
    assert tables == ["Table", "Files", "Small files", "Mean size", "Due partitions", "Manifests", "Waiting", ""]
    assert [text.strip() for text in orders] == ["lake.db.orders", "12,345", "678", "1.0 kB", "1", "", "", "not found"]
    assert heads == ["At", "Table", "Done", "Bytes", "Took", "By", "Snapshot"]
    by = "encode: tiny (1), splice: same_schema (3)"
    assert done == ["1970-01-02 00:00:00Z", "lake.db.orders", "40 → 2 files", "5.0 kB", "0.6 s", by, "777"]
    assert failed[2] == "commit: <access> denied"
    assert "The service is ready." in page
    assert "prefers-color-scheme" in page


def test_the_json_twin_holds_what_the_page_shows(serve):
    counts = PartitionCounts(10, 4, 1_000, 400, 3, 1, 0)
    board = board_of(debt("orders", partition({}, counts, due=True), acted_on=True))
    status, headers, body = ask(serve(board=board, recent=at_work()), "/api/v1/status")
    document = json.loads(body)
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert document["service"] == {"live": True, "ready": True, "active": True, "deployment": None, "details": {}}
    assert document["fleet"] | {"tables": 1, "rewritten": 1, "due_tables": 1, "data_files": 10} == document["fleet"]
    (table,) = document["tables"]
    assert (table["table"], table["small_files"], table["mean_file_bytes"]) == ("lake.db.orders", 4, 100)
    done, failed = document["recent"]
    assert done == {
        "run_id": "r", "table": "lake.db.orders", "at": 86_400.0, "snapshot_id": 777, "files_in": 40, "files_out": 2,
        "bytes_in": 5_000, "bytes_out": 5_432, "seconds": 0.6, "engines": {"splice: same_schema": 3, "encode: tiny": 1},
        "failed": None,
    }  # fmt: skip
    assert failed == {
        **dict.fromkeys(done, 0), "run_id": "q", "table": "lake.db.orders", "at": 86_400.0, "snapshot_id": None,
        "engines": {}, "failed": "commit: <access> denied",
    }  # fmt: skip
    assert document["running"][0]["files"] == 112


def test_a_run_shows_what_is_done_of_all_and_its_estimated_end():
    """A quarter of the bytes took 50 s, so that the run takes 200 s; 20 s passed since."""
    moments = iter([1_000.0, 1_030.0, 1_050.0, 1_060.0])
    work = RecentWork(lambda: next(moments))
    work(PLANNED)
    assert document_of(recent=work, now=1_020.0)["running"][0]["seconds_left"] is None
    for done in (1, 2):
        work(RunMoved("p", ORDERS, tasks_done=done, tasks=7, bytes_done=500_000 * done, bytes=4_000_000))
    work(RunMoved("an older run", ORDERS, tasks_done=6, tasks=7, bytes_done=1, bytes=2))
    document = document_of(recent=work, now=1_070.0)
    (run,) = document["running"]
    assert (run["tasks_done"], run["tasks"], run["bytes_done"], run["bytes"]) == (2, 7, 1_000_000, 4_000_000)
    assert (run["seconds_left"], run["estimated_end"]) == (130.0, 1_200)
    row = rows_of(status_page(document))[1]
    assert row == ["lake.db.orders", "4", "112", "1.0 MB of 4.0 MB", "2 of 7", "70.0 s", "00:20:00Z (in 2 min)"]
    overdue = document_of(recent=work, now=9_000.0)["running"][0]
    assert (overdue["seconds_left"], overdue["estimated_end"]) == (0.0, 9_000)


def test_a_run_whose_commit_waits_for_a_writer_says_so():
    held = CommitHeld("an older run", ORDERS, 3.0, after_writer=True)
    work = worked(PLANNED, CommitWaits("p", ORDERS, 60.0), held, at=1_000.0)
    document = document_of(recent=work, now=1_020.0)
    assert document["running"][0]["waits_for_writer_until"] == 1_060
    assert rows_of(status_page(document))[1][-1] == "waits for a writer's commit, until 00:17:40Z at most"
    work(replace(held, run_id="p"))
    assert document_of(recent=work, now=1_030.0)["running"][0]["waits_for_writer_until"] is None


def test_recent_work_is_bounded_and_a_run_that_found_nothing_left_to_do_is_not_running():
    work = worked(PLANNED)
    assert [one.plan for one in work.running] == [PLANNED]
    work(RunSkipped(ORDERS, "nothing_due"))
    assert work.running == ()
    for number in range(200):
        work(replace(COMMITTED, run_id=str(number)))
    assert len(work.finished) == 50
    assert work.finished[0].end.run_id == "199"


def test_quiet_hours_and_what_is_left_of_the_limits_are_shown():
    budgets = (Budget("bytes_per_hour", 1_000, 750), Budget("bytes_per_hour", 90, 9, "<b>.*"))
    document = document_of(Service(work=Work(quiet=True, limited=1, capped=2, budgets=budgets)))
    assert document["limits"] == {
        "quiet": True, "held_back_tables": 3, "budgets": [
            {"tables": "*", "limit": "bytes_per_hour", "cap": 1_000, "left": 250},
            {"tables": "<b>.*", "limit": "bytes_per_hour", "cap": 90, "left": 81},
        ],
    }  # fmt: skip
    page = status_page(document)
    assert "Quiet hours: no run starts." in page
    assert "Left of the limits of the hour: bytes_per_hour: 250 of 1,000, " in page
    assert "bytes_per_hour of &lt;b&gt;.*: 81 of 90; 3 due tables wait." in page
    assert "<p>Limits of the hour: 2 due tables wait.</p>" in status_page(document_of(Service(work=Work(capped=2))))
    nothing = status_page(document_of())
    assert "Quiet hours" not in nothing
    assert "due tables wait" not in nothing


def test_slots_and_hosts_are_shown() -> None:
    use = SlotUse(slots=3, in_use=2, waiting_runs=1, cores=4, executors=4, host_tasks={"b": 0, "a": 2})
    document = document_of(Service(rewriting=use))
    assert document["slots"]["hosts"] == [{"host": "a", "tasks": 2}, {"host": "b", "tasks": 0}]
    page = status_page(document)
    assert "Rewrite slots: 2 of 3 in use, 1 runs wait; 4 cores of 4 executors." in page
    assert "Running tasks" in page


def test_page_says_what_is_not_well():
    health = Health(live=True, ready=False, details={"<catalog>": "does & not answer"})
    page = status_page(document_of(Service(health=health)))
    assert "The service is not ready." in page
    assert "<li>&lt;catalog&gt;: does &amp; not answer</li>" in page


@pytest.mark.parametrize(
    ("counting", "text"),
    [
        (Counting(7, 1200), "counting: 7 of 1,200 tables"),
        (Counting(1200, 1200), None),
        (Counting(0, 0), "The catalogs have no table to rewrite or observe"),
        (None, "No catalog has been listed yet."),
    ],
)
def test_page_and_twin_show_how_far_the_first_count_is(counting, text):
    document = document_of(Service(counting=counting))
    page = status_page(document)
    shown = ("counting: ", "No catalog has been listed", "The catalogs have no table")
    assert [words in page for words in shown] == [text is not None and text.startswith(words) for words in shown]
    assert text is None or text in page
    expected = None if counting is None else {"counted": counting.counted, "found": counting.found}
    assert document["counting"] == expected


def test_page_escapes_hostile_names(serve):
    board = hostile_board()
    board.mark_stale(board.tables()[0].table, "<img src=x onerror=alert(2)>")
    name = TableName("<img>", (HOSTILE,), "t")
    by = replace(rewritten("<img>", "x"), table=name)
    done = (replace(PLANNED, run_id="r", table=name), by, replace(COMMITTED, table=name))
    recent = worked(*done, replace(FAILED, table=name, message="<img src=x>"), replace(PLANNED, table=name))
    status, _, body = ask(serve(board=board, recent=recent), "/")
    page = body.decode("utf-8", "replace")
    assert status == 200
    assert "img" not in set(tags_of(page))
    assert list(tags_of(page)).count("script") == 1
    assert any("<script>alert(1)</script>" in text for row in rows_of(page) for text in row), "shown as text"


def test_page_loads_nothing_from_elsewhere(serve):
    _, headers, body = ask(serve(), "/")
    assert not {"link", "img", "iframe"} & set(tags_of(body.decode()))
    assert b"http" not in body
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    (script,) = re.findall(r"<script>(.*?)</script>", body.decode(), re.DOTALL)
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy


def test_page_of_many_tables_shows_the_worst():
    board = board_of(*(debt(f"t{number}", partition({}, small(number))) for number in range(MOST_TABLES + 50)))
    page = status_page(document_of(board=board))
    assert len(rows_of(page)) == MOST_TABLES + 1
    assert rows_of(page)[1][0] == "lake.db.t249"
    assert "Tables (200 of 250, most small files first)" in page


def test_the_page_shows_what_is_paused_and_no_markup_of_its_reason():
    board = board_of(*(debt(name, partition({"a": 1}, small(3)), acted_on=True) for name in ("held", "free")))
    pauses = (Pause("db.he*", 0.0, 2_000_000_000.0, HOSTILE.replace("\ud800", "")), Pause("db.typo", 0.0))
    document = document_of(Service(current_pauses=pauses), board)
    page = status_page(document)
    assert "db.he* (1 table), until 2033-05-18 03:33:20Z" in page
    assert "db.typo (no table that is known), until `firnline resume`" in page
    assert "<script>alert" not in page
    assert document["pauses"][0]["glob"] == "db.he*"
    assert {one["table"]: one["paused"] for one in document["tables"]} == {"lake.db.free": False, "lake.db.held": True}


def test_what_waits_is_shown_with_its_reason_and_its_end():
    holds = Holds(lambda: 1000.0)
    holds.hold(Key(What.TABLE, ORDERS), "<a lock> is held", until=1030.0)
    holds.hold(Key(What.FILES, ORDERS, frozenset({"a", "b"})), "503", until=1010.0)
    document = document_of(board=DebtBoard(holds))
    assert [(one["what"], one["part"], one["until"]) for one in document["waits"]] == [
        ("files", "2 data files, e.g. a", 1010.0), ("table", "", 1030.0),
    ]  # fmt: skip
    page = status_page(document)
    assert f"<td>table {ORDERS}</td>" in page
    assert "&lt;a lock&gt; is held" in page


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self._in_cell = False

    def handle_starttag(self, tag, attrs):  # noqa: ARG002 - the base class passes it
        self.tags.append(tag)
        self._in_cell = self._in_cell or tag in {"td", "th"}
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self._in_cell = self._in_cell and tag not in {"td", "th"}

    def handle_data(self, data):
        if self._in_cell:
            self.rows[-1][-1] += data


def read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader


def rows_of(page: str) -> list[list[str]]:
    return read(page).rows


def tags_of(page: str) -> list[str]:
    return read(page).tags
