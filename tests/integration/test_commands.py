"""The commands as a user runs them: a process each, its output, its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner
from pyiceberg.catalog import load_catalog

from compactor.locations import plain_path
from streaming.cli import main
from tests.integration.service_process import Site, document, firnline, in_process, site
from tests.services.quick_java import SPARK_CONF
from tests.slow import slow

pytestmark = pytest.mark.spark
NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Tables for the commands; no broker is needed."""
    made = Site(tmp_path_factory.mktemp("shelf"), "127.0.0.1:1")
    for table in ("one", "two", "shown"):
        made.create(table)
        made.append(table)
    return made


GROUP_KEYS = {
    "spec_id", "partition", "bucket", "engine", "reason", "files_in", "files_out", "bytes_in", "bytes_out", "rows_in",
    "rows_deleted", "rows_out",
}  # fmt: skip


def test_compact_prints_its_contract(shelf: Site) -> None:
    table = "one"
    before, rows = shelf.view(table).snapshot.snapshot_id, shelf.rows(table)
    settings = {"FIRNLINE_SPARK__MASTER": "local[1]", "FIRNLINE_POLICY__TARGET_FILE_SIZE": "300000"}
    asked = ("compact", f"db.{table}", "--output", "json")
    done = firnline(shelf.config, *asked, **settings)
    printed = document(done)
    assert printed["table"] == f"lake.db.{table}"
    assert printed["snapshot_before"] == before
    assert printed["snapshot_after"] == shelf.view(table).snapshot.snapshot_id != before
    assert printed["operation"] == "replace"
    assert set(printed["seconds"]) == {"plan", "rewrite", "commit", "total"}
    assert len(printed["groups"]) == 4
    for group in printed["groups"]:
        assert set(group) >= GROUP_KEYS
        assert (group["files_in"], group["files_out"]) == (6, 2)
        assert (group["rows_in"], group["rows_deleted"], group["rows_out"]) == (6000, 0, 6000)
        assert set(group["partition"]) == {"part"}
        assert group["bytes_in"] > 0 < group["bytes_out"]
    assert shelf.rows(table) == rows
    assert shelf.operations(table).count("replace") == 1
    assert "Traceback" not in done.stderr


def test_plan_and_debt_print_json_alone(shelf: Site) -> None:
    plan = document(firnline(shelf.config, "plan", "db.shown", "--output", "json"))
    assert [group["files_in"] for group in plan["groups"]] == [6] * 4
    assert all(set(group) >= GROUP_KEYS for group in plan["groups"])
    assert plan["snapshot_before"] == shelf.view("shown").snapshot.snapshot_id
    debt = document(firnline(shelf.config, "debt", "db.shown", "--output", "json"))
    (shown,) = debt["tables"]
    assert (shown["data_files"], shown["small_files"]) == (24, 24)
    assert {row["due"] for row in shown["partitions"]} == {True}
    every = document(firnline(shelf.config, "debt", "--output", "json"))
    assert {one["table"] for one in every["tables"]} == {f"lake.db.{name}" for name in ("one", "two", "shown")}
    assert plan["version"] == every["version"] == 1


def test_debt_has_one_shape(shelf: Site) -> None:
    """For one table, for all, with causes and with an error."""
    asked = ((), ("db.shown",), ("db.shown", "--why"), ("db.nothing",))
    found = [json.loads(in_process(shelf.config, "debt", *each, "--output", "json").stdout) for each in asked]
    assert {tuple(each) for each in found} == {("version", "tables", "errors")}
    assert len({tuple(table) for each in found for table in each["tables"]}) == 1
    assert [(len(each["tables"]), len(each["errors"])) for each in found] == [(3, 0), (1, 0), (1, 0), (0, 1)]
    assert [each["tables"][0]["causes"] is None for each in found[:3]] == [True, True, False]
    (error,) = found[3]["errors"]
    assert (error["table"], error["reason"]) == ("lake.db.nothing", "unknown_table")
    assert "does not exist" in error["message"]


