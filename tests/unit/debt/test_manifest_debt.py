"""Manifest debt: counted by spec, judged by number and size, depth told from partition bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestContent, ManifestFile, PartitionFieldSummary
from pyiceberg.types import IntegerType

from compactor.debt.manifest_debt import ManifestCounts, count_manifests
from compactor.partitions import PartitionLayout
from compactor.settings.tree import ManifestSettings
from tests.unit.manifests.manifest_files import record

LAYOUTS = {0: PartitionLayout(0, ("day",), (IntegerType(),), ()), 1: PartitionLayout(1, (), (), ())}
MIB = 2**20
DATA, DELETES = ManifestContent.DATA, ManifestContent.DELETES
FEW = ManifestSettings(min_count=4, min_reduction=2)


def manifest(
    size: int = 1000, bounds: tuple[int, int] | None = (0, 0), content: ManifestContent = DATA, spec: int = 0
) -> ManifestFile:
    summaries: list[Any] | None = None
    if spec == 0 and bounds is not None:
        low, high = (to_bytes(IntegerType(), each) for each in bounds)
        summaries = [PartitionFieldSummary(False, False, low, high)]
    made: ManifestFile = record(
        ManifestFile,
        MANIFEST_LIST_FILE_SCHEMAS[3],
        manifest_path="m",
        manifest_length=size,
        partition_spec_id=spec,
        content=content,
        partitions=summaries,
    )
    return made


def counted(
    *manifests: ManifestFile, settings: ManifestSettings = FEW, version: int = 2, **properties: str
) -> ManifestCounts:
    return count_manifests(manifests, LAYOUTS, settings, properties, version)


def test_an_empty_table_has_none() -> None:
    assert counted() == ManifestCounts()


@pytest.mark.parametrize(
    ("many", "size", "due"),
    [(3, 1000, False), (4, 1000, True), (4, 6 * MIB, False), (8, 4 * MIB, True), (8, 5 * MIB, False)],
)
def test_due_by_number_and_by_what_merging_saves(many: int, size: int, due: bool) -> None:
    counts = counted(*[manifest(size)] * many)
    assert (counts.manifests, counts.bytes, counts.due) == (many, many * size, due)
    assert (counts.why != "") is due


def test_the_target_is_the_tables() -> None:
    target = {"commit.manifest.target-size-bytes": "1000"}
    assert not counted(*[manifest(1000)] * 8, **target).due
    assert counted(*[manifest(400)] * 8, **target).why == "8 manifests, 4 would be enough"
    assert counted(*[manifest(1000)] * 8, **{"commit.manifest.target-size-bytes": "rubbish"}).due


def test_specs_are_judged_apart() -> None:
    mixed = [manifest()] * 3 + [manifest(spec=1)] * 3
    assert not counted(*mixed).due
    assert counted(*mixed, manifest(spec=1)).due_specs == (1,)
    assert counted(*mixed, manifest(), manifest(spec=1)).due_specs == (0, 1)


def test_delete_manifests_count_where_they_are_rewritten() -> None:
    deletes = [manifest(content=DELETES)] * 4
    assert counted(*deletes).due
    assert not counted(*deletes, version=3).due
    assert counted(*deletes).delete_manifests == 4


def test_switched_off_nothing_is_due() -> None:
    assert not counted(*[manifest()] * 50, settings=ManifestSettings(min_count=4, rewrite=False)).due


@pytest.mark.parametrize(
    ("bounds", "depth"),
    [
        ([(1, 1), (2, 2), (3, 3)], 1.0),
        ([(1, 3), (1, 3), (1, 3)], 3.0),
        ([(1, 2), (2, 3)], 1.5),
        ([(1, 9), (5, 5)], 1.5),
        ([None, (1, 1)], 1.0),
        ([None], 0.0),
    ],
)
def test_depth(bounds: list[tuple[int, int] | None], depth: float) -> None:
    assert counted(*[manifest(bounds=each) for each in bounds]).depth == depth


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda pair: (min(pair), max(pair))), min_size=1))
def test_depth_is_what_filters_on_the_lower_bounds_open(ranges: list[tuple[int, int]]) -> None:
    opened = [sum(low <= value <= high for low, high in ranges) for value, _ in ranges]
    assert counted(*[manifest(bounds=each) for each in ranges]).depth == sum(opened) / len(opened)


def test_counts_travel_as_json() -> None:
    counts = counted(*[manifest()] * 8, *[manifest(spec=1, content=DELETES)] * 5)
    assert ManifestCounts.from_list(json.loads(json.dumps(counts.to_list()))) == counts
