"""`firnline debt --why` tells that a branch is to be published before main is rewritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from streaming.cli import main
from streaming.ledger.watched_tables import NO_TABLES
from tests.properties.table_history import TableHistory


@pytest.mark.parametrize("branch", [False, True])
@pytest.mark.parametrize("why", [False, True])
def test_a_branch_that_is_to_be_published_is_named(tmp_path: Path, branch: bool, why: bool) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [10])
    if branch:
        head = history.table.current_snapshot()
        assert head is not None
        history.table.manage_snapshots().create_branch(head.snapshot_id, "audit").commit()
        history.append_unreal("a", [10], branch="audit")
    settings = tmp_path / "settings.json"
    lake = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    settings.write_text(json.dumps({"catalogs": {"lake": lake}}))
    command = ["-c", str(settings), "debt", "db.t", *(["--why"] if why else [])]
    told = json.loads(CliRunner().invoke(main, [*command, "--output", "json"]).stdout)["tables"][0]["unpublished"]
    shown = " ".join(CliRunner().invoke(main, command).stdout.split())
    if branch and why:
        assert told.startswith("lake.db.t: branch audit is not published to main;")
        assert "main is not rewritten now: lake.db.t: branch audit is not published to main;" in shown
    else:
        assert told is None
        assert "not rewritten now" not in shown


@pytest.mark.parametrize("command", ["debt", "assess"])
def test_an_empty_list_of_tables_is_no_good_news(tmp_path: Path, command: str) -> None:
    TableHistory(tmp_path, 2)
    settings = tmp_path / "settings.json"
    lake = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    settings.write_text(json.dumps({"catalogs": {"lake": lake}, "tables": {"exclude": ["*"]}}))
    shown = CliRunner().invoke(main, ["-c", str(settings), command])
    assert (shown.exit_code, shown.stdout) == (0, f"{NO_TABLES}\n")
    found = json.loads(CliRunner().invoke(main, ["-c", str(settings), command, "--output", "json"]).stdout)
    assert (found["tables"], found["errors"]) == ([], [])
