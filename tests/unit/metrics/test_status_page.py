"""The page of tables and runs, and its JSON twin: what they show, and that no name becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from compactor.debt.board import DebtBoard, PartitionCounts, PartitionDebt, TableDebt
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
from metrics.debt_collector import DebtCollector
from metrics.recent_work import Finished, RecentWork, Running
from metrics.status_page import MOST_TABLES, SCRIPT, Counting, Health, status_document, status_page
from tests.unit.metrics.http_support import WELL, ask
from tests.unit.metrics.test_metrics_debt_collector import HOSTILE, debt, hostile_board, partition, small

pytestmark = pytest.mark.usefixtures("info_logged")


def tables_of(board):
    return DebtCollector(board, Work, lambda: True, version="1").summaries


ORDERS = TableName("lake", ("db",), "orders")
DONE = Finished("r", ORDERS, 86_400.0, 777, 40, 2, 5_000, 5_432, 0.6, {"splice: same_schema": 3, "encode: tiny": 1})
FAILED = Finished("q", ORDERS, 0.0, message="commit: <access> denied")
UNDER_WAY = Running("p", ORDERS, 4, 112, 3_000_000, 0.0)


def test_page_lists_tables_readiness_and_runs(serve):
    board = DebtBoard()
    counts = PartitionCounts(12_345, 678, 12_345_000, 9, 0, 1, 0)
    board.put(debt("orders", partition({}, counts, due=True), stale="not found"))
    server = serve(tables=tables_of(board), running=lambda: [UNDER_WAY], finished=lambda: [DONE, FAILED])
    status, headers, body = ask(server, "/")
    page = body.decode()
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    _, running, tables, orders, heads, done, failed = rows_of(page)
    assert running[:4] == ["lake.db.orders", "4", "112", "3.0 MB"]
    assert tables == ["Table", "Files", "Small files", "Mean size", "Due partitions", "Manifests", "Waiting", ""]
    assert [text.strip() for text in orders] == ["lake.db.orders", "12,345", "678", "1.0 kB", "1", "", "", "not found"]
    assert heads == ["At", "Table", "Done", "Bytes", "Took", "By", "Snapshot"]
    by = "encode: tiny (1), splice: same_schema (3)"
    assert done == ["1970-01-02 00:00:00Z", "lake.db.orders", "40 → 2 files", "5.0 kB", "0.6 s", by, "777"]
    assert failed[2] == "commit: <access> denied"
    assert "The service is ready." in page
    assert "prefers-color-scheme" in page


def test_the_json_twin_holds_what_the_page_shows(serve):
    board = DebtBoard()
    board.put(debt("orders", partition({}, PartitionCounts(10, 4, 1_000, 400, 3, 1, 0), due=True), acted_on=True))
    server = serve(tables=tables_of(board), running=lambda: [UNDER_WAY], finished=lambda: [DONE, FAILED])
    status, headers, body = ask(server, "/api/v1/status")
    document = json.loads(body)
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert document["service"] == {"live": True, "ready": True, "active": True, "deployment": None, "details": {}}
    assert document["fleet"] | {"tables": 1, "rewritten": 1, "due_tables": 1, "data_files": 10} == document["fleet"]
    (table,) = document["tables"]
    assert (table["table"], table["small_files"], table["mean_file_bytes"]) == ("lake.db.orders", 4, 100)
    assert [run["failed"] for run in document["recent"]] == [None, "commit: <access> denied"]
    assert document["recent"][0]["engines"] == {"splice: same_schema": 3, "encode: tiny": 1}
    assert document["running"][0]["files"] == 112


def test_a_run_shows_what_is_done_of_all_and_its_estimated_end():
    """A quarter of the bytes took 50 s, so that the run takes 200 s; 20 s passed since."""
    moments = iter([1_000.0, 1_030.0, 1_050.0, 1_060.0])
    work = RecentWork(lambda: next(moments))
    work(RunPlanned(run_id="p", table=ORDERS, groups=4, files=112, bytes=4_000_000, seconds=0.5))
    assert status_document(WELL, (), work.running, (), 1_020.0)["running"][0]["seconds_left"] is None
    for done in (1, 2):
        work(RunMoved("p", ORDERS, tasks_done=done, tasks=7, bytes_done=500_000 * done, bytes=4_000_000))
    work(RunMoved("an older run", ORDERS, tasks_done=6, tasks=7, bytes_done=1, bytes=2))
    document = status_document(WELL, (), work.running, (), 1_070.0)
    (run,) = document["running"]
    assert (run["tasks_done"], run["tasks"], run["bytes_done"], run["bytes"]) == (2, 7, 1_000_000, 4_000_000)
    assert (run["seconds_left"], run["estimated_end"]) == (130.0, 1_200)
    row = rows_of(status_page(document))[1]
    assert row == ["lake.db.orders", "4", "112", "1.0 MB of 4.0 MB", "2 of 7", "70.0 s", "00:20:00Z (in 2 min)"]
    overdue = status_document(WELL, (), work.running, (), 9_000.0)["running"][0]
    assert (overdue["seconds_left"], overdue["estimated_end"]) == (0.0, 9_000)


def test_a_run_whose_commit_waits_for_a_writer_says_so():
    work = RecentWork(lambda: 1_000.0)
    work(RunPlanned(run_id="p", table=ORDERS, groups=4, files=112, bytes=4_000_000, seconds=0.5))
    work(CommitWaits("p", ORDERS, 60.0))
    work(CommitHeld("an older run", ORDERS, 3.0, after_writer=True))
    document = status_document(WELL, (), work.running, (), 1_020.0)
    assert document["running"][0]["waits_for_writer_until"] == 1_060
    assert rows_of(status_page(document))[1][-1] == "waits for a writer's commit, until 00:17:40Z at most"
    work(CommitHeld("p", ORDERS, 30.0, after_writer=True))
    assert status_document(WELL, (), work.running, (), 1_030.0)["running"][0]["waits_for_writer_until"] is None


def test_quiet_hours_and_what_is_left_of_the_limits_are_shown(serve):
    work = Work(
        quiet=True, limited=3, budgets=(Budget("bytes_per_hour", 1_000, 750), Budget("bytes_per_hour", 90, 9, "<b>.*"))
    )
    server = serve(work=lambda: work)
    assert json.loads(ask(server, "/api/v1/status")[2])["limits"] == {
        "quiet": True, "held_back_tables": 3, "budgets": [
            {"tables": "*", "limit": "bytes_per_hour", "cap": 1_000, "left": 250},
            {"tables": "<b>.*", "limit": "bytes_per_hour", "cap": 90, "left": 81},
        ],
    }  # fmt: skip
    page = ask(server, "/")[2].decode()
    assert "Quiet hours: no run starts." in page
    assert "Left of the limits of the hour: bytes_per_hour: 250 of 1,000, " in page
    assert "bytes_per_hour of &lt;b&gt;.*: 81 of 90; 3 due tables wait." in page
    assert "Quiet hours" not in status_page(status_document(WELL, (), (), (), work=Work()))


def test_tables_that_have_made_their_commits_of_the_hour_wait_for_the_limits_too():
    document = status_document(WELL, (), (), (), work=Work(capped=2))
    assert document["limits"]["held_back_tables"] == 2
    assert "<p>Limits of the hour: 2 due tables wait.</p>" in status_page(document)
    both = Work(limited=1, capped=2, budgets=(Budget("bytes_per_hour", 1_000, 750),))
    page = status_page(status_document(WELL, (), (), (), work=both))
    assert "Left of the limits of the hour: bytes_per_hour: 250 of 1,000; 3 due tables wait." in page
    assert "due tables wait" not in status_page(status_document(WELL, (), (), (), work=Work()))


def test_recent_work_is_kept_from_events_and_bounded():
    work = RecentWork(lambda: 7.0)
    work(RunPlanned(run_id="r", table=ORDERS, groups=2, files=30, bytes=4_000, seconds=0.5))
    assert work.running == (Running("r", ORDERS, 2, 30, 4_000, 7.0),)
    for engine in ("splice", "splice", "encode"):
        work(
            GroupRewritten(
                run_id="r",
                table=ORDERS,
                key=PartitionKey(0, "[]"),
                engine=engine,
                reason="why",
                files_in=2,
                files_out=1,
                bytes_in=9,
                bytes_out=9,
                rows_in=1,
                rows_deleted=0,
                rows_out=1,
                seconds=0.1,
                bytes_decoded=0,
            )
        )
    work(
        RunCommitted(
            run_id="r",
            table=ORDERS,
            snapshot_id=777,
            groups=1,
            files_in=40,
            files_out=2,
            bytes_in=1_000,
            bytes_out=5_432,
            plan_seconds=0.1,
            rewrite_seconds=0.2,
            commit_seconds=0.3,
        )
    )
    assert work.running == ()
    assert work.finished[0].engines == {"splice: why": 2, "encode: why": 1}
    work(RunPlanned(run_id="q", table=ORDERS, groups=2, files=30, bytes=4_000, seconds=0.5))
    work(
        RunFailed(
            run_id="q",
            table=ORDERS,
            stage="commit",
            reason="conflict",
            reaction="replan",
            message="somebody was faster",
        )
    )
    assert work.running == ()
    assert work.finished[0].message == "commit: somebody was faster"
    for number in range(200):
        work(
            RunCommitted(
                run_id=str(number),
                table=ORDERS,
                snapshot_id=777,
                groups=1,
                files_in=40,
                files_out=2,
                bytes_in=1_000,
                bytes_out=5_432,
                plan_seconds=0.1,
                rewrite_seconds=0.2,
                commit_seconds=0.3,
            )
        )
    assert len(work.finished) == 50
    assert work.finished[0].run_id == "199"


def test_a_run_that_found_nothing_left_to_do_is_not_shown_as_running():
    work = RecentWork(lambda: 7.0)
    work(RunPlanned(run_id="r1", table=ORDERS, groups=0, files=0, bytes=0, seconds=0.1))
    assert len(work.running) == 1
    work(RunSkipped(ORDERS, "nothing_due"))
    assert work.running == ()


def test_page_says_what_is_not_well(serve):
    health = Health(live=True, ready=False, details={"<catalog>": "does & not answer"})
    page = ask(serve(health=lambda: health), "/")[2].decode()
    assert "The service is not ready." in page
    assert "<li>&lt;catalog&gt;: does &amp; not answer</li>" in page
    assert "No catalog has been listed yet." in page


@pytest.mark.parametrize(
    ("counting", "text"),
    [
        (Counting(0, 1200), "counting: 0 of 1,200 tables"),
        (Counting(7, 1200), "counting: 7 of 1,200 tables"),
        (Counting(1200, 1200), None),
        (Counting(0, 0), "The catalogs have no table to rewrite or observe"),
        (None, "No catalog has been listed yet."),
    ],
)
def test_page_and_twin_show_how_far_the_first_count_is(serve, counting, text):
    board = DebtBoard()
    if counting is not None and counting.counted:
        board.put(TableDebt(ORDERS))
    server = serve(tables=tables_of(board), counting=lambda: counting)
    page = ask(server, "/")[2].decode()
    shown = ("counting: ", "No catalog has been listed", "The catalogs have no table")
    assert [words in page for words in shown] == [text is not None and text.startswith(words) for words in shown]
    assert text is None or text in page
    expected = None if counting is None else {"counted": counting.counted, "found": counting.found}
    assert json.loads(ask(server, "/api/v1/status")[2])["counting"] == expected


def test_page_escapes_hostile_names(serve):
    board = hostile_board()
    board.mark_stale(board.tables()[0].table, "<img src=x onerror=alert(2)>")
    name = TableName("<img>", (HOSTILE,), "t")
    done = Finished("r", name, 0.0, message="<img src=x>", engines={"<img>: x": 1})
    site = {"running": lambda: [Running("r", name, 1, 1, 1, 0.0)], "finished": lambda: [done]}
    status, _, body = ask(serve(tables=tables_of(board), **site), "/")
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
    assert script == SCRIPT
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy


def test_page_of_many_tables_shows_the_worst(serve):
    board = DebtBoard()
    for number in range(MOST_TABLES + 50):
        key = PartitionKey(0, "[]")
        table = TableName("lake", ("db",), f"t{number}")
        board.put(TableDebt(table, 1, {key: PartitionDebt(key, {}, None, small(number), due=False, why="")}))
    page = ask(serve(tables=tables_of(board)), "/")[2].decode()
    assert len(rows_of(page)) == MOST_TABLES + 1
    assert rows_of(page)[1][0] == "lake.db.t249"
    assert "Tables (200 of 250, most small files first)" in page


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self._in_cell = False

    def handle_starttag(self, tag, attrs):  # noqa: ARG002 - the base class passes it
        self.tags.append(tag)
        self._in_cell = tag in {"td", "th"}
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


def test_the_page_shows_what_is_paused_and_no_markup_of_its_reason(serve):
    board = DebtBoard()
    for name in ("held", "free"):
        board.put(debt(name, partition({"a": 1}, small(3)), acted_on=True))
    pauses = (Pause("db.he*", 0.0, 2_000_000_000.0, HOSTILE.replace("\ud800", "")), Pause("db.typo", 0.0))
    server = serve(tables=tables_of(board), pauses=lambda: pauses)
    page = ask(server, "/")[2].decode()
    assert "db.he* (1 table), until 2033-05-18 03:33:20Z" in page
    assert "db.typo (no table that is known), until `firnline resume`" in page
    assert "<script>alert" not in page
    document = json.loads(ask(server, "/api/v1/status")[2])
    assert document["pauses"][0]["glob"] == "db.he*"
    assert {one["table"]: one["paused"] for one in document["tables"]} == {"lake.db.free": False, "lake.db.held": True}


def test_what_waits_is_shown_with_its_reason_and_its_end():
    holds = Holds(lambda: 1000.0)
    holds.hold(Key(What.TABLE, ORDERS), "<a lock> is held", until=1030.0)
    holds.hold(Key(What.FILES, ORDERS, frozenset({"a", "b"})), "503", until=1010.0)
    document = status_document(WELL, (), (), (), waits=holds.waits)
    assert [(one["what"], one["part"], one["until"]) for one in document["waits"]] == [
        ("files", "2 data files, e.g. a", 1010.0), ("table", "", 1030.0),
    ]  # fmt: skip
    page = status_page(document)
    assert f"<td>table {ORDERS}</td>" in page
    assert "&lt;a lock&gt; is held" in page
