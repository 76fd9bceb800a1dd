"""`firnline convert`: its document has one shape, and each attempt asks whether others work on the table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from pyiceberg.table.metadata import TableMetadata

from compactor.errors import ReplanError
from compactor.iceberg.other_compactors import FLINK_CONVERTER, OtherCompactor
from compactor.runs.convert import ConversionResult
from streaming.cli import main
from streaming.commands import convert as convert_module
from tests.properties.table_history import TableHistory

NOW = 2_000_000_000.0


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


class Attempts:
    """In place of `Converting`: the first attempt meets another commit, the second converts."""

    def __init__(self, between: Any) -> None:
        self.made, self._between = 0, between

    def __call__(self, _tools: Any, table: Any, _conversion: Any, run_id: str, **_: Any) -> Any:
        def convert() -> ConversionResult:
            self.made += 1
            if self.made == 1:
                self._between()
                raise ReplanError("a data file was added, to which older deletes apply")
            return ConversionResult(table.name, run_id, 1, snapshot_after=2, deletes_removed=1)

        return SimpleNamespace(convert=convert)


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableHistory:
    """A table with an equality delete; Spark is not started."""
    made = TableHistory(tmp_path, 2)
    made.append_unreal("a", [10])
    made.append_unreal("a", [10], by_value=True)
    parts = SimpleNamespace(sweep=lambda *_: None, rewriter=None)
    monkeypatch.setattr(convert_module, "spark_session", lambda _: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr(convert_module, "rewriting", lambda *_, **__: parts)
    return made


@pytest.mark.parametrize(
    ("seen", "commits_too", "options", "attempts"),
    [
        ((), True, [], 1),
        ((), False, [], 2),
        ((OtherCompactor("spark", 1, 5, NOW - 60),), True, ["--force"], 1),
        ((OtherCompactor("spark", 1, 5, NOW - 60),), False, ["--force"], 2),
    ],
    ids=["first commit", "a writer's commit", "it has not stopped", "it has stopped"],
)
def test_an_attempt_that_a_compactor_has_ended_is_not_repeated(
    tmp_path: Path,
    history: TableHistory,
    monkeypatch: pytest.MonkeyPatch,
    seen: tuple[OtherCompactor, ...],
    commits_too: bool,
    options: list[str],
    attempts: int,
) -> None:
    """It may commit its rewrite in several parts: each later one would bring the rows of converted deletes back."""
    snapshots = len(history.view().metadata.snapshots)

    def others(metadata: TableMetadata, _now: float) -> tuple[OtherCompactor, ...]:
        later = commits_too and len(metadata.snapshots) > snapshots
        return (OtherCompactor("spark", 2, 9, NOW),) if later else seen

    monkeypatch.setattr(convert_module, "other_compactors", others)
    made = Attempts(lambda: history.append_unreal("a", [10]))
    monkeypatch.setattr(convert_module, "Converting", made)
    found = CliRunner().invoke(main, [*command_for(tmp_path), *options])
    assert made.made == attempts
    assert (found.exit_code == 0) == (not commits_too)
    assert ("spark rewrites this table too" in found.stderr) == commits_too


def test_each_attempt_asks_the_switch_of_the_table(
    tmp_path: Path, history: TableHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Attempts(lambda: history.set_properties({"firnline.enabled": "false"}))
    monkeypatch.setattr(convert_module, "Converting", made)
    found = CliRunner().invoke(main, command_for(tmp_path))
    assert (made.made, found.exit_code == 0) == (1, False)
    assert "firnline.enabled=false" in found.stderr


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
    ],
)
def test_who_gives_force_knows_what_others_did_until_then_and_not_later(
    tmp_path: Path,
    history: TableHistory,
    monkeypatch: pytest.MonkeyPatch,
    happens: Callable[[TableHistory], None],
    why: str,
) -> None:
    happens(history)
    made = Attempts(lambda: history.append_unreal("a", [10]))
    monkeypatch.setattr(convert_module, "Converting", made)
    command = command_for(tmp_path)
    found = CliRunner().invoke(main, command)
    assert (made.made, found.exit_code == 0) == (0, False)
    assert why in found.stderr
    assert CliRunner().invoke(main, [*command, "--force"]).exit_code == 0
    assert made.made == 2
    made = Attempts(lambda: happens(history))
    monkeypatch.setattr(convert_module, "Converting", made)
    assert CliRunner().invoke(main, [*command, "--force"]).exit_code != 0
    assert made.made == 1
