"""What PyIceberg's readers conclude from merged column metrics: they skip no matching row.

`tests/correctness/file_truth.py` compares the metrics of real outputs with their rows.
"""

import uuid

from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions import (
    And,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
    literal,
)
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    _StrictMetricsEvaluator,
)
from pyiceberg.manifest import DataFile
from pyiceberg.types import DoubleType, FloatType, StringType, UUIDType

from compactor.rewrite.parquet.column_metrics import ColumnMetrics, merge
from tests.properties.column_files import (
    COLUMN,
    EVERY_KIND_WITH_LITERALS,
    MAPS,
    is_nan,
    missing,
    natural,
    schema_of,
)
from tests.properties.examples import examples

# --- readers ----------------------------------------------------------------------------------------------------------


def data_file(metrics):
    arguments = {name: dict(getattr(metrics, name)) for name in MAPS}
    return DataFile.from_args(record_count=metrics.record_count, **arguments)


def typed_literal(field_type, value):
    if isinstance(field_type, UUIDType):
        value = uuid.UUID(bytes=value)
    return literal(value)


COMPARISONS = [LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual, EqualTo, NotEqualTo]


def comparisons(name, field_type, values):
    literals = values.filter(lambda value: not missing(value)).map(lambda value: typed_literal(field_type, value))
    choices = [
        st.builds(lambda kind, value: kind(name, value), st.sampled_from(COMPARISONS), literals),
        st.builds(lambda kind, chosen: kind(name, chosen), st.sampled_from([In, NotIn]), distinct(literals)),
        st.sampled_from([IsNull(name), NotNull(name)]),
    ]
    if isinstance(field_type, FloatType | DoubleType):
        choices.append(st.sampled_from([IsNaN(name), NotNaN(name)]))
    if isinstance(field_type, StringType):
        prefixes = values.map(lambda text: text[:2])
        choices.append(
            st.builds(lambda kind, text: kind(name, text), st.sampled_from([StartsWith, NotStartsWith]), prefixes)
        )
    return st.one_of(choices)


def distinct(literals):
    return st.lists(literals, min_size=2, max_size=3, unique_by=lambda chosen: chosen.value)


def predicates(leaves):
    return st.recursive(
        leaves,
        lambda inner: st.builds(And, inner, inner) | st.builds(Or, inner, inner) | st.builds(Not, inner),
        max_leaves=3,
    )


@st.composite
def arbitrary_metrics(draw, kind):
    """Metrics of one file with counts and bounds that no rows may stand behind, each known or not."""
    values = draw(st.integers(0, 4))
    nulls = draw(st.integers(0, values))
    nans = draw(st.integers(0, values - nulls)) if isinstance(kind.field_type, FloatType | DoubleType) else None
    bounds = sorted((draw(kind.values) for _ in range(2)), key=lambda value: (is_nan(value), natural(value)))
    lower, upper = (to_bytes(kind.field_type, value) for value in bounds)
    entries = dict(zip(MAPS, (7, values, nulls, nans, lower, upper), strict=True))
    known = {name: entry for name, entry in entries.items() if entry is not None and draw(st.integers(0, 3))}
    return ColumnMetrics(
        draw(st.integers(0, 4)), **{name: {COLUMN: known[name]} if name in known else {} for name in MAPS}
    )


@EVERY_KIND_WITH_LITERALS
@settings(deadline=None, max_examples=examples(100))
@given(data=st.data())
def test_readers_conclude_no_more_from_the_merged_file_than_from_every_input(kind, data):
    inputs = data.draw(st.lists(arbitrary_metrics(kind), min_size=1, max_size=4))
    schema = schema_of(kind.field_type)
    predicate = data.draw(predicates(comparisons("c", kind.field_type, kind.values)))
    merged = data_file(merge(inputs, schema))
    files = [data_file(each) for each in inputs]
    might_match = _InclusiveMetricsEvaluator(schema, predicate).eval
    all_match = _StrictMetricsEvaluator(schema, predicate).eval
    assert might_match(merged) or not any(might_match(file) for file in files)
    assert all(all_match(file) for file in files) or not all_match(merged)
