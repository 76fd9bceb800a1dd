"""Partition keys: the (spec, partition) identity that debt, plans and commits share.

A partition tuple is stored as a JSON array in Iceberg's single-value serialization (spec appendix D): dates as ISO
text, decimals as text at the exact scale, binary and fixed as hex, null as null. The text is hashable, sortable,
printable, and readable by Iceberg's Java parsers in the commit.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from pyiceberg import types as iceberg
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, VoidTransform
from pyiceberg.types import DecimalType, PrimitiveType, UnknownType

JsonValue = None | bool | int | float | str

LOST_COLUMN = "partition field {field} lost its column: Iceberg cannot read the partition values any more"
NOT_FINITE = "a partition value is NaN or infinite"
MICROS_PER_SECOND = 1_000_000
NANOS_PER_SECOND = 1_000_000_000


class PartitionKey(NamedTuple):
    """One partition of one partition spec. `values` is the canonical JSON array of the partition tuple.

    A named tuple, because plans compare tens of thousands of them.
    """

    spec_id: int
    values: str

    @property
    def tuple_json(self) -> list[JsonValue]:
        """The partition tuple as JSON values, in the spec's field order."""
        loaded: list[JsonValue] = json.loads(self.values)
        return loaded

    @property
    def commits_as_json(self) -> bool:
        """False if a value is NaN or infinite: Iceberg's JSON content-file parser rejects them."""
        return not any(isinstance(value, float) and not math.isfinite(value) for value in self.tuple_json)


@dataclass(frozen=True)
class PartitionLayout:
    """Field names and result types of one spec's partition tuples, and which fields are buckets or void.

    `field_ids`: by which manifests are read: their records may list the fields in another order (spec).
    `orphans`: names of fields whose source column was dropped (`TableView.orphans`).
    """

    spec_id: int
    names: tuple[str, ...]
    types: tuple[PrimitiveType, ...]
    bucket_fields: tuple[int, ...]
    void_fields: tuple[int, ...] = ()
    orphans: tuple[str, ...] = ()
    field_ids: tuple[int, ...] = ()

    @property
    def is_unpartitioned(self) -> bool:
        """No field, or only void fields (V1 tables keep dropped fields so). Its equality deletes are global."""
        return len(self.void_fields) == len(self.names)

    @classmethod
    def of(cls, spec: PartitionSpec, schema: Schema) -> PartitionLayout:
        """The layout of `spec`. `schema`: any schema of the table that has the spec's source columns."""
        types = tuple(_result_type(field.field_type) for field in spec.partition_type(schema).fields)
        buckets = tuple(i for i, field in enumerate(spec.fields) if isinstance(field.transform, BucketTransform))
        voids = tuple(i for i, field in enumerate(spec.fields) if isinstance(field.transform, VoidTransform))
        names, ids = tuple(field.name for field in spec.fields), tuple(field.field_id for field in spec.fields)
        return cls(spec.spec_id, names, types, buckets, voids, field_ids=ids)

    def key(self, values: Iterable[Any]) -> PartitionKey:
        """The key of a partition tuple as PyIceberg decodes it from a manifest entry."""
        encoded = [to_json(kind, value) for kind, value in zip(self.types, values, strict=True)]
        return PartitionKey(self.spec_id, json.dumps(encoded, separators=(",", ":"), ensure_ascii=False))

    def values(self, key: PartitionKey) -> tuple[Any, ...]:
        """Inverse of `key`: the partition tuple as PyIceberg decodes it from a manifest entry."""
        return tuple(from_json(kind, value) for kind, value in zip(self.types, key.tuple_json, strict=True))

    def readable(self, key: PartitionKey) -> dict[str, JsonValue]:
        """Field name → value, for display and JSON output. `{}` if unpartitioned.

        JSON has no NaN and no infinity: they are the texts `NaN`, `Infinity` and `-Infinity`.
        """
        return dict(zip(self.names, map(_finite, key.tuple_json), strict=True))

    def not_as_json(self, key: PartitionKey) -> str | None:
        """Why Iceberg cannot read this partition from JSON, and so commits no file of it; None if it can."""
        if self.orphans:  # Java gives such a field the type `unknown`, for which it parses no value
            return LOST_COLUMN.format(field=self.orphans[0])
        return None if key.commits_as_json else NOT_FINITE

    def bucket(self, key: PartitionKey) -> int | None:
        """The bucket number if the spec has exactly one bucket field, else None."""
        if len(self.bucket_fields) != 1:
            return None
        value = key.tuple_json[self.bucket_fields[0]]
        return value if isinstance(value, int) else None


def partition_text(partition: Mapping[str, JsonValue]) -> str:
    """Partition as text for reports, logs and the history; a null is `null`."""
    values = ((name, "null" if value is None else value) for name, value in partition.items())
    return ", ".join(f"{name}={value}" for name, value in values) or "(unpartitioned)"


