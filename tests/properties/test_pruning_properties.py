"""No sieve (partitions, manifests, files) leaves out a matching row, whatever the column, transform and filter."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.transforms import BUCKET, DAY, HOUR, IDENTITY, MONTH, TRUNCATE, VOID, YEAR

from compactor.errors import InputError
from compactor.filters.predicates import matches
from compactor.filters.where import bind_where
from tests.properties.examples import examples
from tests.properties.filters import (
    COLUMNS,
    SCHEMA,
    file_of,
    filters,
    manifest_of,
    partition_of,
    partitioned_columns,
    stored,
    table_view,
)

ROWS = 10


@settings(max_examples=examples(1000))
@given(st.data())
def test_no_matching_row_is_left_out(data: st.DataObject) -> None:
    """Ten rows, a spec and a filter at a time: 10,000 cases a run, and each through all three sieves."""
    names, spec = data.draw(partitioned_columns(), label="partitioned by")
    where, says = data.draw(filters(names), label="where")
    values = {name: st.none() | COLUMNS[name].values for name in names}
    rows = data.draw(st.lists(st.fixed_dictionaries(values), min_size=ROWS, max_size=ROWS), label="rows")
    java_uuids = data.draw(st.booleans(), label="UUIDs ordered as Java does")
    bound = bind_where(table_view(spec), where)
    partitions = [partition_of(row, names, spec) for row in rows]
    manifest = manifest_of(spec, partitions, java_uuids)
    kept, layout = bound.kept_partitions(), bound.table.layout(spec.spec_id)
    for row, partition in zip(rows, partitions, strict=True):
        if says(row):
            assert bound.keeps_partition(spec.spec_id, partition)
            assert kept.keeps(layout.key(partition))
            assert bound.keeps_manifest(manifest)
            assert bound.keeps_manifest(manifest_of(spec, [partition], java_uuids))
            in_file = [each for each, other in zip(rows, partitions, strict=True) if repr(other) == repr(partition)]
            assert bound.keeps_file(file_of(spec, partition, in_file, java_uuids))


@settings(max_examples=examples(300))
@given(st.data())
def test_a_bound_filter_says_of_rows_what_sql_says(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(COLUMNS.keys() - {"float", "string"})), min_size=1, max_size=2))
    where, says = data.draw(filters(names), label="where")
    row = {name: data.draw(st.none() | COLUMNS[name].values, label=name) for name in names}
    by_id = {SCHEMA.find_field(f"{name}_column").field_id: stored(name, value) for name, value in row.items()}
    assert matches(bind_where(table_view(), where).predicate, by_id.__getitem__) == bool(says(row))


@settings(max_examples=examples(100))
@given(st.data())
def test_no_text_does_more_than_to_be_refused(data: st.DataObject) -> None:
    where, _ = data.draw(filters(["int", "string", "timestamptz"]), label="a filter")
    at = data.draw(st.integers(0, len(where)), label="spoilt at")
    odd = st.text(max_size=3) | st.sampled_from(
        ["(", ")", "'", '"', " not ", "9" * 5000, "1e99999999999999999999", "1e400"]
    )
    spoilt = where[:at] + data.draw(odd, label="by") + where[at + data.draw(st.integers(0, 2), label="instead of") :]
    with contextlib.suppress(InputError):
        assert bind_where(table_view(), spoilt).text == (spoilt if spoilt.strip() else None)


def test_every_transform_is_tried() -> None:
    tried = {type(transform).__name__ for column in COLUMNS.values() for transform in column.transforms}
    known = {name.capitalize() + "Transform" for name in (IDENTITY, VOID, BUCKET, TRUNCATE, YEAR, MONTH, DAY, HOUR)}
    assert tried == known
