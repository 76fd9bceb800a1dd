"""Whatever a record beside the checkpoint says, no file goes that a snapshot of any table of the catalog references.

Generated records: of real runs and changed, forged, damaged, old, with files and folders of other runs and tables,
spelled with other schemes, escapes, doubled slashes, `.` and `..`. 10,000 with TEST_EXAMPLES=all.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record as Partition
from pyiceberg.types import LongType, NestedField

from compactor.commit.in_flight import InFlightRecords, Record, new_run_id
from compactor.commit.sweep import sweep
from compactor.events import DeletionRefused, Event, FileDeleted
from compactor.iceberg.tables import Catalogs, TableView
from compactor.lease.owner import Owner
from compactor.locations import normal_location, plain_path
from compactor.manifests.cache import ManifestCache
from compactor.table_names import TableName
from tests.properties.examples import ALL, examples

RECORDS: Final = 50 if ALL else 10
"""Records of one example: 200 examples are 10,000."""
DEAD: Final = replace(Owner.this_process(), started="1")
SCHEMA: Final = Schema(NestedField(1, "id", LongType(), required=False))


@dataclass(frozen=True)
class PastRun:
    """A run as its record was, and its outputs: live ones, and those that no snapshot has."""

    record: Record
    live: tuple[str, ...]
    left: tuple[str, ...]


class World:
    """Tables in folders of their own, within one another's and in a shared one; each with runs, old and new."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/wh"}
        self.catalogs = Catalogs({"lake": properties})
        self.catalog = SqlCatalog("lake", **{key: properties[key] for key in ("uri", "warehouse")})
        self.catalog.create_namespace("db")
        self.records = InFlightRecords(f"file://{folder}/in-flight", DEAD, 60, lambda: 1000.0)
        self.runs: list[PastRun] = []
        self.live: set[str] = set()
        shared = {"write.data.path": f"file://{folder}/shared"}
        self._table("plain", None, {})
        self._table("nested", f"file://{folder}/wh/db/plain/data/nested", {})
        self._table("odd", f"file://{folder}/wh/a b%20c/firnline-x", {"write.metadata.path": f"file:{folder}//meta"})
        self._table("one", None, shared)
        self._table("two", None, shared)
        self.cache = ManifestCache(2**22)
        self.metadata = {str(path) for path in folder.rglob("*") if path.suffix in {".avro", ".json"}}

    def _table(self, name: str, location: str | None, properties: dict[str, str]) -> None:
        self.catalog.create_table(("db", name), SCHEMA, location, properties=properties)
        for number in range(2):
            self._append(name, [self._written(self._data(name), f"writer-{number}.parquet")])
            view = self._view(name)
            run_id = new_run_id(view)
            folder = f"{self._data(name)}/firnline-{run_id}"
            live = [
                self._written(self._data(name), f"00000-0000{number}-firnline-{run_id}.parquet"),
                self._written(folder, "p=a%2Fb/by spark.parquet"),
            ]
            left = [
                self._written(self._data(name), f"00001-00000-firnline-{run_id}.parquet"),
                self._written(folder, "left.parquet"),
            ]
            record = self.records.open(run_id, view, [live[0], left[0]], [folder], attempts=2)
            self._append(name, live)
            self.runs.append(PastRun(record, tuple(live), tuple(left)))
            self.records.close(record)

    def _data(self, name: str) -> str:
        table = self._load(name)
        return table.properties.get("write.data.path", f"{table.location()}/data")

    def _load(self, name: str) -> Table:
        return self.catalog.load_table(("db", name))

    def _view(self, name: str) -> TableView:
        return self.catalogs.load(TableName("lake", ("db",), name))

    def _written(self, folder: str, name: str) -> str:
        path = Path(plain_path(folder)) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("rows")
        return f"{folder}/{name}"

    def _append(self, name: str, paths: list[str]) -> None:
        with self._load(name).transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for path in paths:
                file = DataFile.from_args(
                    content=DataFileContent.DATA, file_path=path, file_format=FileFormat.PARQUET,
                    partition=Partition(), record_count=1, file_size_in_bytes=4,
                )  # fmt: skip
                file.spec_id = UNPARTITIONED_PARTITION_SPEC.spec_id
                append.append_data_file(file)
                self.live.add(plain_path(path))

    def sweep(self) -> list[Event]:
        heard: list[Event] = []
        for _ in range(3):
            sweep(self.records, self.catalogs, self.cache, now=1e9, grace_seconds=0, listener=heard.append)
        for file in (Path(self.records.location)).iterdir():
            file.unlink()  # records that cannot be read stay
        return heard

    def missing(self) -> set[str]:
        return {path for path in self.live | self.metadata if not Path(path).exists()}

    def mend(self) -> None:
        for run in self.runs:
            for path in map(Path, map(plain_path, run.left)):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("rows")


