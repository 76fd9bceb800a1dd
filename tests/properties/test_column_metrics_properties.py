import datetime as dt
import math
import random
import struct
import uuid
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import from_bytes, to_bytes
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
    expression_evaluator,
    rewrite_not,
)
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.transforms import TruncateTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string, truncate_upper_bound_text_string

from compactor.rewrite.parquet.column_metrics import ColumnMetrics, merge
from tests.properties.examples import examples

COLUMN = 3

# --- values of every primitive type -----------------------------------------------------------------------------------


def integers(bits):
    top = 2 ** (bits - 1)
    edges = st.sampled_from([-top, -257, -256, -1, 0, 1, 127, 128, 255, 256, top - 1])
    return edges | st.integers(-top, top - 1)


def floats(width):
    edges = st.sampled_from([-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, math.nan])
    return edges | st.floats(width=width)


def decimals(precision, scale):
    top = 10**precision - 1
    unscaled = st.sampled_from([-top, -129, -128, -1, 0, 1, 127, 128, 255, 256, top]) | st.integers(-top, top)
    return unscaled.map(lambda number: unscaled_decimal(number, scale))


def unscaled_decimal(unscaled, scale):
    return Decimal((int(unscaled < 0), tuple(int(digit) for digit in str(abs(unscaled))), -scale))


# No U+D7FF: PyIceberg's rounding of truncated upper bounds makes a lone surrogate of it, which has no UTF-8.
ASCII_TEXT = st.text("aAbz~", max_size=6)
TEXT = st.text("aZé\u4e2d\ue000\uffff\U00010000\U0001f600\U0010ffff", max_size=6)
BYTES = st.binary(max_size=6) | st.lists(st.sampled_from([0, 1, 0x7F, 0x80, 0xFE, 0xFF]), max_size=5).map(bytes)
UUIDS = (
    st.tuples(*[st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1])] * 2).map(lambda pair: struct.pack(">QQ", *pair))
    | st.uuids(version=4).map(lambda value: value.bytes)
    | st.integers(0, 2**40).map(lambda bits: uuid.UUID(int=(0x0190 << 112) | (bits << 72) | (7 << 76)).bytes)
)


@dataclass(frozen=True)
class Kind:
    """A column type, values of it, and the narrower type (with its values) that it may have been promoted from."""

    field_type: PrimitiveType
    values: Any
    narrow_type: PrimitiveType | None = None
    narrow_values: Any = None

    def __repr__(self):
        return str(self.field_type)


KINDS = [
    Kind(BooleanType(), st.booleans()),
    Kind(IntegerType(), integers(32)),
    Kind(LongType(), integers(64), IntegerType(), integers(32)),
    Kind(FloatType(), floats(32)),
    Kind(DoubleType(), floats(64), FloatType(), floats(32)),
    Kind(DecimalType(9, 2), decimals(9, 2), DecimalType(4, 2), decimals(4, 2)),
    Kind(DecimalType(38, 10), decimals(38, 10), DecimalType(18, 10), decimals(18, 10)),
    Kind(DateType(), integers(32)),
    Kind(TimeType(), st.integers(0, 86_399_999_999)),
    Kind(TimestampType(), integers(64)),
    Kind(TimestamptzType(), integers(64)),
    Kind(TimestampNanoType(), integers(64)),
    Kind(TimestamptzNanoType(), integers(64)),
    Kind(StringType(), TEXT | ASCII_TEXT),
    Kind(UUIDType(), UUIDS),
    Kind(FixedType(3), st.binary(min_size=3, max_size=3)),
    Kind(BinaryType(), BYTES),
]
EVERY_KIND = pytest.mark.parametrize("kind", KINDS, ids=repr)
# PyIceberg binds no literal to a nanosecond timestamp, so its evaluators cannot be asked about those.
EVERY_KIND_WITH_LITERALS = pytest.mark.parametrize(
    "kind",
    [kind for kind in KINDS if not isinstance(kind.field_type, TimestampNanoType | TimestamptzNanoType)],
    ids=repr,
)


