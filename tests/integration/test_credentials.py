"""`firnline compact` for longer than credentials live: one plan, every row, nothing left behind. Everything is real.

Tokens of the store live for seconds, and the store is slow. How long a rewrite lasted is told by the tokens that it
needed, not by a clock.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BinaryType, LongType, NestedField

from deploy.demo.object_store import s3proxy
from tests.integration.service_process import document, firnline
from tests.services import short_credentials
from tests.services.quick_java import SPARK_CONF, quick_java
from tests.services.rest_catalog import RestCatalog, rest_catalog
from tests.services.s3_server import S3Server
from tests.services.short_credentials import TAKES_TOKENS, Gate, Issuer, Vending

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

LIFETIMES = 10
NAMES = ("part", "id", "payload")


@dataclass
class Lake:
    """A table in S3, and the settings file to compact it with, whose only credentials are those that are vended."""

    s3: S3Server
    catalog: Catalog
    issuer: Issuer
    gate: Gate
    vending: Vending
    folder: Path

    def table(self, parts: int, files: int, rows: int, payload: int) -> Table:
        """Each append is one file in each of `parts` partitions; the payload is noise."""
        schema = Schema(
            NestedField(1, "part", LongType()),
            NestedField(2, "id", LongType()),
            NestedField(3, "payload", BinaryType()),
        )
        spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part"))
        made = self.catalog.create_table(("db", f"t{uuid.uuid4().hex[:8]}"), schema, partition_spec=spec)
        noise = random.Random(5)
        for number in range(files):
            ids = range(number * parts * rows, (number + 1) * parts * rows)
            columns = [[each % parts for each in ids], list(ids), [noise.randbytes(payload) for _ in ids]]
            types = [pa.int64(), pa.int64(), pa.binary()]
            made.append(pa.table([pa.array(*each) for each in zip(columns, types, strict=True)], names=NAMES))
        return made

    def compact(self, table: Table, *arguments: str, **properties: str) -> CompletedProcess[str]:
        config = self.folder / f"{table.name()[-1]}.yaml"
        reached = {
            "type": "rest",
            "uri": self.vending.uri,
            "warehouse": "s3://lake/warehouse",
            "s3.endpoint": self.gate.endpoint,
            "s3.region": "us-east-1",
        }
        settings = {
            "catalogs": {"lake": reached | properties},
            "spark": {"master": "local[2]", "conf": dict(SPARK_CONF)},
            "policy": {"strategy": "threshold"},
            "state": {"checkpoint": f"file://{self.folder}/checkpoint"},
        }
        config.write_text(yaml.safe_dump(settings))
        name = f"lake.db.{table.name()[-1]}"
        return firnline(config, "compact", name, "--force", "--output", "json", *arguments)

    def check(self, table: Table, before: Any) -> None:
        """Rows, the kind of the commit, and that no object, upload or record is left."""
        table.refresh()
        assert rows(table) == before
        snapshot = table.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        assert snapshot.summary.operation.value == "replace"
        assert snapshot.parent_snapshot_id == table.metadata.snapshots[-2].snapshot_id
        self.check_nothing_left(table)

    def check_nothing_left(self, table: Table) -> None:
        listed = {
            task["file_path"] for each in table.metadata.snapshots
            for task in table.inspect.files(each.snapshot_id).to_pylist()
        }  # fmt: skip
        found = {key for key in self.s3.keys(f"{table.location()}/data") if key.endswith(".parquet")}
        assert found == listed
        assert self.s3.client.list_multipart_uploads(Bucket=self.s3.bucket).get("Uploads", []) == []
        assert list((self.folder / "checkpoint" / "in-flight").glob("*.json")) == []


def rows(table: Table) -> Any:
    found = table.scan().to_arrow()
    return sorted(zip(*(found.column(name).to_pylist() for name in NAMES), strict=True))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with quick_java(s3proxy(tmp_path_factory.mktemp("s3"), options=TAKES_TOKENS)) as started:
        yield S3Server(**asdict(started))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, store: S3Server) -> Iterator[RestCatalog]:
    with rest_catalog(tmp_path_factory.mktemp("catalog"), store) as catalog:
        yield catalog


@pytest.fixture
def lake(store: S3Server, served: RestCatalog, tmp_path: Path) -> Iterator[Lake]:
    catalog = load_catalog("direct", **{**served.properties, **store.properties})
    catalog.create_namespace_if_not_exists("db")
    issuer = Issuer(store)
    with (
        short_credentials.store_gate(issuer) as gate,
        short_credentials.vending_catalog(served.uri, issuer) as vending,
    ):
        yield Lake(store, catalog, issuer, gate, vending, tmp_path)


def test_an_upload_that_lasts_ten_lifetimes(lake: Lake) -> None:
    """Splice: the store copies parts, one after the other, each for longer than a token lives."""
    table = lake.table(parts=1, files=LIFETIMES + 1, rows=5400, payload=1000)
    before = rows(table)
    lake.gate.part_seconds = lake.issuer.lifetime
    report = document(lake.compact(table, **{"s3.multipart.num-threads": "1"}))
    (group,) = report["groups"]
    assert (group["engine"], group["files_in"], group["files_out"]) == ("splice", LIFETIMES + 1, 1)
    (tokens,) = lake.gate.parts.values()
    assert len(tokens) >= LIFETIMES
    lake.check(table, before)


@pytest.mark.parametrize(
    ("engine", "catalog"),
    [
        ("encode", {"endpoint": True}),
        ("encode", {"endpoint": False, "as_credentials": True}),
        ("splice", {"endpoint": False, "tells": False}),
        ("spark", {"endpoint": True, "refreshes": True}),
    ],
    ids=lambda given: given if isinstance(given, str) else "-".join(given),
)
def test_many_outputs_in_ten_lifetimes(lake: Lake, engine: str, catalog: dict[str, bool]) -> None:
    """Reads, outputs and the commit, with each way in which catalogs vend credentials."""
    lake.issuer.tells = catalog.pop("tells", True)
    for switch, value in catalog.items():
        setattr(lake.vending, switch, value)
    table = lake.table(parts=12, files=5, rows=20, payload=40_000 if engine == "splice" else 100)
    before = rows(table)
    lake.gate.seconds = 0.25
    if not lake.vending.endpoint:  # Java can only load the table anew: before the commit, not within
        lake.gate.slow = "/data/"
    report = document(lake.compact(table, "--engine", engine))
    assert [group["engine"] for group in report["groups"]] == [engine] * 12
    assert len(lake.issuer.used) >= LIFETIMES
    lake.check(table, before)


def test_the_role_of_a_pod_is_renewed_by_each_client(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3, Arrow and the AWS SDK renew the environment's credentials by themselves; nothing holds on to old ones."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    lake.vending.vends = False
    table = lake.table(parts=6, files=5, rows=20, payload=100)
    before = rows(table)
    lake.gate.seconds = 0.25
    with short_credentials.pod_identity(lake.issuer) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        report = document(lake.compact(table, "--engine", "encode"))
    assert len(report["groups"]) == 6
    assert len(lake.issuer.used) >= LIFETIMES
    lake.check(table, before)


def test_without_new_credentials_the_error_says_what_to_do(lake: Lake) -> None:
    table = lake.table(parts=4, files=5, rows=20, payload=100)
    before = rows(table)
    lake.gate.seconds, lake.issuer.repeats = 0.3, True
    done = lake.compact(table, "--engine", "encode")
    assert done.returncode != 0
    assert "catalog lake vends none other" in done.stderr
    assert "Traceback" not in done.stderr
    assert lake.issuer.issued.keys().isdisjoint(done.stderr.split())
    assert rows(table) == before
