"""`firnline convert` of a table without equality deletes: the document has the shape that every conversion has."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from click.testing import CliRunner

from compactor.runs.convert import ConversionResult
from streaming.cli import main
from tests.properties.table_history import TableHistory


def test_the_document_has_one_shape(tmp_path: Path) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [10])
    head = history.table.current_snapshot()
    assert head is not None
    settings = tmp_path / "settings.json"
    lake = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    settings.write_text(json.dumps({"catalogs": {"lake": lake}}))
    command = ["-c", str(settings), "convert", "db.t"]
    found = json.loads(CliRunner().invoke(main, [*command, "--output", "json"]).stdout)
    assert found.keys() == {"version", *(field.name for field in fields(ConversionResult))}
    assert (found["snapshot_before"], found["snapshot_after"], found["deletes_left"]) == (head.snapshot_id, None, 0)
    assert CliRunner().invoke(main, command).stdout == "lake.db.t: no equality deletes\n"
    planned = json.loads(CliRunner().invoke(main, [*command, "--dry-run", "--output", "json"]).stdout)
    assert planned["equality_delete_files"] == 0