def schema_of(field_type):
    return Schema(NestedField(COLUMN, "c", field_type, required=False))


# --- an independent writer of metrics ---------------------------------------------------------------------------------


def natural(value):
    """Numbers by value with -0.0 first, strings by code point, bytes unsigned."""
    return (value, math.copysign(1, value)) if isinstance(value, float) else value


def utf16(value):
    return list(struct.unpack(f">{len(value.encode('utf-16-be')) // 2}H", value.encode("utf-16-be")))


def signed_halves(value):
    return [int.from_bytes(half, "big", signed=True) for half in (value[:8], value[8:])]


ORDERS = {StringType: [natural, utf16], UUIDType: [natural, signed_halves]}


@dataclass(frozen=True)
class WrittenFile:
    """The rows of a file, the order its writer compared by, and the metrics it wrote."""

    rows: list
    order: Any
    metrics: ColumnMetrics

    @property
    def bounded(self):
        return [value for value in self.rows if not missing(value)]


def missing(value):
    return value is None or is_nan(value)


def is_nan(value):
    return isinstance(value, float) and math.isnan(value)


def lower_bound(field_type, value, width):
    if width and isinstance(field_type, StringType | BinaryType):
        value = TruncateTransform(width).transform(field_type)(value)
    return to_bytes(field_type, value)


def upper_bound(field_type, value, width):
    if width and isinstance(field_type, StringType):
        value = truncate_upper_bound_text_string(value, width)
    if width and isinstance(field_type, BinaryType):
        value = truncate_upper_bound_binary_string(value, width)
    return None if value is None else to_bytes(field_type, value)


def write(field_type, rows, order, width):
    bounded = [value for value in rows if not missing(value)]
    lower = lower_bound(field_type, min(bounded, key=order), width) if bounded else None
    upper = upper_bound(field_type, max(bounded, key=order), width) if bounded else None
    nans = {COLUMN: sum(map(is_nan, rows))} if isinstance(field_type, FloatType | DoubleType) else {}
    metrics = ColumnMetrics(
        record_count=len(rows),
        column_sizes={COLUMN: 10 * len(rows)},
        value_counts={COLUMN: len(rows)},
        null_value_counts={COLUMN: rows.count(None)},
        nan_value_counts=nans,
        lower_bounds={} if lower is None else {COLUMN: lower},
        upper_bounds={} if upper is None else {COLUMN: upper},
    )
    return WrittenFile(rows, order, metrics)


MAPS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


@st.composite
def written_files(draw, kind, *, exact=False):
    """Files of one column, some from before a promotion; unless `exact`, also truncated bounds and forgotten maps."""
    narrow = kind.narrow_type is not None and draw(st.booleans())
    field_type, values = (kind.narrow_type, kind.narrow_values) if narrow else (kind.field_type, kind.values)
    rows = draw(st.lists(values | st.none(), max_size=6))
    order = draw(st.sampled_from(ORDERS.get(type(field_type), [natural])))
    # Rounding a code point up is no rounding up in UTF-16 order, so only code point writers truncate.
    width = draw(st.integers(1, 4)) if not exact and order is natural and draw(st.booleans()) else None
    written = write(field_type, rows, order, width)
    if exact:
        return written
    forgotten = draw(st.sets(st.sampled_from(MAPS), max_size=2)) if draw(st.booleans()) else set()
    return replace(written, metrics=replace(written.metrics, **{name: {} for name in forgotten}))


def file_lists(kind, **options):
    return st.lists(written_files(kind, **options), max_size=4)


def inside(kind, merged, file):
    """Whether all values of `file` are within the merged bounds, by the order that the file's writer used."""
    lower, upper = merged.lower_bounds.get(COLUMN), merged.upper_bounds.get(COLUMN)
    keys = [file.order(value) for value in file.bounded]
    return (lower is None or all(file.order(from_bytes(kind.field_type, lower)) <= key for key in keys)) and (
        upper is None or all(file.order(from_bytes(kind.field_type, upper)) >= key for key in keys)
    )


