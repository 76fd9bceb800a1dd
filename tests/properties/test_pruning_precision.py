"""A filter keeps no more than it must: the partitions that some matching value would lie in, and few manifests."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform, VoidTransform

from compactor.filters.selection import Selection, count_selection
from compactor.filters.where import Where, bind_where
from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.manifests.live_files import LiveFile
from compactor.partitions import PartitionKey
from tests.properties.examples import examples
from tests.properties.filters import COLUMNS, filters, manifest_of, partition_field, stored, table_view


@settings(max_examples=examples(300))
@given(st.data())
def test_identity_partitions_are_kept_exactly_where_their_value_matches(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(COLUMNS.keys() - {"float", "string"})), label="column")
    where, says = data.draw(filters([name]), label="where")
    value = data.draw(st.none() | COLUMNS[name].values, label=name)
    spec = PartitionSpec(partition_field(name, IdentityTransform(), 1000, "part"), spec_id=3)
    kept = bind_where(table_view(spec), where).keeps_partition(3, (stored(name, value),))
    assert kept == bool(says({name: value}))


INTS = range(-70, 71)


@settings(max_examples=examples(200))
@given(
    st.sampled_from(["=", "<", "<=", ">", ">=", "IN", "BETWEEN"]),
    st.integers(-30, 30),
    st.integers(-30, 30),
    st.sampled_from([TruncateTransform(10), TruncateTransform(7), BucketTransform(5)]),
)
def test_truncated_and_bucketed_partitions_are_kept_where_some_value_matches(
    operator: str, low: int, high: int, transform: Any
) -> None:
    assume(not (isinstance(transform, BucketTransform) and operator not in {"=", "IN"}))
    assume(operator != "BETWEEN" or low <= high)
    constants = {"IN": f"({low}, {high})", "BETWEEN": f"{low} AND {high}"}.get(operator, str(low))
    matching = {
        "=": {low}, "IN": {low, high}, "<": {i for i in INTS if i < low}, "<=": {i for i in INTS if i <= low},
        ">": {i for i in INTS if i > low}, ">=": {i for i in INTS if i >= low}, "BETWEEN": set(range(low, high + 1)),
    }[operator]  # fmt: skip
    partition = transform.transform(COLUMNS["int"].kind)
    spec = PartitionSpec(partition_field("int", transform, 1000, "part"), spec_id=3)
    bound = bind_where(table_view(spec), f"int_column {operator} {constants}")
    kept = {partition(i) for i in INTS if bound.keeps_partition(3, (partition(i),))}
    assert kept == {partition(i) for i in matching}
    assert not bound.keeps_partition(3, (None,))


FIRST_DAY = dt.date(2024, 1, 1).toordinal() - dt.date(1970, 1, 1).toordinal()
DAYS, BUCKETS = 365, 16
BY_DAY_AND_USER = PartitionSpec(
    partition_field("timestamptz", DayTransform(), 1000, "day"),
    partition_field("long", BucketTransform(BUCKETS), 1001, "user_bucket"),
    spec_id=3,
)

MANIFEST_LIST = MANIFEST_LIST_FILE_SCHEMAS[2].fields
Partitions = list[tuple[Any, ...]]


def year_of_commits(manifests_a_day: int = 1) -> list[tuple[ManifestFile, Partitions]]:
    """One file a day and bucket, committed day by day in so many manifests, each with the partitions it lists."""
    made = []
    for day in range(FIRST_DAY, FIRST_DAY + DAYS):
        for part in range(manifests_a_day):
            buckets = range(part * BUCKETS // manifests_a_day, (part + 1) * BUCKETS // manifests_a_day)
            partitions = [(day, bucket) for bucket in buckets]
            made.append((manifest_of(BY_DAY_AND_USER, partitions), partitions))
    return made


def delete_manifests() -> list[ManifestFile]:
    """Deletes for every partition, committed day by day."""
    made = [
        manifest_of(BY_DAY_AND_USER, [(day, bucket) for bucket in range(BUCKETS)])
        for day in range(FIRST_DAY, FIRST_DAY + DAYS)
    ]
    for manifest in made:
        manifest._data[3] = ManifestContent.DELETES
    return made


def selected(where: Where, commits: Sequence[tuple[ManifestFile, Partitions]], *more: ManifestFile) -> Selection:
    read = [each for manifest, partitions in commits if where.keeps_manifest(manifest) for each in partitions]
    return counted(where, [*(manifest for manifest, _ in commits), *more], live(where, read))


def counted(
    where: Where, manifests: Sequence[ManifestFile], partitions: dict[PartitionKey, tuple[LiveFile, ...]]
) -> Selection:
    read, skipped = [], []
    for manifest in manifests:
        (read if where.keeps_manifest(manifest) else skipped).append(manifest)
    return count_selection(where, read, skipped, partitions, {key for key in partitions if where.keeps(key)})


def live(where: Where, partitions: Sequence[tuple[Any, ...]]) -> dict[PartitionKey, tuple[LiveFile, ...]]:
    layout = where.table.layout(3)
    found: dict[PartitionKey, tuple[LiveFile, ...]] = {}
    for position, partition in enumerate(partitions):
        key = layout.key(partition)
        entry = FileEntry(
            "m", Status.ADDED, 1, 1, Content.DATA, f"f{position}", "parquet", key, partition, 1, 1, None,
            encrypted=False, equality_ids=(), applies_to=None,
        )  # fmt: skip
        found[key] = (*found.get(key, ()), LiveFile(entry))
    return found


USER = 4711
BUCKET = BucketTransform(BUCKETS).transform(COLUMNS["long"].kind)(USER)


def test_one_user_of_two_days_reads_four_manifests_of_730_and_one_bucket_of_16() -> None:
    text = f"timestamptz_column >= '2024-12-29 10:00' AND long_column = {USER}"
    selection = selected(bind_where(table_view(BY_DAY_AND_USER), text), year_of_commits(), *delete_manifests())
    projected = f"day >= 2024-12-29 AND user_bucket IN ({BUCKET})"
    counts = "partitions 2 of 365 to 5,840, manifests read 4 of 730, files 2 of 5,840"
    assert selection.lines() == (
        f"where {text}",
        "SelectedBucketsCount: 1 out of 16",
        f"{counts}, projected: {projected}",
    )
    assert selection.document() == {
        "where": text,
        "specs": [
            {
                "spec_id": 3,
                "partitioned_by": "day: day, user_bucket: bucket[16]",
                "projected": projected,
                "buckets": [{"field": "user_bucket", "selected": 1, "of": 16}],
                "partitions": {"chosen": 2, "of": None, "of_at_least": 365, "of_at_most": 5840},
                "manifests_read": {"chosen": 4, "of": 730, "of_at_least": 730, "of_at_most": 730},
                "files": {"chosen": 2, "of": 5840, "of_at_least": 5840, "of_at_most": 5840},
            }
        ],
    }


def test_skipped_manifests_of_one_partition_each_are_counted_exactly() -> None:
    where = bind_where(table_view(BY_DAY_AND_USER), f"long_column = {USER} AND timestamptz_column < '2024-01-06'")
    (of_spec,) = selected(where, year_of_commits(manifests_a_day=BUCKETS)).specs
    assert str(of_spec.partitions) == "5 of 5,840"
    assert str(of_spec.manifests_read) == "5 of 5,840"


def test_without_a_filter_everything_is_selected() -> None:
    selection = selected(bind_where(table_view(BY_DAY_AND_USER), None), year_of_commits())
    assert selection.lines() == (
        "SelectedBucketsCount: 16 out of 16",
        "partitions 5,840 of 5,840, manifests read 365 of 365, files 5,840 of 5,840, projected: TRUE",
    )


ANY_SPEC = PartitionSpec(
    partition_field("date", IdentityTransform(), 1000, "day"),
    partition_field("int", IdentityTransform(), 1001, "number"),
    partition_field("string", VoidTransform(), 1002, "gone"),
    spec_id=3,
)
TUPLES = st.tuples(st.none() | st.integers(0, 3), st.none() | st.integers(-2, 2), st.none())


@settings(max_examples=examples(300))
@given(st.lists(st.lists(TUPLES, min_size=1, max_size=4), min_size=1, max_size=6), st.integers(-2, 2))
def test_the_bounds_of_a_selection_hold(manifests: list[list[tuple[Any, ...]]], number: int) -> None:
    where = bind_where(table_view(ANY_SPEC), f"int_column <= {number}")
    listed = [manifest_of(ANY_SPEC, partitions) for partitions in manifests]
    read = [each for each, manifest in zip(manifests, listed, strict=True) if where.keeps_manifest(manifest)]
    (of_spec,) = counted(where, listed, live(where, [each for manifest in read for each in manifest])).specs
    everything = [each for manifest in manifests for each in manifest]
    assert of_spec.partitions.at_least <= len(set(everything))
    assert of_spec.partitions.at_most is None or of_spec.partitions.at_most >= len(set(everything))
    kept = [each for each in everything if each[1] is not None and each[1] <= number]
    assert of_spec.partitions.chosen == len(set(kept))
    assert (of_spec.files.chosen, of_spec.files.of) == (len(kept), len(everything))
    assert (of_spec.manifests_read.chosen, of_spec.manifests_read.of) == (len(read), len(manifests))
    assert all(each not in kept for manifest in manifests if manifest not in read for each in manifest)


def test_summaries_of_deleted_files_prove_no_partition() -> None:
    where = bind_where(table_view(ANY_SPEC), "int_column = 1")
    manifest = manifest_of(ANY_SPEC, [(None, 5, None), (None, 6, None)])
    for position, field in enumerate(MANIFEST_LIST):
        if field.name in {"added_files_count", "deleted_files_count"}:
            manifest._data[position] = 1
    (of_spec,) = counted(where, [manifest], {}).specs
    assert str(of_spec.partitions) == "0 of 0 to 1"
    assert str(of_spec.files) == "0 of 1"


@pytest.mark.parametrize(
    ("where", "of_sixteen"),
    [
        (None, 16),
        ("long_column = 1", 1),
        ("long_column IN (1, 3, 4, 1)", 3),
        ("long_column = 1 OR long_column = 3", 2),
        ("long_column IN (1, 2)", 1),  # of one bucket
        ("long_column IN (1, 3) AND long_column IN (3, 4)", 1),
        ("long_column > 5", 16),
        ("long_column = 1 OR timestamptz_column > '2024-01-01'", 16),
        ("long_column = 1 AND NOT long_column = 2", 1),
        ("NOT long_column = 1", 16),
        ("long_column IS NULL", 0),
        ("false", 0),
    ],
)
def test_selected_buckets(where: str | None, of_sixteen: int) -> None:
    (buckets,) = bind_where(table_view(BY_DAY_AND_USER), where).projection(3).buckets
    assert (buckets.selected, buckets.of) == (of_sixteen, BUCKETS)
