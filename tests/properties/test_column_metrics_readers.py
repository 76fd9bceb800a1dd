"""What PyIceberg's readers conclude from merged column metrics: they skip no matching row, also of real files."""

import datetime as dt
import math
import random
import struct
import uuid
from dataclasses import dataclass

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
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from compactor.rewrite.parquet.column_metrics import ColumnMetrics, merge
from tests.properties.column_files import (
    COLUMN,
    EVERY_KIND_WITH_LITERALS,
    MAPS,
    file_lists,
    is_nan,
    missing,
    natural,
    schema_of,
    unscaled_decimal,
    write,
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