# --- bounds and counts ------------------------------------------------------------------------------------------------


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


def row_filter(schema, predicate):
    """Row semantics of a scan: NOT is pushed to the leaves first, so that NOT (x < 1) does not match a null."""
    return expression_evaluator(schema, rewrite_not(predicate), case_sensitive=True)


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


@EVERY_KIND_WITH_LITERALS
@settings(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_no_file_with_a_matching_row_is_pruned(kind, data):
    files = data.draw(file_lists(kind, exact=True).filter(lambda files: any(file.rows for file in files)))
    files = [write(kind.field_type, file.rows, natural, data.draw(st.none() | st.integers(1, 4))) for file in files]
    schema = schema_of(kind.field_type)
    merged = data_file(merge([file.metrics for file in files], schema))
    rows = [value for file in files for value in file.rows]
    near = st.sampled_from([*rows, None]).filter(lambda value: not missing(value)) if any_value(rows) else kind.values
    predicate = data.draw(predicates(comparisons("c", kind.field_type, near | kind.values)))
    matches = row_filter(schema, predicate)
    if any(matches(Record(value)) for value in rows):
        assert _InclusiveMetricsEvaluator(schema, predicate).eval(merged)
    if not all(matches(Record(value)) for value in rows):
        assert not _StrictMetricsEvaluator(schema, predicate).eval(merged)


def any_value(rows):
    return any(not missing(value) for value in rows)


# --- real tables ------------------------------------------------------------------------------------------------------

EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the spec's zone-free epoch


def real_values(source):
    """One row of every primitive type that PyIceberg writes, as (column type, Iceberg value, Arrow value)."""
    micros = source.randrange(-(10**15), 2 * 10**15)
    number = source.choice([source.gauss(0, 10), 0.0, -0.0, math.inf, -math.inf, math.nan])
    single = struct.unpack("<f", struct.pack("<f", number))[0]
    cents = unscaled_decimal(source.choice([-129, -128, 0, 127, 128, source.randrange(-(10**7), 10**7)]), 2)
    wide = unscaled_decimal(source.randrange(-(10**37), 10**37), 10)
    days, time = source.randrange(-1000, 20_000), source.randrange(86_400_000_000)
    text = "".join(source.choices("aZé\ue000\U0001f600", k=source.randrange(24)))
    data = bytes(source.choices([0, 1, 0x7F, 0x80, 0xFF], k=source.randrange(24)))
    identifier = source.choice([source.randbytes(16), uuid.UUID(int=source.randrange(2**60) << 64).bytes])
    fixed = source.randbytes(3)
    moment = EPOCH + dt.timedelta(microseconds=micros)
    clock = (EPOCH + dt.timedelta(microseconds=time)).time()
    return [
        (BooleanType(), *[source.random() < 0.5] * 2),
        (IntegerType(), *[source.randrange(-300, 300)] * 2),
        (LongType(), *[source.choice([source.randrange(-(2**40), 2**40), -1, 0, 256])] * 2),
        (FloatType(), single, single),
        (DoubleType(), number, number),
        (DecimalType(9, 2), cents, cents),
        (DecimalType(38, 10), wide, wide),
        (DateType(), days, dt.date(1970, 1, 1) + dt.timedelta(days=days)),
        (TimeType(), time, clock),
        (TimestampType(), micros, moment),
        (TimestamptzType(), micros, moment.replace(tzinfo=dt.UTC)),
        (StringType(), text, text),
        (UUIDType(), identifier, identifier),
        (FixedType(3), fixed, fixed),
        (BinaryType(), data, data),
    ]


REAL_TYPES = [entry[0] for entry in real_values(random.Random(0))]
REAL_SCHEMA = Schema(
    *[NestedField(number, f"c{number}", kind, required=False) for number, kind in enumerate(REAL_TYPES, start=1)]
)


@dataclass(frozen=True, repr=False)
class RealFiles:
    """Appended files of one real table: their rows as Iceberg values and the metrics in their manifest entries."""

    schema: Schema
    rows: list[list[Record]]
    data_files: list[DataFile]

    def column(self, position):
        return [row[position] for rows in self.rows for row in rows]


def random_rows(source, count):
    """Rows with nulls sprinkled in, and in every file a few columns that are null throughout."""
    empty = {position for position in range(len(REAL_TYPES)) if source.random() < 0.15}
    rows = []
    for _ in range(count):
        values = real_values(source)
        gone = {position for position in range(len(values)) if position in empty or source.random() < 0.15}
        rows.append([(None, None) if position in gone else value[1:] for position, value in enumerate(values)])
    return rows


@pytest.fixture(scope="module")
def real_files(tmp_path_factory):
    root = tmp_path_factory.mktemp("column_metrics")
    catalog = SqlCatalog("real", uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}/warehouse")
    catalog.create_namespace("db")
    tables = []
    for seed in range(4):
        source = random.Random(seed)
        table = catalog.create_table(f"db.t{seed}", REAL_SCHEMA)
        appended = [random_rows(source, source.randrange(1, 6)) for _ in range(5)]
        for rows in appended:
            arrow = [{f"c{at}": pair[1] for at, pair in enumerate(row, start=1)} for row in rows]
            table.append(pa.Table.from_pylist(arrow, schema=REAL_SCHEMA.as_arrow()))
        records = [[Record(*[pair[0] for pair in row]) for row in rows] for rows in appended]
        tables.append(RealFiles(table.schema(), records, manifest_data_files(table)))
    return tables


def manifest_data_files(table):
    """Data files in the order they were appended."""
    manifests = sorted(table.current_snapshot().manifests(table.io), key=lambda manifest: manifest.sequence_number)
    return [entry.data_file for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)]