def _finite(value: JsonValue) -> JsonValue:
    """The value; `NaN`, `Infinity` and `-Infinity` as text."""
    return json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value


def _result_type(field_type: Any) -> PrimitiveType:
    if not isinstance(field_type, PrimitiveType):
        raise TypeError(f"partition field of non-primitive type {field_type}")
    return field_type


def to_json(kind: PrimitiveType, value: Any) -> JsonValue:
    """One partition value in Iceberg's JSON single-value form, from any Python type that PyIceberg returns for it."""
    if value is None:
        return None
    form = _FORMS.get(type(kind))
    if form is not None:
        return form[0](kind, value)
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(kind, UnknownType):  # of a lost column: the files are counted, and never rewritten (LOST_COLUMN)
        return value.hex() if isinstance(value, bytes) else str(value)
    raise TypeError(f"cannot write partition value {value!r} of type {kind} as JSON")


def _date(value: int | dt.date) -> str:
    return value.isoformat() if isinstance(value, dt.date) else _civil(value)


def _civil(days: int) -> str:
    """ISO date of a day number, also outside the years of Python's `date`."""
    text = str(np.datetime64(days, "D"))
    month_and_day = text[-len("-MM-DD") :]
    year = int(text.removesuffix(month_and_day))
    # java.time requires a plus sign for years of five digits
    sign = "-" if year < 0 else "+" if year > dt.MAXYEAR else ""
    return f"{sign}{abs(year):04d}{month_and_day}"


def _time(value: int | dt.time) -> str:
    if isinstance(value, dt.time):
        value = ((value.hour * 60 + value.minute) * 60 + value.second) * MICROS_PER_SECOND + value.microsecond
    return _clock(value, MICROS_PER_SECOND)


def _timestamp(value: int | dt.datetime, units: int, zone: str) -> str:
    if isinstance(value, dt.datetime):
        naive = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
        delta = naive - dt.datetime(1970, 1, 1)  # noqa: DTZ001 - arithmetic on the spec's zone-free epoch
        whole_seconds = delta.days * 86_400 + delta.seconds
        value = whole_seconds * units + delta.microseconds * (units // MICROS_PER_SECOND)
    days, within = divmod(value, 86_400 * units)
    return f"{_civil(days)}T{_clock(within, units)}{zone}"


def _clock(units_of_day: int, units: int) -> str:
    seconds, fraction = divmod(units_of_day, units)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    if not fraction:
        return clock
    return f"{clock}.{fraction:0{len(str(units)) - 1}d}"


def _decimal(kind: PrimitiveType, value: Any) -> str:
    return f"{Decimal(value):.{kind.scale}f}" if isinstance(kind, DecimalType) else str(value)


def _uuid(value: Any) -> str:
    return str(value if isinstance(value, UUID) else UUID(bytes=bytes(value)))


def from_json(kind: PrimitiveType, value: JsonValue) -> Any:
    """Inverse of `to_json`, in the types that PyIceberg decodes: days, micro- and nanoseconds as numbers."""
    if value is None:
        return None
    form = _FORMS.get(type(kind))
    return form[1](str(value)) if form is not None else value


def _days(text: str) -> int:
    return int(np.datetime64(text.removeprefix("+"), "D").astype(np.int64))


def _units_of_day(text: str, units: int) -> int:
    clock, _, fraction = text.partition(".")
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    return ((hours * 60 + minutes) * 60 + seconds) * units + int(fraction or 0)


def _units(text: str, units: int) -> int:
    days, _, clock = text.removesuffix("+00:00").partition("T")
    return _days(days) * 86_400 * units + _units_of_day(clock, units)


Form = tuple[Callable[[PrimitiveType, Any], JsonValue], Callable[[str], Any]]
"""How values of a type are written as JSON, and read again."""


def _timestamps(units: int, zone: str) -> Form:
    return (lambda _kind, value: _timestamp(value, units, zone)), (lambda text: _units(text, units))


_BYTES: Form = (lambda _kind, value: bytes(value).hex(), bytes.fromhex)
_FORMS: dict[type[PrimitiveType], Form] = {
    iceberg.DateType: (lambda _kind, value: _date(value), _days),
    iceberg.TimeType: (lambda _kind, value: _time(value), lambda text: _units_of_day(text, MICROS_PER_SECOND)),
    iceberg.TimestampType: _timestamps(MICROS_PER_SECOND, ""),
    iceberg.TimestamptzType: _timestamps(MICROS_PER_SECOND, "+00:00"),
    iceberg.TimestampNanoType: _timestamps(NANOS_PER_SECOND, ""),
    iceberg.TimestamptzNanoType: _timestamps(NANOS_PER_SECOND, "+00:00"),
    DecimalType: (_decimal, Decimal),
    iceberg.UUIDType: (lambda _kind, value: _uuid(value), UUID),
    iceberg.BinaryType: _BYTES,
    iceberg.FixedType: _BYTES,
}
