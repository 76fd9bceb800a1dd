"""Random columns, rows and filters, with what SQL says of each row: the ground that pruning is tested on."""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
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
from pyiceberg.utils.datetime import time_to_micros
from pyiceberg.utils.decimal import unscaled_to_decimal

from compactor.filters.where import Where, bind_where
from compactor.iceberg.tables import TableView
from compactor.table_names import TableName

EPOCH_DATE = dt.date(1970, 1, 1)
EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a timestamp without zone
MICROSECOND = dt.timedelta(microseconds=1)
UTC = dt.UTC


def same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Column:
    """A column: its values, how one is written in SQL, how Iceberg stores it, and how values compare."""

    kind: PrimitiveType
    values: st.SearchStrategy[Any]
    sql: Callable[[Any], str]
    stored: Callable[[Any], Any]
    transforms: tuple[Transform[Any, Any], ...]
    order: Callable[[Any], Any] = same
    inexact: st.SearchStrategy[tuple[str, Any]] | None = None
    """Constants that the type cannot hold, each with what it is compared as."""


def quoted(value: Any) -> str:
    return "'" + str(value).replace("'", "''") + "'"


def micros(at: dt.datetime) -> int:
    return (at.replace(tzinfo=None) - EPOCH) // MICROSECOND


def nanos_sql(zone: str) -> Callable[[int], str]:
    def sql(nanos: int) -> str:
        seconds, rest = divmod(nanos, 1_000_000_000)
        return quoted(f"{(EPOCH + dt.timedelta(seconds=seconds)).isoformat(' ')}.{rest:09d}{zone}")

    return sql


def zoned(at: dt.datetime) -> str:
    """The moment with an offset that depends on it, so that all kinds occur."""
    hours = at.hour % 5 - 2
    zone = dt.timezone(dt.timedelta(hours=hours, minutes=30 * (hours % 2)))
    return quoted(at.astimezone(zone).isoformat(" "))


def single(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def nan_last(value: float) -> tuple[bool, float]:
    return (True, 0.0) if math.isnan(value) else (False, value)


ANY_TYPE = (IdentityTransform(), VoidTransform(), BucketTransform(1), BucketTransform(5))
NO_HASH = (IdentityTransform(), VoidTransform())
TIME = (YearTransform(), MonthTransform(), DayTransform())
TRUNCATED_TEXT = (TruncateTransform(1), TruncateTransform(2))
MOMENTS = st.datetimes(dt.datetime(1968, 11, 1), dt.datetime(1971, 3, 1)) | st.sampled_from(  # noqa: DTZ001
    [
        EPOCH,
        EPOCH - MICROSECOND,
        dt.datetime(2024, 1, 15, 10),  # noqa: DTZ001
        dt.datetime(2024, 1, 15),  # noqa: DTZ001
        dt.datetime(2024, 2, 29, 23, 59, 59, 999_999),  # noqa: DTZ001
        dt.datetime(9999, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
        dt.datetime(1, 1, 2),  # noqa: DTZ001
    ]
)
NANOS = st.integers(-40_000_000_000_000_000, 40_000_000_000_000_000) | st.sampled_from(
    [0, -1, 1, -999, 1_705_312_800_000_000_001]
)
FLOATS = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 0.1, -1.5, 2.0, 1e30]) | st.floats(-3, 3, width=32)


def float_sql(value: float) -> str:
    return repr(value) if math.isfinite(value) else quoted(value)


