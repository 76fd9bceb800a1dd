"""`firnline manifests`: what it says where there is nothing to merge, and when it may not merge."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from streaming.cli import main
from tests.properties.table_history import TableHistory


def asked(folder: Path, *more: str) -> Result:
    settings = folder / "settings.json"
    lake = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    settings.write_text(json.dumps({"catalogs": {"lake": lake}}))
    return CliRunner().invoke(main, ["-c", str(settings), "manifests", "db.t", *more])


def history_of(folder: Path, commits: int) -> TableHistory:
    history = TableHistory(folder, 2)
    for commit in range(commits):
        history.append_unreal("a", [10 + commit])
    return history


def test_where_no_fewer_would_do_nothing_starts(tmp_path: Path) -> None:
    history_of(tmp_path, 1)
    assert asked(tmp_path).stdout == "lake.db.t: 1 manifests, no fewer would do\n"
    document = json.loads(asked(tmp_path, "--output", "json").stdout)
    assert document == {
        "version": 1, "run_id": None, "table": "lake.db.t", "manifests_before": 1, "manifests_after": 1, "seconds": 0.0,
    }  # fmt: skip


def test_two_manifests_are_worth_it_for_a_person(tmp_path: Path) -> None:
    history = history_of(tmp_path, 3)
    planned = json.loads(asked(tmp_path, "--dry-run", "--output", "json").stdout)
    size = sum(each.manifest_length for each in history.view().manifests())
    assert planned == {
        "version": 1, "table": "lake.db.t", "manifests": 3, "delete_manifests": 0, "bytes": size,
        "specs_to_merge": [0], "why": "3 manifests, 1 would be enough",
    }  # fmt: skip
    assert asked(tmp_path, "--dry-run").stdout.endswith("3 manifests, 1 would be enough\n")


def test_a_table_that_is_switched_off_is_left_alone(tmp_path: Path) -> None:
    history = history_of(tmp_path, 3)
    with history.table.transaction() as transaction:
        transaction.set_properties({"firnline.enabled": "false"})
    refused = asked(tmp_path)
    assert refused.exit_code == 2
    assert "firnline.enabled=false; unset it first" in refused.stderr
