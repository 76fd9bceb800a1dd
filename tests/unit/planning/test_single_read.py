"""One look at a table reads each manifest list once, and judges each manifest and each partition once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, ManifestFile

from compactor.debt.ledger import DictionaryStore
from compactor.filters.where import Where
from compactor.iceberg.tables import Catalogs, TableView
from compactor.manifests.cache import ManifestCache
from compactor.partitions import PartitionKey
from compactor.planning.conflicts import changes_since
from compactor.planning.plan_table import AS_THE_SERVICE, Request, TablePlan, plan_table
from compactor.settings.policy import PolicyValues
from compactor.settings.tree import Settings
from streaming.ledger.operator import LedgerSettings, ledger_settings, look
from tests.properties.table_history import NAME, TableHistory

EVENT = {
    "source": "iceberg", "timestamp_ms": 0, "report": True, "continues": False, "writes": True, "request": None,
    "key": None, "value": None, "headers": "[]", "partition": 0, "topic": "", "offset": 0,
}  # fmt: skip
CATEGORIES = "abcde"
FILTER = "category in ('b', 'c')"


class CountingIO(FileIO):
    """A FileIO that counts how often each file is opened for reading."""

    def __init__(self) -> None:
        super().__init__()
        self._io = PyArrowFileIO()
        self.reads: Counter[str] = Counter()

    @property
    def manifest_lists(self) -> list[int]:
        """How often each manifest list was read, list by list."""
        return [count for path, count in self.reads.items() if "/snap-" in path]

    def new_input(self, location: str) -> InputFile:
        self.reads[location] += 1
        return self._io.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        raise AssertionError(f"a look writes nothing: {location}")

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise AssertionError(f"a look deletes nothing: {location}")


class LookedAt(Catalogs):
    """One table; each load is a new look with a FileIO that counts."""

    def __init__(self, history: TableHistory) -> None:
        super().__init__({"lake": {}})
        self.history = history
        self.io = CountingIO()

    def load(self, name: Any = NAME, ref: str = "main") -> TableView:
        view = self.history.view()
        self.io = CountingIO()
        return TableView(name, view.metadata, view.metadata_location, self.io, ref)


class Judged:
    """How often a filter was evaluated on each manifest, partition and data file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.manifests: Counter[str] = Counter()
        self.partitions: Counter[tuple[int, tuple[Any, ...]]] = Counter()
        self.files: Counter[str] = Counter()
        keeps_manifest, keeps_partition, keeps_file = Where.keeps_manifest, Where.keeps_partition, Where.keeps_file

        def judge_manifest(where: Where, manifest: ManifestFile) -> bool:
            self.manifests[manifest.manifest_path] += 1
            return keeps_manifest(where, manifest)

        def judge_partition(where: Where, spec_id: int, partition: Sequence[Any]) -> bool:
            self.partitions[spec_id, tuple(partition)] += 1
            return keeps_partition(where, spec_id, partition)

        def judge_file(where: Where, file: DataFile) -> bool:
            self.files[file.file_path] += 1
            return keeps_file(where, file)

        monkeypatch.setattr(Where, "keeps_manifest", judge_manifest)
        monkeypatch.setattr(Where, "keeps_partition", judge_partition)
        monkeypatch.setattr(Where, "keeps_file", judge_file)


@pytest.fixture
def lake(tmp_path: Path) -> LookedAt:
    """Ten commits of two files each; every other one adds a delete file that names no data file."""
    history = TableHistory(tmp_path, 2)
    for category in CATEGORIES * 2:
        history.append_unreal(category, [10, 10])
    for category in "bd":
        history.append_unreal(category, [1], deletes=True)
    return LookedAt(history)


def planned(lake: LookedAt, request: Request, **values: Any) -> TablePlan:
    policy = PolicyValues(strategy="threshold", min_input_files=2, **values)
    return plan_table(lake.load(), policy, ManifestCache(1 << 20), request)


@pytest.mark.parametrize("request_", [AS_THE_SERVICE, Request(), Request(where=FILTER, force=True)])
def test_a_plan_reads_the_manifest_list_once(lake: LookedAt, request_: Request) -> None:
    assert planned(lake, request_).groups
    assert lake.io.manifest_lists == [1]


@pytest.mark.parametrize("prune_files", [False, True])
def test_a_filtered_plan_judges_each_manifest_partition_and_file_once(
    lake: LookedAt, monkeypatch: pytest.MonkeyPatch, prune_files: bool
) -> None:
    judged = Judged(monkeypatch)
    plan = planned(lake, Request(where=FILTER, force=True), prune_files=prune_files)
    assert {group.file_group.key for group in plan.groups} == {PartitionKey(0, '["b"]'), PartitionKey(0, '["c"]')}
    assert plan.selection is not None
    assert len(judged.manifests) == len(CATEGORIES) * 2 + 2
    assert set(judged.manifests.values()) == {1}
    assert {partition for _, (partition,) in judged.partitions} == {"b", "c"}
    assert set(judged.partitions.values()) == {1}
    assert list(judged.files.values()) == [1] * (8 if prune_files else 0)
    assert lake.io.manifest_lists == [1]


@pytest.fixture
def settings(lake: LookedAt) -> LedgerSettings:
    catalog = {"type": "sql", "uri": "sqlite://", "warehouse": "file:///nowhere"}
    return replace(ledger_settings(Settings(catalogs={"lake": catalog}), lake), disk=None)


def looks(settings: LedgerSettings, store: DictionaryStore) -> Iterator[dict[str, Any]]:
    """Look at the table until everything is counted; yields what each look says of the table."""
    more = True
    while more:
        row = json.loads(look(settings, NAME, store, pd.DataFrame([EVENT]))[0]["body"])
        assert row["message"] == ""
        yield row
        more = row["more"]


@pytest.mark.parametrize("budget", [100, 3])
def test_a_look_of_the_ledger_reads_each_manifest_list_once(
    lake: LookedAt, settings: LedgerSettings, budget: int
) -> None:
    """A recount of one snapshot, then a walk over three unseen ones; then a look that finds nothing new."""
    settings, store = replace(settings, manifests_per_batch=budget), DictionaryStore()
    for unseen in (0, 3, 0):
        for category in CATEGORIES[:unseen]:
            lake.history.append_unreal(category, [10])
        for row in looks(settings, store):
            assert row["totals"] is not None
            assert set(lake.io.manifest_lists) == {1}


def test_a_recount_after_a_contradicted_walk_reads_each_manifest_list_once(
    lake: LookedAt, settings: LedgerSettings
) -> None:
    store = DictionaryStore()
    list(looks(settings, store))
    head = store.head() or ""
    lake.history.append_unreal("a", [10])
    store.put_head(head.replace('"drift": 0', '"drift": 7'))
    assert [row["recount_reason"] for row in looks(settings, store)] == ["summary_mismatch"]
    assert lake.io.manifest_lists == [1]


def test_the_check_before_a_commit_reads_each_manifest_list_once(lake: LookedAt) -> None:
    planned_at = lake.load().snapshot
    assert planned_at is not None
    for category in CATEGORIES:
        lake.history.append_unreal(category, [10])
    changes = changes_since(lake.load(), planned_at.snapshot_id, ManifestCache(1 << 20))
    assert len(changes) == len(CATEGORIES)
    assert lake.io.manifest_lists == [1] * len(CATEGORIES)