def test_real_files_have_the_rows_their_manifest_entries_count(real_files):
    for table in real_files:
        assert [file.record_count for file in table.data_files] == [len(rows) for rows in table.rows]


def test_metrics_of_real_files_merge_to_those_of_all_rows(real_files):
    for table in real_files:
        merged = merge([ColumnMetrics.from_data_file(file) for file in table.data_files], table.schema)
        for position, field in enumerate(table.schema.fields):
            values = table.column(position)
            assert merged.value_counts[field.field_id] == len(values)
            assert merged.null_value_counts[field.field_id] == values.count(None)
            assert_real_bounds(merged, field, [value for value in values if not missing(value)])


def assert_real_bounds(merged, field, values):
    lower, upper = merged.lower_bounds.get(field.field_id), merged.upper_bounds.get(field.field_id)
    if isinstance(field.field_type, IntegerType | LongType | DecimalType | DateType | TimestampType | FixedType):
        assert (lower, upper) == (to_bytes(field.field_type, min(values)), to_bytes(field.field_type, max(values)))
    assert lower is None or all(from_bytes(field.field_type, lower) <= value for value in values)
    assert upper is None or all(from_bytes(field.field_type, upper) >= value for value in values)


@settings(deadline=None, max_examples=examples(300))
@given(data=st.data())
def test_no_real_file_with_a_matching_row_is_pruned(real_files, data):
    table = data.draw(st.sampled_from(real_files))
    chosen = data.draw(st.sets(st.sampled_from(range(len(table.data_files))), min_size=1))
    merged = merge([ColumnMetrics.from_data_file(table.data_files[index]) for index in chosen], table.schema)
    rows = [row for index in chosen for row in table.rows[index]]
    predicate = data.draw(predicates(st.integers(0, len(REAL_TYPES) - 1).flatmap(lambda at: real_leaves(table, at))))
    matches = row_filter(table.schema, predicate)
    if any(matches(row) for row in rows):
        assert _InclusiveMetricsEvaluator(table.schema, predicate).eval(data_file(merged))


def real_leaves(table, position):
    field = table.schema.fields[position]
    present = [value for value in table.column(position) if not missing(value)]
    return comparisons(field.name, field.field_type, st.sampled_from(present))