def spelled(location: str, noise: random.Random) -> str:
    """The location in another spelling, which may be the same place, or not."""
    path = plain_path(location)
    folder, _, name = path.rpartition("/")
    spellings: list[Callable[[], str]] = [
        lambda: location,
        lambda: path,
        lambda: f"file:{path}",
        lambda: f"file://{path}",
        lambda: f"file://localhost{path}",
        lambda: f"{noise.choice(['s3', 's3a', 's3n', 'gs', 'FILE', ''])}:/{path}",
        lambda: path.replace("/", "//"),
        lambda: f"{folder}/./{name}",
        lambda: f"{folder}/x/../{name}",
        lambda: f"{folder}/../{folder.rpartition('/')[2]}/{name}",
        lambda: f"{folder}/%2e%2e/{folder.rpartition('/')[2]}/{name}",
        lambda: quote(path),
        lambda: f"file://{quote(quote(path))}",
        lambda: f"{path}?{noise.random()}",
        lambda: f"{path}/",
        lambda: f"{path}/..",
        lambda: f"{path}#{name}",
        path.upper,
        lambda: path[1:],
    ]
    return noise.choice(spellings)()


def with_id(location: str, run_id: str, noise: random.Random) -> str:
    """A location of something else that has the run's id in it somewhere."""
    folder, _, name = location.rpartition("/")
    return noise.choice(
        [
            f"{folder}/firnline-{run_id}/../{name}",
            f"{folder}/firnline-{run_id}/%2e%2e/{name}",
            f"{folder}?firnline-{run_id}/{name}",
            f"{location}?firnline-{run_id}",
            f"{location}#firnline-{run_id}",
            f"{folder}?/firnline-{run_id}",
            f"firnline-{run_id}/../..{plain_path(location)}",
            f"file://firnline-{run_id}{plain_path(location)}",
        ]
    )


def generated(world: World, noise: random.Random) -> str:
    """The text of a record."""
    run, other = noise.choice(world.runs), noise.choice(world.runs)
    record = replace(run.record, abandoned=True, seen_at=0.0, sends=())
    if noise.random() < 0.4:
        record = replace(record, run_id=other.record.run_id)
    if noise.random() < 0.4:
        record = replace(record, name=other.record.name, table_uuid=other.record.table_uuid)
    if noise.random() < 0.3:
        head = world._view(record.name).snapshot
        assert head is not None
        record = replace(record, parent_snapshot_id=head.snapshot_id, parent_sequence_number=head.sequence_number or 0)
    if noise.random() < 0.1:
        odd = ["", "data", "parquet", "-", "/", record.run_id[:8], f"{record.run_id}.parquet"]
        record = replace(record, run_id=noise.choice(odd))
    pool = [*sorted(world.live), *run.left, *other.left, *sorted(world.metadata)]
    folders = sorted({noise.choice(pool).rpartition("/")[0] for _ in range(4)})
    places = [*noise.sample(pool, 3), *noise.sample(folders, 1), *run.record.prefixes, *other.record.prefixes]
    places = [with_id(each, record.run_id, noise) if noise.random() < 0.2 else each for each in places]
    places = [spelled(each, noise) for each in places]
    files, prefixes = noise.sample(places, noise.randrange(4)), noise.sample(places, noise.randrange(3))
    if noise.random() < 0.8:
        record = replace(record, files=tuple(files), prefixes=tuple(prefixes))
    tree: dict[str, Any] = asdict(record)
    if noise.random() < 0.1:
        del tree[noise.choice(sorted(tree))]
    if noise.random() < 0.1:
        tree[noise.choice(sorted(tree))] = noise.choice([None, 0, -1, "", [], {}, "x", [None], [1], 10**15, "/"])
    text = json.dumps(tree)
    if noise.random() < 0.1:
        at = noise.randrange(len(text))
        text = text[:at] + noise.choice(["", "{", chr(noise.randrange(0x2000)), text[: at // 2]])
    return text


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**64))
def test_no_record_deletes_what_a_table_references(world: World, seed: int) -> None:
    noise = random.Random(seed)
    folder = Path(world.records.location)
    for number in range(RECORDS):
        (folder / f"{number}.json").write_text(generated(world, noise), encoding="utf-8", errors="replace")
    heard = world.sweep()
    assert world.missing() == set()
    deleted = {normal_location(event.path) for event in heard if isinstance(event, FileDeleted)}
    assert deleted <= {plain_path(path) for run in world.runs for path in run.left}
    assert any(isinstance(event, DeletionRefused) for event in heard)
    world.mend()


def test_what_the_runs_left_goes(world: World) -> None:
    """Else the test above would prove nothing."""
    for run in world.runs:
        world.records.save(replace(run.record, abandoned=True, seen_at=0.0, sends=()))
    heard = world.sweep()
    left = {plain_path(path) for run in world.runs for path in run.left}
    assert {plain_path(event.path) for event in heard if isinstance(event, FileDeleted)} == left
    assert world.missing() == set()
    world.mend()


def test_a_folder_that_is_spelled_through_an_escaped_one_is_that_folder(world: World) -> None:
    for run in world.runs:
        (folder,) = run.record.prefixes
        spelled_so = f"{folder}/p=a%2Fb/.."  # a%2Fb is one folder, until the escape is read
        world.records.save(replace(run.record, abandoned=True, seen_at=0.0, sends=(), files=(), prefixes=(spelled_so,)))
    world.sweep()
    assert world.missing() == set()
    world.mend()
