"""The pages about writers name properties that the reporter knows and events that firnline understands."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from compactor.settings.tree import load_settings
from streaming.commit_events.canonical import DECODER
from streaming.commit_events.decoder import RawEvent, TableChanged, decode
from tests.unit.docs.test_guides import blocks

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs" / "writers").glob("*.md"))
WITHOUT_REPORTER = {"pyiceberg", "trino", "polaris", "lakekeeper", "nessie", "s3", "glue", "openlineage"}
JAVA = ROOT / "deploy" / "reporter" / "src" / "main" / "java" / "io" / "firnline" / "iceberg"
OPTIONS = "firnline.kafka.options."
IMPL = "io.firnline.iceberg.KafkaMetricsReporter"


def known() -> set[str]:
    return set(re.findall(r'"(firnline\.[a-z.-]+)"', (JAVA / "ReporterOptions.java").read_text()))


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_properties_are_those_of_the_reporter(page: Path) -> None:
    named = set(re.findall(r"\bfirnline\.(?:kafka|reports|exit)[a-z.*-]*", page.read_text()))
    for name in named:
        assert name.startswith(OPTIONS) or name in known(), name
    assert (IMPL in page.read_text()) is (page.stem not in WITHOUT_REPORTER) or page.stem == "trino"


def test_every_property_has_a_row() -> None:
    rows = re.findall(
        r"^\| `(firnline\.[^`]+)` \|", (ROOT / "docs" / "writers" / "reporter.md").read_text(), re.MULTILINE
    )
    assert {row.removesuffix("*") for row in rows} == known() - {"firnline."}


def test_the_commit_event_from_python_is_understood(tmp_path: Path) -> None:
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("db")
    rows = pa.table({"id": [1]})
    table = catalog.create_table("db.events", rows.schema)
    table.append(rows)
    (code,) = blocks(ROOT / "docs" / "writers" / "pyiceberg.md", "python")
    names: dict[str, object] = {}
    exec(compile(code, "page", "exec"), names)  # noqa: S102 - our own page
    key, value = names["commit_event"]("lake", table)  # type: ignore[operator]
    decoded = decode(RawEvent(key, value, (), 1), (DECODER,))
    assert isinstance(decoded, TableChanged)
    assert (key, decoded.catalog, decoded.namespace, decoded.name) == (b"lake.db.events", "lake", ("db",), "events")
    assert decoded.snapshot_id == table.current_snapshot().snapshot_id


def test_the_settings_of_the_page_are_accepted(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "writers" / "pyiceberg.md").read_text()
    (shown,) = re.findall(r"\$ cat firnline.yaml\n(.*?)\n\$", text, re.DOTALL)
    (tmp_path / "firnline.yaml").write_text(shown)
    assert load_settings(tmp_path / "firnline.yaml", {}).kafka.bootstrap_servers == "kafka:9092"


def test_the_notifications_that_a_bucket_has_are_kept() -> None:
    """S3 replaces the whole configuration of the bucket: other systems would hear no more."""
    page = (ROOT / "docs" / "writers" / "s3.md").read_text()
    (program,) = re.findall(r"^\$ jq -s '([^']+)' before\.json > after\.json$", page, re.MULTILINE)
    steps = [page.index(step) for step in ("lambda add-permission", "get-bucket-notification", program, "file://after")]
    assert steps == sorted(steps)
    if shutil.which("jq") is None:
        return
    functions, before = "LambdaFunctionConfigurations", {"QueueConfigurations": [{"Id": "another"}]}
    for given in ("", json.dumps({**before, functions: [{"Id": "third"}]})):
        done = subprocess.run(["jq", "-s", program], input=given, capture_output=True, text=True, check=True)
        after = json.loads(done.stdout)
        assert [each["Id"] for each in after.pop(functions)] == (["third", "firnline"] if given else ["firnline"])
        assert after == (before if given else {})
