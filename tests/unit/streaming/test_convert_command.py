"""`firnline convert`: its document has one shape, and each attempt asks whether others work on the table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from compactor.errors import InputError, ReplanError
from compactor.iceberg.other_compactors import FLINK_CONVERTER
from compactor.iceberg.tables import Catalogs, TableView
from compactor.runs.convert import ConversionResult
from compactor.settings.tree import load_settings
from streaming.cli import main
from streaming.commands.convert import _check
from streaming.commands.progress import ATTEMPTS, in_attempts
from tests.properties.table_history import NAME, TableHistory


def command_for(folder: Path) -> list[str]:
    settings = folder / "settings.json"
    lake = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    settings.write_text(json.dumps({"catalogs": {"lake": lake}}))
    return ["-c", str(settings), "convert", "db.t"]


def test_the_document_has_one_shape(tmp_path: Path) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [10])
    head = history.table.current_snapshot()
    assert head is not None
    command = command_for(tmp_path)
    found = json.loads(CliRunner().invoke(main, [*command, "--output", "json"]).stdout)
    assert found.keys() == {"version", *(field.name for field in fields(ConversionResult))}
    assert (found["snapshot_before"], found["snapshot_after"], found["deletes_left"]) == (head.snapshot_id, None, 0)
    assert CliRunner().invoke(main, command).stdout == "lake.db.t: no equality deletes\n"
    planned = json.loads(CliRunner().invoke(main, [*command, "--dry-run", "--output", "json"]).stdout)
    assert planned["equality_delete_files"] == 0


@pytest.fixture
def history(tmp_path: Path) -> TableHistory:
    """A table with an equality delete."""
    made = TableHistory(tmp_path, 2)
    made.append_unreal("a", [10])
    made.append_unreal("a", [10], by_value=True)
    return made


def test_attempts_begin_with_a_new_look_and_the_last_one_fails(tmp_path: Path, history: TableHistory) -> None:
    catalogs = Catalogs(load_settings(Path(command_for(tmp_path)[1])).catalogs)
    seen = []

    def attempt(view: TableView) -> None:
        seen.append(view.metadata.current_snapshot_id)
        history.append_unreal("a", [10])
        raise ReplanError("a data file was added, to which older deletes apply")

    with pytest.raises(ReplanError):
        in_attempts(attempt, catalogs.load(NAME), catalogs)
    assert len({*seen}) == ATTEMPTS


def history_is_cut(history: TableHistory) -> None:
    """Rewrites of another compactor may have expired."""
    for _ in range(2):
        history.append_unreal("a", [10])
    *older, _head = (each.snapshot_id for each in history.view().metadata.snapshots)
    history.table.maintenance.expire_snapshots().by_ids(older).commit()


def flink_converts_once(history: TableHistory) -> None:
    history.table.append(history.rows(["a"]), snapshot_properties={FLINK_CONVERTER: "7"})


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (history_is_cut, "does not list all snapshots of the last day"),
        (flink_converts_once, "stop that job and give --force"),
        (lambda history: history.set_properties({"firnline.enabled": "false"}), "unset it first"),
    ],
)
def test_who_gives_force_knows_what_others_did_until_then_and_not_later(
    tmp_path: Path, history: TableHistory, happens: Callable[[TableHistory], None], why: str
) -> None:
    """Another compactor may commit its rewrite in several parts, and each would bring deleted rows back."""
    settings = load_settings(Path(command_for(tmp_path)[1]))
    before = history.view()
    _check(settings, None, before)
    happens(history)
    for stopped in (None, before):
        with pytest.raises(InputError, match=why):
            _check(settings, stopped, history.view())
    if "unset" not in why:
        _check(settings, history.view(), history.view())
