"""The history as a real table: made, appended to, asked by SQL, compacted; and one run id wherever a run shows."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from compactor.errors import InputError, RetryError
from compactor.events import Event
from compactor.history.appender import Batches, History
from compactor.history.decisions import Decision
from compactor.history.table import BATCH_ID, HistoryQuery, HistoryTable
from compactor.iceberg.tables import Catalogs
from compactor.table_names import TableName
from streaming.commands.history import history as history_command
from streaming.commands.history import show
from tests.conftest import Lake
from tests.integration.service_process import ROWS, Site, document, firnline
from tests.integration.table_kit import planned, run

PAGE = Path(__file__).parents[2] / "docs" / "history.md"
NOON = 1_768_996_800.0  # 2026-01-21, 12:00 UTC
DAY = 86_400.0
EVENTS = TableName("lake", ("db",), "events")
NAME = TableName("lake", ("ops", "firn"), "history")


def done(at: float = NOON, partition: str = "day=1", **values: Any) -> Decision:
    made = Decision(
        at, EVENTS, "done", "due", "6 small files", "r1", 0, partition, '{"day": 1}', files_in=6, seconds=0.5
    )
    return replace(made, **values)


@pytest.fixture
def catalogs(tmp_path: Path) -> Catalogs:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    return Catalogs({"lake": properties})


@pytest.fixture
def kept(catalogs: Catalogs) -> HistoryTable:
    return HistoryTable(catalogs, NAME, "1.2.3")


def asked(kept: HistoryTable, **query: Any) -> list[dict[str, Any]]:
    return kept.read(HistoryQuery(**{"table": EVENTS, "since": NOON - 100 * DAY, **query}))


def test_what_is_appended_is_read_newest_first(kept: HistoryTable) -> None:
    kept.append([done(NOON - DAY, why="half \ud800"), done(NOON, why="è", rows_out=2**40)], "one")
    kept.append([done(NOON - 3600, decision="skipped", reason="switched_off", partition=None, spec_id=None)], "two")
    newest, whole, oldest = asked(kept)
    assert (newest["why"], newest["rows_out"], newest["partition_json"]) == ("è", 2**40, '{"day": 1}')
    assert (newest["table_name"], newest["firnline_version"]) == ("lake.db.events", "1.2.3")
    assert newest["decided_at"].timestamp() == NOON
    assert (whole["decision"], whole["partition"], whole["files_out"]) == ("skipped", None, None)
    assert (oldest["decided_at"].timestamp(), oldest["why"]) == (NOON - DAY, "half \\ud800")


def test_a_query_narrows_by_table_time_partition_and_decision(kept: HistoryTable) -> None:
    rows = [
        done(NOON, partition="day=1, b=3"),
        done(NOON - 10 * DAY, partition="day=2, b=3"),
        done(NOON - 20 * DAY, partition="day=1, b=4", decision="dropped"),
        done(NOON - 30 * DAY, partition=None, decision="skipped"),
        done(NOON, table=replace(EVENTS, name="others")),
    ]
    kept.append(rows, "one")

    def days(**query: Any) -> list[float]:
        return [(NOON - row["decided_at"].timestamp()) / DAY for row in asked(kept, **query)]

    assert days() == [0, 10, 20, 30]
    assert days(since=NOON - 20 * DAY, until=NOON) == [10, 20]
    assert days(partition="day=1") == [0, 20, 30]  # what was decided of the whole table holds for each partition
    assert days(decision="dropped") == [20]
    assert days(limit=2) == [0, 10]
    assert days(since=NOON + 1) == []


def test_time_and_table_are_pushed_down_to_files(kept: HistoryTable, catalogs: Catalogs) -> None:
    for number in range(4):
        kept.append(
            [done(NOON - number * DAY), done(NOON - number * DAY, table=replace(EVENTS, name="b"))], str(number)
        )
    kept.append([done(NOON, table=replace(EVENTS, name="z"))], "z")
    table = catalogs.catalog("lake").load_table(NAME.identifier)

    def files(**query: Any) -> int:
        return len(list(table.scan(HistoryQuery(**{"table": EVENTS, **query}).row_filter).plan_files()))

    assert len(list(table.scan().plan_files())) == 5
    assert files(since=NOON - 100 * DAY) == 4
    assert files(since=NOON - 2 * DAY, until=NOON - DAY) == 1
    assert files(since=NOON - 100 * DAY, decision="skipped") == 0


def test_a_batch_that_has_landed_is_not_appended_again(kept: HistoryTable, catalogs: Catalogs) -> None:
    for _ in range(2):
        kept.append([done()], "one")
    assert len(asked(kept)) == 1
    table = catalogs.catalog("lake").load_table(NAME.identifier)
    assert [snapshot.summary.additional_properties[BATCH_ID] for snapshot in table.snapshots()] == ["one"]


def test_a_history_that_is_dropped_meanwhile_is_made_again(kept: HistoryTable, catalogs: Catalogs) -> None:
    kept.append([done()], "one")
    catalogs.catalog("lake").drop_table(NAME.identifier)
    with pytest.raises(InputError, match="does not exist yet"):
        asked(kept)
    kept.append([done()], "two")
    assert len(asked(kept)) == 1


def test_a_table_of_others_is_refused_and_a_silent_catalog_is_not_the_users_fault(kept: HistoryTable) -> None:
    catalog = kept._catalogs.catalog("lake")
    catalog.create_namespace(NAME.namespace)
    catalog.create_table(NAME.identifier, ROWS)
    with pytest.raises(InputError, match=r"history\.table: .* is not a history"):
        kept.ensure()
    deaf = HistoryTable(Catalogs({"lake": {"type": "rest", "uri": "http://127.0.0.1:1"}}), NAME, "1")
    for call in (deaf.ensure, lambda: deaf.append([done()], "x"), lambda: asked(deaf)):
        with pytest.raises(RetryError):
            call()


# --- with Spark -------------------------------------------------------------------------------------------------------


@pytest.fixture
def lake_history(lake: Lake, table_name: str) -> HistoryTable:
    return HistoryTable(lake.catalogs, lake.name(table_name), "1.2.3")


@pytest.mark.spark
def test_the_documented_sql_answers_why(lake: Lake, lake_history: HistoryTable) -> None:
    now = float(lake.sql("SELECT unix_timestamp()")[0][0])
    partition = "day=2024-01-15, id_bucket=3"
    rows = [
        done(now - 30 * DAY, partition=partition, engine="splice", bytes_in=600),
        done(now - 30 * DAY, partition="day=2024-01-16, id_bucket=3"),
        done(now - 29.5 * DAY, partition=None, decision="skipped", reason="switched_off"),
        done(now - DAY, partition=partition, engine="splice", bytes_in=60),
    ]
    lake_history.append(rows, "one")
    why, cost = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    table = f"lake.{lake_history.name.short}"
    found = lake.sql(why.replace("lake.ops.firnline_history", table))
    assert [(row.decision, row.why, row.files_in) for row in found] == [
        ("skipped", "6 small files", 6),
        ("done", "6 small files", 6),
    ]
    (spent,) = [row for row in lake.sql(cost.replace("lake.ops.firnline_history", table)) if row.engine == "splice"]
    assert (spent.table_name, spent.groups, spent.bytes) == ("lake.db.events", 1, 60)


@pytest.mark.spark
def test_the_history_can_be_compacted_and_does_not_record_that(lake: Lake, lake_history: HistoryTable) -> None:
    for number in range(6):
        lake_history.append([done(NOON, why=str(number))], str(number))
    table = lake_history.name.short
    before = lake.rows(table)
    told: list[Event] = []
    history = History(lake_history, Batches(300.0), told.append)
    history.start()
    result = run(lake, planned(lake, table), listener=history)
    history.stop(60)
    assert len(result.groups) == 1
    assert len(lake.live_files(table)) == 1
    assert lake.rows(table) == before
    assert told == []
    lake_history.append([done(NOON, why="after")], "after")
    assert len(asked(lake_history)) == 7


@pytest.mark.slow
@pytest.mark.spark
def test_one_run_id_leads_from_the_log_to_the_snapshot_and_the_history(tmp_path: Path) -> None:
    place = Site(tmp_path, "127.0.0.1:1", {"history": {"table": "ops.history"}})
    place.append("t", commits=6, parts=2)
    done = firnline(place.config, "compact", "db.t", "--output", "json")
    run_id = document(done)["run_id"]

    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    rewritten = [line for line in lines if line["message"] == "rewritten"]
    assert {(line["run_id"], line["table"]) for line in rewritten} == {(run_id, "lake.db.t")}
    assert {line["partition"] for line in rewritten} == {"part=p00", "part=p01"}
    assert all(line["reason"] and min(line["bytes_in"], line["bytes_out"], line["seconds"]) > 0 for line in rewritten)
    assert [line["run_id"] for line in lines if line["message"] == "committed"] == [run_id]

    snapshot = place.view("t").snapshot
    assert snapshot is not None
    assert snapshot.summary.additional_properties["firnline.run-id"] == run_id

    rows = document(firnline(place.config, "history", "db.t", "--since", "1h", "--output", "json"))["decisions"]
    assert {(row["run_id"], row["decision"], row["committed_snapshot_id"]) for row in rows} == {
        (run_id, "done", snapshot.snapshot_id)
    }
    assert sorted(row["partition"] for row in rows) == ["part=p00", "part=p01"]
    assert {row["bytes_in"] for row in rows} == {line["bytes_in"] for line in rewritten}


def test_a_history_that_is_not_kept_or_cannot_be_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Site(tmp_path, "127.0.0.1:1")
    place.append("t", commits=5)
    with pytest.raises(InputError, match=r"history\.table is not set"):
        history_command.main(["db.t"], obj=place.config, standalone_mode=False)
    monkeypatch.setenv("FIRNLINE_HISTORY__TABLE", "ops.h")
    with pytest.raises(InputError, match="does not exist yet"):
        history_command.main(["db.t"], obj=place.config, standalone_mode=False)
    refused = firnline(place.config, "compact", "db.t", FIRNLINE_HISTORY__TABLE="db.t")
    assert (refused.returncode, "is not a history" in refused.stderr) == (2, True), refused.stderr
    assert "replace" not in place.operations("t")


def test_people_see_what_was_decided_and_why(kept: HistoryTable) -> None:
    kept.append([done(NOON, files_out=1, bytes_in=6000, engine="splice")], "one")
    kept.append([done(NOON - DAY, decision="skipped", reason="switched_off", partition=None, files_in=None)], "two")

    def shown(**query: Any) -> str:
        screen = io.StringIO()
        show(Console(file=screen, width=200), EVENTS, asked(kept, **query))
        return screen.getvalue()

    assert re.search(r"2026-01-21 12:00:00 .*day=1 .*done: due .*6 small files .*6 -> 1 .*6.0 kB .*splice", shown())
    assert "skipped: switched_off" in shown(partition="day=1")
    assert "no decisions in this time" in shown(since=NOON + 1)