COLUMNS = {
    "int": Column(
        IntegerType(),
        st.integers(-25, 25) | st.sampled_from([-(2**31), -(2**31) + 8, 2**31 - 1]),
        str,
        same,
        (*ANY_TYPE, TruncateTransform(10)),
        inexact=st.sampled_from([(text, Decimal(text)) for text in ("3.5", "-0.5", "5000000000", "-5e9", "1e1")]),
    ),
    "long": Column(
        LongType(),
        st.integers(-25, 25) | st.sampled_from([-(2**63), -(2**63) + 8, 2**63 - 1, 2**31]),
        str,
        same,
        (*ANY_TYPE, TruncateTransform(10)),
        inexact=st.sampled_from([(text, Decimal(text)) for text in ("-7.25", "1e30", "-1e30")]),
    ),
    "string": Column(
        StringType(), st.text(alphabet="ab'ü😀_%\\", max_size=4), quoted, same, (*ANY_TYPE, *TRUNCATED_TEXT)
    ),
    "date": Column(
        DateType(),
        st.dates(dt.date(1968, 11, 1), dt.date(1971, 3, 1))
        | st.sampled_from([dt.date(2024, 2, 29), dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        quoted,
        lambda day: (day - EPOCH_DATE).days,
        (*ANY_TYPE, *TIME),
    ),
    "timestamp": Column(TimestampType(), MOMENTS, quoted, micros, (*ANY_TYPE, *TIME, HourTransform())),
    "timestamptz": Column(
        TimestamptzType(),
        MOMENTS.filter(lambda at: 1 < at.year < 9999).map(lambda at: at.replace(tzinfo=UTC)),
        zoned,
        micros,
        (*ANY_TYPE, *TIME, HourTransform()),
    ),
    "timestamp_ns": Column(TimestampNanoType(), NANOS, nanos_sql(""), same, (*ANY_TYPE, *TIME, HourTransform())),
    "timestamptz_ns": Column(TimestamptzNanoType(), NANOS, nanos_sql("Z"), same, (*ANY_TYPE, *TIME, HourTransform())),
    "time": Column(
        TimeType(), st.times(), quoted, time_to_micros, ANY_TYPE,
    ),
    "decimal": Column(
        DecimalType(9, 2),
        st.decimals(-30, 30, places=2, allow_nan=False).map(lambda value: value.quantize(Decimal("0.01"))),
        str,
        same,
        (*ANY_TYPE, TruncateTransform(50)),
        inexact=st.sampled_from([(text, Decimal(text)) for text in ("5.255", "-5.255", "1e12", "7", "-30.000")]),
    ),
    "wide": Column(
        DecimalType(38, 10),
        st.integers(100 - 10**38, 10**38 - 1).map(lambda value: unscaled_to_decimal(value, 10)),  # truncates in range
        lambda value: f"{value:f}",
        same,
        (*ANY_TYPE, TruncateTransform(50)),
    ),
    "float": Column(FloatType(), FLOATS.map(single), float_sql, same, NO_HASH, nan_last),
    "double": Column(DoubleType(), FLOATS, float_sql, same, NO_HASH, nan_last),
    "boolean": Column(BooleanType(), st.booleans(), str, same, NO_HASH),
    "uuid": Column(
        UUIDType(), st.uuids() | st.sampled_from([uuid.UUID(int=0), uuid.UUID(int=2**127)]), quoted,
        lambda value: value.bytes, ANY_TYPE, lambda value: value.bytes,
    ),
    "binary": Column(
        BinaryType(), st.binary(max_size=3), lambda value: f"X'{value.hex()}'", same, (*ANY_TYPE, *TRUNCATED_TEXT)
    ),
    "fixed": Column(FixedType(2), st.binary(min_size=2, max_size=2), lambda value: f"x'{value.hex()}'", same, ANY_TYPE),
}  # fmt: skip
SCHEMA = Schema(
    *[
        NestedField(field_id=position, name=f"{name}_column", field_type=column.kind, required=False)
        for position, (name, column) in enumerate(COLUMNS.items(), 1)
    ]
)

Row = dict[str, Any]
Filter = tuple[str, Callable[[Row], bool | None]]
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


@st.composite
def tests(draw: st.DrawFn, name: str) -> Filter:
    """One test as SQL text, and what SQL says of a row (None: unknown)."""
    column = COLUMNS[name]
    shapes = ["compare", "compare", "in", "null", "between", *(["like"] if name == "string" else [])]
    shape = draw(st.sampled_from([*shapes, *(["inexact"] if column.inexact is not None else [])]))
    negated = "NOT " if draw(st.booleans()) else ""
    if shape in {"compare", "inexact"}:
        return draw(comparisons(name, inexact=shape == "inexact"))
    if shape == "in":
        chosen = draw(st.lists(column.values, min_size=1, max_size=3))
        text = f"{name}_column {negated}IN ({', '.join(map(column.sql, chosen))})"
        wanted = [column.order(value) for value in chosen]
        return text, lambda row: _known(row, name, lambda x: (x in wanted) != bool(negated))
    if shape == "null":
        return f"{name}_column IS {negated}NULL", lambda row: (row[name] is None) != bool(negated)
    if shape == "between":
        low, high = draw(column.values), draw(column.values)
        text = f"{name}_column {negated}BETWEEN {column.sql(low)} AND {column.sql(high)}"
        return text, lambda row: _known(
            row, name, lambda x: (column.order(low) <= x <= column.order(high)) != bool(negated)
        )
    pattern = draw(st.text(alphabet="ab'ü😀%_", max_size=4))
    wildcards = re.compile("".join({"%": ".*", "_": "."}.get(c, re.escape(c)) for c in pattern), re.DOTALL)
    text = f"{name}_column {negated}LIKE {quoted(pattern)}"
    return text, lambda row: _known(row, name, lambda x: (wildcards.fullmatch(x) is not None) != bool(negated))


@st.composite
def comparisons(draw: st.DrawFn, name: str, inexact: bool) -> Filter:
    column = COLUMNS[name]
    operator = draw(st.sampled_from(sorted(COMPARISONS)))
    if inexact and column.inexact is not None:
        constant, wanted = draw(column.inexact)
    else:
        value = draw(column.values)
        constant, wanted = column.sql(value), column.order(value)
    if draw(st.booleans()):
        text = f"{name}_column {operator} {constant}"
    else:
        text = f"{constant} {MIRRORED.get(operator, operator)} {name}_column"
    return text, lambda row: _known(row, name, lambda x: COMPARISONS[operator](x, wanted))


def _known(row: Row, name: str, says: Callable[[Any], bool]) -> bool | None:
    return None if row[name] is None else says(COLUMNS[name].order(row[name]))


def filters(names: Iterable[str]) -> st.SearchStrategy[Filter]:
    return st.recursive(st.one_of([tests(name) for name in names]), _combined, max_leaves=4)


def _combined(parts: st.SearchStrategy[Filter]) -> st.SearchStrategy[Filter]:
    def both(pair: tuple[Filter, Filter]) -> Filter:
        (left, says_left), (right, says_right) = pair
        return f"({left}) AND ({right})", lambda row: _and(says_left(row), says_right(row))

    def either(pair: tuple[Filter, Filter]) -> Filter:
        (left, says_left), (right, says_right) = pair
        return f"({left}) or ({right})", lambda row: _not(_and(_not(says_left(row)), _not(says_right(row))))

    def negated(part: Filter) -> Filter:
        text, says = part
        return f"NOT ({text})", lambda row: _not(says(row))

    pairs = st.tuples(parts, parts)
    return pairs.map(both) | pairs.map(either) | parts.map(negated)


def _and(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def table_view(*specs: PartitionSpec, schema: Schema = SCHEMA, older: Sequence[Schema] = ()) -> TableView:
    metadata: Any = SimpleNamespace(
        partition_specs=list(specs), schemas=[schema, *older], schema=lambda: schema, format_version=2
    )
    io: Any = None
    return TableView(TableName("lake", ("db",), "t"), metadata, "", io)


@st.composite
def partitioned_columns(draw: st.DrawFn) -> tuple[list[str], PartitionSpec]:
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=2, unique=True))
    fields = [
        partition_field(name, draw(st.sampled_from(COLUMNS[name].transforms)), 1000 + position, f"part_{position}")
        for position, name in enumerate(names)
    ]
    return names, PartitionSpec(*fields, spec_id=3)


def partition_field(name: str, transform: Transform[Any, Any], field_id: int, called: str) -> PartitionField:
    source = SCHEMA.find_field(f"{name}_column").field_id
    return PartitionField(source_id=source, field_id=field_id, transform=transform, name=called)


def stored(name: str, value: Any) -> Any:
    return None if value is None else COLUMNS[name].stored(value)


def partition_of(row: Row, names: Iterable[str], spec: PartitionSpec) -> tuple[Any, ...]:
    """The partition tuple as a Java writer makes it: truncation of the smallest numbers wraps around."""
    return tuple(
        _wrapped(name, field.transform.transform(COLUMNS[name].kind)(stored(name, row[name])))
        for name, field in zip(names, spec.fields, strict=True)
    )


def _wrapped(name: str, value: Any) -> Any:
    bits = {"int": 32, "long": 64}.get(name)
    return value + 2**bits if bits and value is not None and value < -(2 ** (bits - 1)) else value


def _signed(value: bytes) -> tuple[int, int]:
    """`java.util.UUID` compares two signed longs."""
    return struct.unpack(">qq", value)


def summary(kind: PrimitiveType, values: list[Any], java_uuids: bool = False) -> PartitionFieldSummary:
    """What a manifest list says of the values of one partition field."""
    known = [value for value in values if value is not None]
    numbers = [value for value in known if not (isinstance(value, float) and math.isnan(value))]
    order = _signed if java_uuids and isinstance(kind, UUIDType) else None
    bounds = [to_bytes(kind, pick(numbers, key=order)) if numbers else None for pick in (min, max)]  # type: ignore[operator]
    return PartitionFieldSummary(len(known) < len(values), len(numbers) < len(known), *bounds)


def manifest_of(
    spec: PartitionSpec, partitions: list[tuple[Any, ...]], java_uuids: bool = False, path: str = "m.avro"
) -> ManifestFile:
    """A data manifest with one added file per partition tuple given."""
    kinds: list[Any] = [field.field_type for field in spec.partition_type(SCHEMA).fields]
    return ManifestFile.from_args(
        manifest_path=path,
        manifest_length=1,
        partition_spec_id=spec.spec_id,
        content=ManifestContent.DATA,
        added_files_count=len(partitions),
        existing_files_count=0,
        deleted_files_count=0,
        partitions=[
            summary(kind, [partition[position] for partition in partitions], java_uuids)
            for position, kind in enumerate(kinds)
        ],
    )


def file_of(spec: PartitionSpec, partition: tuple[Any, ...], rows: list[Row], java_uuids: bool = False) -> DataFile:
    """A data file of one partition with full metrics of its rows."""
    counts: dict[str, dict[int, Any]] = {each: {} for each in ("values", "nulls", "nans", "lower", "upper")}
    for name, column in COLUMNS.items():
        if any(name not in row for row in rows):
            continue
        values = [stored(name, row[name]) for row in rows]
        field_id = SCHEMA.find_field(f"{name}_column").field_id
        told = summary(column.kind, values, java_uuids)
        counts["values"][field_id] = len(values)
        counts["nulls"][field_id] = values.count(None)
        if isinstance(column.kind, FloatType | DoubleType):
            counts["nans"][field_id] = sum(value is not None and math.isnan(value) for value in values)
        if told.lower_bound is not None:
            counts["lower"][field_id], counts["upper"][field_id] = told.lower_bound, told.upper_bound
    made = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path="f.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=len(rows),
        file_size_in_bytes=1,
        value_counts=counts["values"],
        null_value_counts=counts["nulls"],
        nan_value_counts=counts["nans"],
        lower_bounds=counts["lower"],
        upper_bounds=counts["upper"],
    )
    made.spec_id = spec.spec_id
    return made


def bound(name: str, transform: Transform[Any, Any], where: Any) -> Where:
    spec = PartitionSpec(partition_field(name, transform, 1000, "part"), spec_id=3)
    return bind_where(table_view(spec), where)


def keeps(name: str, transform: Transform[Any, Any], value: Any, where: Any) -> bool:
    """Whether the partition that a row with `value` lies in is kept."""
    filtered = bound(name, transform, where)
    return filtered.keeps_partition(3, partition_of({name: value}, [name], filtered.table.spec(3)))


def means(name: str, value: Any, where: Any) -> bool:
    return keeps(name, IdentityTransform(), value, where)
