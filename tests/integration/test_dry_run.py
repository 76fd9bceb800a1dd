"""What `plan` and `compact --dry-run` print is what `compact` then does, group by group, on tables of every engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import Request, plan_table
from compactor.settings.spark_options import run_options
from streaming.cli import main
from streaming.commands import reports
from streaming.commands.options import BAD_INPUT
from tests.conftest import Lake
from tests.integration.table_kit import create, delete_by_equality, delete_by_position, insert, run
from tests.slow import slow

pytestmark = pytest.mark.spark

KNOWN_BEFORE = (
    "spec_id", "partition", "bucket", "engine", "reason", "why", "files_in", "files_out", "bytes_in", "rows_in",
)  # fmt: skip


def plain(lake: Lake, table: str) -> None:
    create(lake, table, by="PARTITIONED BY (a)", commits=4)


def drifted(lake: Lake, table: str) -> None:
    """Some groups can be copied, those with files of both schemas cannot."""
    create(lake, table, by="PARTITIONED BY (a)", commits=3)
    lake.sql(f"ALTER TABLE lake.{table} ADD COLUMN more string")
    for _ in range(2):
        lake.sql(f"INSERT INTO lake.{table} SELECT id, 'p0', id, 'x' FROM range(5)")


def with_position_deletes(lake: Lake, table: str) -> None:
    create(lake, table, by="PARTITIONED BY (a)", commits=4)
    delete_by_position(lake, table)


def with_equality_deletes(lake: Lake, table: str) -> None:
    create(lake, table, commits=4)
    delete_by_equality(lake, table)


def orc(lake: Lake, table: str) -> None:
    create(lake, table, properties="'write.format.default'='orc'", by="PARTITIONED BY (a)", commits=3)


def changed_spec(lake: Lake, table: str) -> None:
    create(lake, table, by="PARTITIONED BY (a)", commits=3)
    lake.sql(f"ALTER TABLE lake.{table} ADD PARTITION FIELD bucket(2, id)")
    insert(lake, table, 3)


REQUESTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "forced": ({"force": True}, ()),
    "filtered": (
        {"force": True, "where": "a = 'p0'"},
        ("max-file-group-input-files=2", "rewrite-job-order=bytes-desc"),
    ),
    "limited": ({}, ("min-input-files=3", "max-files-to-rewrite=4")),
    "all": ({"engine": "spark"}, ("rewrite-all=true",)),
}


@pytest.mark.parametrize(
    ("made", "request_name"),
    [
        (with_position_deletes, "forced"), (with_position_deletes, "limited"), (drifted, "forced"),
        (with_equality_deletes, "forced"), *slow((drifted, "filtered"), (changed_spec, "all"), (orc, "forced")),
    ],
)  # fmt: skip
def test_what_is_foreseen_is_what_is_done(
    lake: Lake, table_name: str, made: Callable[[Lake, str], None], request_name: str
) -> None:
    asked, options = REQUESTS[request_name]
    made(lake, table_name)
    rows = lake.rows(table_name)
    view, given = lake.view(table_name), run_options(options)
    values = given.values(lake.settings.policy.for_table(view.name, view.properties))
    plan = plan_table(view, values, ManifestCache(1 << 24), Request(**asked, rewrite_all=given.rewrite_all))
    foreseen = reports.plan_document(reports.with_footers_read(plan))
    files = set(lake.live_files(table_name))
    done = reports.run_document(run(lake, plan, commit=given.settings(lake.settings).commit), plan)

    def facts(document: dict[str, Any]) -> list[tuple[Any, ...]]:
        return [tuple(group[key] for key in KNOWN_BEFORE) for group in document["groups"]]

    assert facts(foreseen) == facts(done)
    assert foreseen["snapshot_before"] == done["snapshot_before"]
    after = set(lake.live_files(table_name))
    assert files - after == {file.entry.path for group in plan.groups for file in group.file_group.files}
    assert len(after - files) == sum(group["files_out"] for group in foreseen["groups"])
    assert lake.rows(table_name) == rows


def test_options_are_taken_by_sparks_names_and_unknown_ones_refused(lake: Lake, table_name: str) -> None:
    plain(lake, table_name)
    config = Path(lake.folder) / "options.yaml"
    tree = {"catalogs": lake.settings.catalogs}
    config.write_text(yaml.safe_dump(tree))

    def command(*arguments: str, options: tuple[str, ...] = ()) -> Any:
        given = [part for option in options for part in ("--option", option)]
        return CliRunner().invoke(main, ["-c", str(config), *arguments, table_name, *given])

    def groups(*options: str) -> int:
        done = command("plan", "--output", "json", options=options)
        assert done.exit_code == 0, done.output
        return len(yaml.safe_load(done.stdout)["groups"])

    assert [groups(), groups("min-input-files=4"), groups("min-input-files=4", "max-files-to-rewrite=4")] == [0, 2, 1]
    lake.sql(f"ALTER TABLE lake.{table_name} SET TBLPROPERTIES ('firnline.policy.min_input_files'='3')")
    assert groups() == 2
    lake.sql(f"ALTER TABLE lake.{table_name} SET TBLPROPERTIES ('firnline.policy.min_input_files'='few')")
    assert groups() == 0, "the file's setting holds"
    refused = command("plan", options=("min-input-file=4",))
    assert refused.exit_code == BAD_INPUT
    assert "did you mean min-input-files?" in refused.output
    told = [command(*each, options=("min-input-files=4",)) for each in (("plan",), ("compact", "--dry-run"))]
    assert [each.exit_code for each in told] == [0, 0]
    assert told[0].stdout == told[1].stdout
    assert "encode" in told[0].stdout
