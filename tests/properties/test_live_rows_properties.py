"""Live files by partition out of many manifests' columns, against a model that looks at one entry after the other."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.types import IntegerType

from compactor.iceberg.manifest_entries import CONTENT, Content, FileEntry, Status
from compactor.manifests.columns import EntryColumns, live_runs
from compactor.manifests.disk import packed, unpacked
from compactor.manifests.live_files import DeleteIndex, LiveRows
from compactor.partitions import PartitionKey, PartitionLayout
from tests.properties.examples import examples

LAYOUT = PartitionLayout(0, ("bucket",), (IntegerType(),), (0,))
SMALL_BELOW = 5

Row = tuple[Status, Content, int, int, int]
rows = st.tuples(
    st.sampled_from(Status), st.sampled_from(Content), st.integers(0, 3), st.integers(0, 9), st.integers(0, 6)
)
tables = st.lists(st.lists(rows, max_size=12), max_size=6)


def entries_of(manifests: list[list[Row]]) -> list[list[FileEntry]]:
    """Few paths, so that some files are listed twice."""
    return [
        [
            FileEntry("m", status, 1, sequence, content, f"f{sequence}-{size}-{bucket}", "parquet",
                      PartitionKey(0, f"[{bucket}]"), (bucket,), 1, size, None, False, (), None)
            for status, content, bucket, size, sequence in manifest
        ]
        for manifest in manifests
    ]  # fmt: skip


@settings(max_examples=examples(400))
@given(tables, st.booleans(), st.data())
def test_live_files_by_partition(table: list[list[Row]], from_disk: bool, data: st.DataObject) -> None:
    manifests = entries_of(table)
    columns = [EntryColumns.of("m", LAYOUT, each) for each in manifests]
    if from_disk:
        columns = [unpacked(packed(each), LAYOUT, "m") for each in columns]
    live = [entry for manifest in manifests for entry in manifest if entry.is_live]
    expected: dict[PartitionKey, list[FileEntry]] = {}
    for entry in live:
        if entry.content is Content.DATA:
            expected.setdefault(entry.key, []).append(entry)
    deletes = [entry for entry in live if entry.content is not Content.DATA]

    found = LiveRows(columns)
    assert found.deletes() == deletes
    partitions = found.by_partition(DeleteIndex(deletes, {0: LAYOUT}))
    assert list(partitions) == sorted(expected)
    for key, files in partitions.items():
        assert len(files) == len(expected[key])
        assert files.small(SMALL_BELOW) == sum(entry.size < SMALL_BELOW for entry in expected[key])
        order = [(file.entry.data_sequence_number, file.entry.path) for file in files]
        assert order == sorted((entry.data_sequence_number, entry.path) for entry in expected[key])

    of_data = [entry for entries in expected.values() for entry in entries]
    counts = Counter(entry.path for entry in of_data)
    places = data.draw(st.sets(st.sampled_from(range(len(of_data))), max_size=5)) if of_data else set()
    asked = [of_data[place] for place in places]
    assert found.listed_twice(asked) == {entry.path for entry in asked if counts[entry.path] > 1}
    paths = {entry.path for manifest in manifests for entry in manifest}
    assert found.live_among(paths) == set(counts)


@settings(max_examples=examples(400))
@given(tables)
def test_runs_are_the_live_rows_and_no_two_of_one_partition_touch(table: list[list[Row]]) -> None:
    flat = [row for manifest in table for row in manifest]
    together = live_runs(
        np.array([row[2] for row in flat], np.int64),
        np.array([row[0].value for row in flat], np.int64),
        np.array([CONTENT.index(row[1]) for row in flat], np.int64),
        [len(manifest) for manifest in table],
    )
    assert len(together) == len(table)
    for manifest, runs in zip(table, together, strict=True):
        for wanted, (buckets, starts, ends) in ((True, runs.data), (False, runs.deletes)):
            covered = {row: bucket for bucket, start, end in zip(buckets, starts, ends, strict=True)
                       for row in range(start, end)}  # fmt: skip
            assert covered == {
                number: bucket
                for number, (status, content, bucket, *_) in enumerate(manifest)
                if status is not Status.DELETED and (content is Content.DATA) is wanted
            }
            touching = (starts[1:] == ends[:-1]) & (buckets[1:] == buckets[:-1])
            assert not touching.any()


def test_a_file_listed_with_two_sizes_is_listed_twice() -> None:
    """As after an import of a path that was written anew: readers see its rows twice."""
    ((first, second, other),) = entries_of([[(Status.ADDED, Content.DATA, 0, size, 1) for size in (1, 2, 3)]])
    second = second._replace(path=first.path)
    found = LiveRows([EntryColumns.of("m", LAYOUT, [first, second, other])])
    assert found.listed_twice([first, second, other]) == {first.path}


def test_more_partitions_than_sixteen_bits_count() -> None:
    buckets = 70_000
    ((entry,),) = entries_of([[(Status.ADDED, Content.DATA, 0, 1, 1)]])
    entries = [
        entry._replace(path=f"f{number}", key=PartitionKey(0, f"[{number % buckets}]"), partition=(number % buckets,))
        for number in range(buckets + 2)
    ]
    cut = buckets - 1
    columns = [EntryColumns.of("m", LAYOUT, part) for part in (entries[:cut], entries[cut:])]
    partitions = LiveRows(columns).by_partition(DeleteIndex((), {0: LAYOUT}))
    assert len(partitions) == buckets
    assert [file.entry.path for file in partitions[PartitionKey(0, "[1]")]] == ["f1", f"f{buckets + 1}"]
    assert [file.entry.path for file in partitions[PartitionKey(0, "[65536]")]] == ["f65536"]