def test_debt_is_not_due_outside_the_filter_of_the_policy(shelf: Site) -> None:
    done = in_process(shelf.config, "debt", "db.shown", "--output", "json", FIRNLINE_POLICY__WHERE="part = 'p01'")
    (shown,) = json.loads(done.stdout)["tables"]
    assert [row["partition"]["part"] for row in shown["partitions"] if row["due"]] == ["p01"]
    assert {row["why"] for row in shown["partitions"] if not row["due"]} == {"outside policy.where"}


def test_debt_shows_what_is_paused(shelf: Site) -> None:
    Path(plain_path(shelf.settings.state.checkpoint)).mkdir(exist_ok=True)
    assert in_process(shelf.config, "pause", "db.sh*", "--reason", "audit").returncode == 0
    paused = json.loads(in_process(shelf.config, "debt", "--output", "json").stdout)["tables"]
    assert {one["table"].split(".")[-1] for one in paused if one["paused"]} == {"shown"}
    shown = in_process(shelf.config, "debt", "db.shown").stdout
    assert "paused: db.sh* until `firnline resume`: audit" in shown
    assert in_process(shelf.config, "resume").returncode == 0
    assert "paused" not in in_process(shelf.config, "debt", "db.shown").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("compact", "db.nothing"), 2, "table lake.db.nothing does not exist"),
        (("debt", "db.nothing"), 2, "table lake.db.nothing does not exist"),
        (("plan", "nothing"), 2, "must look like namespace.table"),
        (("plan", "db.shown", "--where", "no_such_column = 1"), 2, "no_such_column"),
        (("plan", "db.shown", "--where", "part ="), 2, "part ="),
    ],
)
def test_bad_input_ends_with_a_sentence(shelf: Site, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = in_process(shelf.config, *arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_jvm_that_does_not_start_ends_with_its_own_sentence(shelf: Site) -> None:
    done = firnline(shelf.config, "compact", "db.shown", "--force", FIRNLINE_SPARK__CONF__SPARK__DRIVER__MEMORY="lots")
    assert done.returncode == 2, done.stderr
    assert "firnline: Spark does not start: Invalid maximum heap size: -Xmxlots; check spark.master" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bad_setting_names_its_key(shelf: Site, tmp_path: Path) -> None:
    done = in_process(shelf.config, "debt", FIRNLINE_POLICY__MIN_INPUT_FILES="one")
    assert (done.returncode, "policy.min_input_files" in done.stderr) == (2, True), done.stderr
    done = in_process(shelf.config, "debt", FIRNLINE_POLICY__MIN_FILES="5")
    assert (done.returncode, "policy.min_files" in done.stderr) == (2, True), done.stderr
    done = firnline(shelf.config, "run", FIRNLINE_STATE__CHECKPOINT="")
    assert (done.returncode, "state.checkpoint" in done.stderr) == (2, True), done.stderr
    done = in_process(tmp_path / "none.yaml", "debt")
    assert (done.returncode, "none.yaml" in done.stderr) == (2, True), done.stderr


def test_the_same_name_in_two_catalogs_needs_its_catalog(shelf: Site, tmp_path: Path) -> None:
    tree = yaml.safe_load(shelf.config.read_text())
    tree["catalogs"]["pond"] = dict(tree["catalogs"]["lake"])
    both = tmp_path / "both.yaml"
    both.write_text(yaml.safe_dump(tree))
    done = in_process(both, "debt", "db.shown")
    assert done.returncode == 2
    assert "must start with its catalog; configured catalogs: lake, pond" in done.stderr
    (shown,) = document(in_process(both, "debt", "lake.db.shown", "--output", "json"))["tables"]
    assert shown["table"] == "lake.db.shown"


@pytest.mark.slow
def test_manifests_are_merged_now_and_a_second_time_there_is_nothing_to_do(shelf: Site) -> None:
    """Below all thresholds of the service."""
    shelf.create("listed")
    for _ in range(3):
        shelf.append("listed")
    before, rows = shelf.view("listed"), shelf.rows("listed")
    assert len(before.manifests()) > 1
    planned = document(in_process(shelf.config, "manifests", "db.listed", "--dry-run", "--output", "json"))
    assert (planned["manifests"], planned["specs_to_merge"]) == (len(before.manifests()), [0])
    done = document(firnline(shelf.config, "manifests", "db.listed", "--output", "json"))
    assert (done["manifests_before"], done["manifests_after"]) == (len(before.manifests()), 1)
    assert shelf.operations("listed")[-1] == "replace"
    assert shelf.rows("listed") == rows
    again = document(in_process(shelf.config, "manifests", "db.listed", "--output", "json"))
    assert (again["run_id"], again["manifests_before"], again["manifests_after"]) == (None, 1, 1)


@pytest.mark.parametrize("command", ["debt", "assess"])
def test_every_table_that_cannot_be_read_is_named(tmp_path: Path, command: str) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    catalog = load_catalog("lake", **properties)
    catalog.create_namespace("db")
    for name in ("gone", "sound", "strange"):
        table = catalog.create_table(f"db.{name}", pa.schema([pa.field("id", pa.int64())]))
        table.append(pa.table({"id": [1]}))
        metadata = Path(plain_path(table.metadata_location))
        if name == "gone":
            metadata.unlink()
        if name == "strange":
            metadata.write_text(metadata.read_text().replace('"long"', '"polygon"'))
    config = tmp_path / "firnline.yaml"
    config.write_text(yaml.safe_dump({"catalogs": {"lake": properties}}))
    done = CliRunner().invoke(main, ["-c", str(config), command])
    assert done.exit_code == 3
    assert "lake.db.sound" in done.stdout
    said = done.stderr.splitlines()
    assert len([line for line in said if "lake.db.gone cannot be loaded" in line]) == 1
    (strange,) = (line for line in said if "lake.db.strange" in line)
    assert "PyIceberg cannot parse its metadata" in strange
    assert "polygon" in strange
    assert "pydantic" not in done.stderr


# --- the user's environment of another Spark: the settings win, and one that cannot work is named at once ---


def filled(place: Site) -> None:
    place.append("t", commits=3, parts=1)


@pytest.mark.slow
def test_the_settings_win_over_the_users_spark(tmp_path: Path) -> None:
    other = tmp_path / "conf"
    other.mkdir()
    (other / "spark-defaults.conf").write_text("spark.task.cpus 9\nspark.master local[7]\n")
    (other / "spark-env.sh").write_text("export PYSPARK_PYTHON=/nowhere/python\n")
    environment = {
        "PYSPARK_PYTHON": "/nowhere/python",
        "PYSPARK_DRIVER_PYTHON": "ipython",
        "PYSPARK_SUBMIT_ARGS": "--master local[1] --conf spark.task.cpus=9 pyspark-shell",
        "SPARK_HOME": "/nowhere/spark",
        "SPARK_CONF_DIR": str(other),
        "SPARK_REMOTE": "sc://nowhere",
        "HADOOP_CONF_DIR": str(other),
    }
    with site(tmp_path / "site", NOBODY) as place:
        filled(place)
        done = firnline(place.config, "compact", "db.t", "--force", "--output", "json", **environment)
        assert document(done)["groups"][0]["files_in"] == 3
    (said,) = (line for line in done.stderr.splitlines() if "ignored in the environment" in line)
    assert all(name in said for name in environment if name != "HADOOP_CONF_DIR")
    assert "Hadoop configuration in" in done.stderr
    assert "2 rewrite slots: 2 cores" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", ["/nowhere/python", *slow("/bin/true")])
def test_an_interpreter_that_cannot_work_is_named_before_a_rewrite(tmp_path: Path, interpreter: str) -> None:
    conf = {**SPARK_CONF, "spark.pyspark.python": interpreter}
    with site(tmp_path / "site", NOBODY, spark={"master": "local[2]", "conf": conf}) as place:
        filled(place)
        done = firnline(place.config, "compact", "db.t", "--force")
        assert done.returncode == 2, done.stderr
        last = done.stderr.splitlines()[-1]
        assert f"cannot use the interpreter {interpreter}" in last
        assert "remove spark.pyspark.python" in last
        assert len(place.live_files("t")) == 3
