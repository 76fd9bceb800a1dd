"""Merged column metrics: no row is outside their bounds, and their counts are those of the whole or unknown."""

from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.types import (
    DoubleType,
    FloatType,
)

from compactor.rewrite.parquet.column_metrics import merge
from tests.properties.column_files import COLUMN, EVERY_KIND, ORDERS, file_lists, is_nan, natural, schema_of
from tests.properties.examples import examples


def inside(kind, merged, file):
    """Whether all values of `file` are within the merged bounds, by the order that the file's writer used."""
    lower, upper = merged.lower_bounds.get(COLUMN), merged.upper_bounds.get(COLUMN)
    keys = [file.order(value) for value in file.bounded]
    return (lower is None or all(file.order(from_bytes(kind.field_type, lower)) <= key for key in keys)) and (
        upper is None or all(file.order(from_bytes(kind.field_type, upper)) >= key for key in keys)
    )


@EVERY_KIND
@settings(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_no_row_is_outside_the_merged_bounds(kind, data):
    files = data.draw(file_lists(kind))
    merged = merge([file.metrics for file in files], schema_of(kind.field_type))
    assert all(inside(kind, merged, file) for file in files)


@EVERY_KIND
@settings(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_counts_are_those_of_the_whole_or_unknown(kind, data):
    files = data.draw(file_lists(kind))
    merged = merge([file.metrics for file in files], schema_of(kind.field_type))
    filled = [file for file in files if file.rows]
    assert merged.record_count == sum(len(file.rows) for file in files)
    rows = [value for file in filled for value in file.rows]
    truth = {
        "column_sizes": 10 * len(rows),
        "value_counts": len(rows),
        "null_value_counts": rows.count(None),
        "nan_value_counts": sum(map(is_nan, rows)),
    }
    for name, expected in truth.items():
        known = filled and all(COLUMN in getattr(file.metrics, name) for file in filled)
        assert getattr(merged, name) == ({COLUMN: expected} if known else {})


@EVERY_KIND
@settings(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_merged_bounds_are_those_of_the_whole_where_each_files_are_exact(kind, data):
    files = data.draw(file_lists(kind, exact=True))
    merged = merge([file.metrics for file in files], schema_of(kind.field_type))
    bounds = (merged.lower_bounds.get(COLUMN), merged.upper_bounds.get(COLUMN))
    values = [value for file in files for value in file.bounded]
    if not values or any(mixes_nulls_and_nans_only(file) for file in files):
        assert bounds == (None, None)
        return
    expected = tuple(extremes(kind.field_type, values, order) for order in ORDERS.get(type(kind.field_type), [natural]))
    if any(file.rows and all(map(is_nan, file.rows)) for file in files):
        expected = tuple((lower, None) for lower, _ in expected)
    if len(set(expected)) == 1:
        assert_equal_where_kept(bounds, expected[0], always_kept=same_order_everywhere(kind, values))
    else:  # writers by different orders: what is kept is one of theirs, and sound as the readers' tests below show
        for name, bound in zip(("lower_bounds", "upper_bounds"), bounds, strict=True):
            assert bound is None or bound in {getattr(file.metrics, name).get(COLUMN) for file in files}


def mixes_nulls_and_nans_only(file):
    return bool(file.rows) and not file.bounded and len({value is None for value in file.rows}) == 2


def extremes(field_type, values, order):
    return to_bytes(field_type, min(values, key=order)), to_bytes(field_type, max(values, key=order))


def same_order_everywhere(kind, values):
    orders = ORDERS.get(type(kind.field_type), [natural])
    first, last = orders[0], orders[-1]
    return sorted(values, key=first) == sorted(values, key=last)


def assert_equal_where_kept(bounds, expected, *, always_kept):
    for bound, exact in zip(bounds, expected, strict=True):
        assert bound == exact or (bound is None and not always_kept)


@EVERY_KIND
@settings(deadline=None, max_examples=examples(30))
@given(data=st.data())
def test_neither_the_order_of_inputs_nor_merging_in_steps_matters(kind, data):
    inputs = [file.metrics for file in data.draw(file_lists(kind, exact=True))]
    schema = schema_of(kind.field_type)
    whole = merge(inputs, schema)
    assert merge(data.draw(st.permutations(inputs)), schema) == whole
    if not ORDERS.get(type(kind.field_type)) and not isinstance(kind.field_type, FloatType | DoubleType):
        cut = data.draw(st.integers(0, len(inputs)))
        assert merge([merge(inputs[:cut], schema), merge(inputs[cut:], schema)], schema) == whole
