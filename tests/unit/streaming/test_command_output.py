"""What the commands print of odd tables: names and values as they are, JSON that every parser reads, every reason."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, NestedField, StringType

from compactor.errors import GiveUpError, InputError
from compactor.iceberg.tables import Catalogs
from compactor.manifests.cache import ManifestCache
from compactor.planning.engine import Engine, EngineChoice
from compactor.planning.plan_table import AS_THE_SERVICE, Request, TablePlan, plan_table
from compactor.reasons import Reason
from compactor.rewrite.tasks.runner import WrittenOutput
from compactor.runs.results import DroppedGroup, RunResult, checked_result, left_out
from compactor.settings.policy import PolicyValues
from compactor.table_names import TableName
from streaming.cli import main
from streaming.commands import reports
from streaming.commands.console import PlainConsole
from streaming.commands.options import fail

CACHE = ManifestCache(1 << 20)
ODD = ("[/b]", "[red]x", ":boom:", "a\nb", "\x1b[31m", "plain")
SHOWN = ("k=[/b]", "k=[red]x", "k=:boom:", "k=a\\nb", "k=\\x1b[31m", "k=plain")


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """Tables with two files in each partition: `[/x]` with odd values, `floats`, `many` with 25 partitions."""
    folder = tmp_path_factory.mktemp("lake")
    made = load_catalog("lake", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    made.create_namespace("db")
    floats = (math.inf, -math.inf, 1.5, None)  # PyIceberg writes no partition of NaN
    for name, kind, values in (
        ("[/x]", StringType(), ODD), ("floats", DoubleType(), floats),
        ("many", StringType(), tuple(map(str, range(25)))),
    ):  # fmt: skip
        spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "k"))
        table = made.create_table(("db", name), Schema(NestedField(1, "k", kind)), partition_spec=spec)
        for _ in range(2):
            table.append(pa.table({"k": pa.array(values, pa.float64() if name == "floats" else pa.string())}))
    made.create_table(("db", "empty"), Schema(NestedField(1, "k", StringType())))
    return made


@pytest.fixture
def config(catalog: Catalog, tmp_path: Path) -> Path:
    uri, warehouse = catalog.properties["uri"], catalog.properties["warehouse"]
    path = tmp_path / "firnline.yaml"
    path.write_text(
        f'catalogs: {{lake: {{type: sql, uri: "{uri}", warehouse: "{warehouse}"}}}}\n'
        f'tables: {{include: ["*"]}}\nstate: {{checkpoint: "{tmp_path}/checkpoint"}}\n'
    )
    return path


def firnline(config: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["-c", str(config), *arguments], prog_name="firnline", catch_exceptions=False)


def document(done: Result) -> dict[str, Any]:
    """The document on standard output, read as strictly as JavaScript does."""

    def refused(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no JSON")

    found: dict[str, Any] = json.loads(done.stdout, parse_constant=refused)
    return found


def plan_of(catalog: Catalog, table: str, least: int = 2) -> TablePlan:
    catalogs = Catalogs({"lake": {key: str(value) for key, value in catalog.properties.items()}})
    view = catalogs.load(TableName("lake", ("db",), table))
    values = PolicyValues(strategy="threshold", min_input_files=least)
    return plan_table(view, values, CACHE, Request(explained=False))


def printed(show: Any, *what: Any) -> str:
    text = io.StringIO()
    show(PlainConsole(file=text, width=200), *what)
    return text.getvalue()


def test_a_run_without_work_says_so_and_claims_no_commit(config: Path) -> None:
    for table in ("empty", "many"):
        done = firnline(config, "compact", f"db.{table}")
        assert done.stdout.splitlines()[0] == f"lake.db.{table}: nothing to do"
        found = document(firnline(config, "compact", f"db.{table}", "--output", "json"))
        assert (found["operation"], found["commits"], found["groups"]) == (None, 0, [])


@pytest.mark.parametrize(
    "command",
    [("plan",), ("plan", "--option", "min-input-files=2"), ("debt",), ("compact",),
     ("compact", "--option", "min-input-files=2", "--dry-run")],
)  # fmt: skip
def test_values_and_names_are_printed_as_they_are(config: Path, command: Sequence[str]) -> None:
    name, *more = command
    done = firnline(config, name, "db.[/x]", *more)
    assert done.exit_code == 0
    assert "lake.db.[/x]" in done.stdout
    for value in SHOWN:
        assert value in done.stdout
    assert "\x1b" not in done.stdout


def test_a_table_that_does_not_exist_is_named_as_it_was_typed(config: Path) -> None:
    done = firnline(config, "plan", "db.[/y]\x1b[31m")
    assert done.exit_code == 2
    assert "lake.db.[/y]\\x1b[31m does not exist" in done.stderr


def test_a_message_of_several_lines_stays_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fail(GiveUpError("first [/b] :boom:\n  second \x1b[0m"))
    assert capsys.readouterr().err == "firnline: first [/b] :boom:\n  second \\x1b[0m\n"


def rewritten(plan: TablePlan) -> RunResult:
    """A run that rewrote all file groups of a plan but the first."""
    engine = EngineChoice(Engine.SPLICE, Reason.ROW_GROUPS_COPIED, "")
    first, *others = plan.groups
    groups = tuple(
        checked_result("run", plan, each, [WrittenOutput(engine, None, (), 2, 2, 1, 0, each.file_group.rows, 0.1, 0)])
        for each in others
    )
    dropped: DroppedGroup = left_out(first, plan.table.name, "why [/b]", GiveUpError, Reason.STRAY_DELETE)
    return RunResult("run", plan.table.name, 1, 2, groups, 0.0, 0.0, 0.0, dropped=(dropped,), commits=1)


def test_what_was_committed_is_printed_whatever_the_values_are(catalog: Catalog) -> None:
    plan = plan_of(catalog, "[/x]")
    text = printed(reports.print_run, rewritten(plan), plan)
    assert "lake.db.[/x]: snapshot 2" in text
    for value in SHOWN:
        assert value in text
    assert "not rewritten k=:boom:: " in text
    found = reports.run_document(rewritten(plan), plan)
    assert (found["operation"], found["commits"], len(found["groups"]), found["left_alone"]) == ("replace", 1, 5, [])


def test_null_is_not_printed_as_the_text_none(config: Path) -> None:
    found = firnline(config, "debt", "db.floats").stdout
    assert "k=null" in found
    assert "None" not in found


@pytest.mark.parametrize("command", [("plan",), ("plan", "--option", "min-input-files=2"), ("compact",), ("debt",)])
def test_values_that_json_lacks_are_texts(config: Path, command: Sequence[str]) -> None:
    name, *more = command
    found = document(firnline(config, name, "db.floats", *more, "--output", "json"))
    rows = found["tables"][0]["partitions"] if name == "debt" else found["groups"] + found["left_alone"]
    assert {row["partition"]["k"] for row in rows} == {"Infinity", "-Infinity", 1.5, None}


def test_why_partitions_are_left_alone_is_said_beside_what_is_done(config: Path, catalog: Catalog) -> None:
    for command in ("plan", "compact"):
        lines = firnline(config, command, "db.many").stdout.splitlines()
        assert sum(line.endswith(": 2 small files, due from 5") for line in lines) == 20
        assert lines[-1] == "  and 5 more; --output json shows all"
        found = document(firnline(config, command, "db.many", "--output", "json"))
        assert len(found["left_alone"]) == 25
        assert found["left_alone"][0]["why"] == "2 small files, due from 5"
    catalog.load_table("db.[/x]").append(pa.table({"k": ["plain"]}))
    plan = plan_of(catalog, "[/x]", 3)
    for text in (printed(reports.print_plan, plan), printed(reports.print_run, _all_done(plan), plan)):
        assert "left alone: 5 partitions\n  k=" in text
        assert "k=:boom:: 2 small files, due from 3\n" in text


def test_a_plan_refuses_the_engine_that_a_run_would_refuse(config: Path) -> None:
    for command in (("plan",), ("compact", "--dry-run")):
        done = firnline(config, *command, "db.many", "--force", "--engine", "splice")
        assert done.exit_code == 2
        assert done.stdout == ""
        assert "engine splice refuses a file group of lake.db.many: Files average " in done.stderr
        assert done.stderr.endswith(" bytes: too small to copy; use --engine auto\n")
    assert firnline(config, "plan", "db.many", "--force", "--engine", "encode").exit_code == 0


def test_a_message_says_where_a_bad_filter_comes_from(catalog: Catalog, config: Path) -> None:
    table = catalog.create_table(("db", "filtered"), Schema(NestedField(1, "k", StringType())))
    asked = firnline(config, "plan", "db.filtered", "--where", "dya = 1").stderr
    assert asked.startswith("firnline: --where 'dya = 1' is not a filter over lake.db.filtered")
    view = plan_of(catalog, "filtered").table
    with pytest.raises(InputError, match=r"^the request's filter 'dya = 2' is not a filter over"):
        plan_table(view, PolicyValues(), CACHE, replace(AS_THE_SERVICE, where="dya = 2"))
    table.transaction().set_properties({"firnline.policy.where": "dya = 3"}).commit_transaction()
    asked = firnline(config, "compact", "db.filtered").stderr
    assert asked.startswith("firnline: table property firnline.policy.where 'dya = 3' is not a filter over")


def _all_done(plan: TablePlan) -> RunResult:
    return RunResult("run", plan.table.name, 1, 2, (), 0.0, 0.0, 0.0, commits=1)
