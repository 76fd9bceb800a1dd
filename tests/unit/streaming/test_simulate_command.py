"""`firnline simulate`: the first line is the policy that the table has, the others compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from streaming.cli import main
from tests.properties.table_history import TableHistory

COMMITS = 40


@pytest.fixture
def history(tmp_path: Path) -> TableHistory:
    made = TableHistory(tmp_path, 2)
    for _ in range(COMMITS):
        made.append_unreal("a", [1000])
    return made


def simulated(history: TableHistory, folder: Path, properties: dict[str, str], *options: str) -> list[dict[str, Any]]:
    """The lines of the command for a table with these properties of `firnline.policy`."""
    history.set_properties({f"firnline.policy.{name}": value for name, value in properties.items()})
    settings = {
        "catalogs": {
            "lake": {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        }
    }
    config = folder / "firnline.yaml"
    config.write_text(json.dumps(settings))
    done = CliRunner().invoke(main, ["-c", str(config), "simulate", "db.t", "--output", "json", *options])
    assert done.exit_code == 0, done.output
    lines: list[dict[str, Any]] = json.loads(done.stdout)["policies"]
    return lines


def test_the_first_line_has_the_fewest_files_of_a_merge_of_the_table(history: TableHistory, tmp_path: Path) -> None:
    """The lines of the curve have fewer, so that they show the effect of growth only."""
    first, *curve = simulated(history, tmp_path, {"min_input_files": str(COMMITS + 1)}, "--curve", "8", "--cron", "10")
    assert (first["policy"], first["rewrite_commits"]) == ("firnline, growth 8", 0)
    assert curve[0]["rewrite_commits"] > 0


def test_the_first_line_has_the_strategy_of_the_table_unless_another_is_given(
    history: TableHistory, tmp_path: Path
) -> None:
    properties = {"strategy": "threshold", "min_input_files": "10"}
    first, *_ = simulated(history, tmp_path, properties)
    assert (first["policy"], first["rewrite_commits"]) == ("firnline, thresholds", (COMMITS - 1) // 9)
    first, *_ = simulated(history, tmp_path, properties, "--policy", "tiered")
    assert first["policy"] == "firnline, growth 8"


def test_the_first_line_leaves_hot_partitions_alone_as_the_table_does(history: TableHistory, tmp_path: Path) -> None:
    first, *curve = simulated(history, tmp_path, {"skip_newer_than_seconds": "86400"}, "--curve", "8")
    assert first["rewrite_commits"] == 0
    assert curve[0]["rewrite_commits"] > 0


def test_small_files_are_those_of_the_table_also_with_another_target(history: TableHistory, tmp_path: Path) -> None:
    first, *_ = simulated(history, tmp_path, {"min_file_size": "500"}, "--target", "1MB")
    assert (first["most_small_files"], first["rewrite_commits"]) == (0, 0)
