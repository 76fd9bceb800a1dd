"""Convert a filter's constants to values of the column's type, and adapt tests whose constant the type cannot hold.

Constants are never rounded silently: for two decimals, `price < 5.255` becomes `price <= 5.25`, and `price = 5.255`
matches nothing. If engines disagree about a constant (a float column and 0.1; a date column and a text with a time of
day), the test matches every row that matches in any engine.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal
from enum import Enum
from typing import Any, Final, Literal
from uuid import UUID

from pyiceberg import types
from pyiceberg.types import PrimitiveType

from compactor.filter_syntax import Constant
from compactor.filters.predicates import NOTHING, Key, Leaf, Operator, Predicate, all_of, any_of

NANOS_PER_SECOND: Final = 1_000_000_000
NANOS_PER_DAY: Final = 86_400 * NANOS_PER_SECOND
_EPOCH: Final = dt.date(1970, 1, 1)
_EXACT: Final = Context(prec=400)
_DATE: Final = r"(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
_CLOCK: Final = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.(?P<fraction>\d{1,9}))?)?"
_ZONE: Final = r"(?P<zone>Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?)"
_MOMENT: Final = re.compile(rf"{_DATE}(?:[T ]{_CLOCK})? ?{_ZONE}?", re.IGNORECASE | re.ASCII)
_TIME: Final = re.compile(_CLOCK, re.ASCII)
_NOT_FINITE: Final = {"NAN": math.nan, "INF": math.inf, "INFINITY": math.inf, "-INF": -math.inf, "-INFINITY": -math.inf}


class Fit(Enum):
    """How a constant relates to the value of the column's type."""

    EXACT = "the value equals the constant"
    BELOW = "the constant lies between the value and the type's next value"
    CUT = "as BELOW, but some engines truncate the constant to the value"
    NEAR = "the value is the nearest to the constant"


@dataclass(frozen=True)
class Value:
    """A constant in the column's type, as Iceberg stores it (days, micros, nanos, Decimal, 16 bytes of a uuid, ...)."""

    stored: Any
    fit: Fit = Fit.EXACT


def value_of(kind: PrimitiveType, constant: Constant) -> Value:
    """A constant as a value of type `kind`.

    Raises:
        ValueError: the constant is not a value of this type; the message shows how to write one.
    """
    if type(kind) not in _TYPES:
        raise ValueError(f"columns of type {kind} cannot be compared in a filter")
    try:
        return _TYPES[type(kind)][0](kind, constant)
    except (ValueError, ArithmeticError):
        shown = repr(constant.value) if constant.kind == "text" else str(constant.value)
        raise ValueError(f"{shown} is not a value of type {kind}; write {example(kind)}") from None


_CALENDAR: Final = {
    "year": (re.compile(r"(\d{4})", re.ASCII), "2024"),
    "month": (re.compile(r"(\d{4})-(\d{2})", re.ASCII), "2024-01"),
    "hour": (re.compile(r"(\d{4})-(\d{2})-(\d{2})-(\d{2})", re.ASCII), "2024-01-15-10"),
}


def calendar_value(unit: str, constant: Constant) -> Value:
    """A year, month or hour, written as in the names of partition folders, as the number since 1970.

    Raises:
        ValueError: the constant is none; the message shows how to write one.
    """
    form, shown = _CALENDAR[unit]
    found = form.fullmatch(constant.value.strip()) if constant.kind == "text" else None
    try:
        if found is not None:
            year, month, day, hour = (*map(int, found.groups()), *(1, 1, 0)[len(found.groups()) - 1 :])
            moment = dt.datetime(year, month, day, hour)  # noqa: DTZ001 - a place in the calendar
            months = 12 * (moment.year - 1970) + moment.month - 1
            hours = (moment - dt.datetime(1970, 1, 1)) // dt.timedelta(hours=1)  # noqa: DTZ001
            return Value({"year": moment.year - 1970, "month": months, "hour": hours}[unit])
    except ValueError:
        pass
    given = repr(constant.value) if constant.kind == "text" else str(constant.value)
    raise ValueError(f"{given} is not a value of a partition field by {unit}; write '{shown}'")


def example(kind: PrimitiveType) -> str:
    """An example constant of this type."""
    return _TYPES[type(kind)][1] if type(kind) in _TYPES else "another column"


def compared(key: Key, name: str, operator: str, value: Value) -> Predicate:
    """The predicate `name operator value`; `operator` is one of `= != < <= > >=`."""
    if isinstance(value.stored, float) and math.isnan(value.stored):
        return _compared_with_nan(key, name, operator)
    wanted = _MEANING[value.fit].get(operator, _MEANING[Fit.EXACT][operator])
    if wanted is None:
        return NOTHING
    return Leaf(key, name, wanted, frozenset() if wanted is Operator.NOT_NULL else frozenset({value.stored}))


def listed(key: Key, name: str, values: Iterable[Value], negated: bool) -> Predicate:
    """The predicate `name IN (...)`, or `name NOT IN (...)`."""
    operator = "!=" if negated else "="
    tests = [compared(key, name, operator, value) for value in values]
    if not negated:
        return any_of(tests)
    excluded = [test for test in tests if isinstance(test, Leaf) and test.operator is Operator.NOT_IN]
    others = [test for test in tests if test not in excluded]
    if not excluded:
        return all_of(others)
    everything_excluded: frozenset[Any] = frozenset().union(*(leaf.values for leaf in excluded))
    return all_of([Leaf(key, name, Operator.NOT_IN, everything_excluded), *others])


_MEANING: Final[dict[Fit, dict[str, Operator | None]]] = {
    Fit.EXACT: {
        "=": Operator.IN,
        "!=": Operator.NOT_IN,
        "<": Operator.LESS,
        "<=": Operator.AT_MOST,
        ">": Operator.GREATER,
        ">=": Operator.AT_LEAST,
    },
    Fit.BELOW: {"=": None, "!=": Operator.NOT_NULL, "<": Operator.AT_MOST, ">=": Operator.GREATER},
    Fit.CUT: {"!=": Operator.NOT_NULL, "<": Operator.AT_MOST},
    Fit.NEAR: {"!=": Operator.NOT_NULL, "<": Operator.AT_MOST, ">": Operator.AT_LEAST},
}


def _compared_with_nan(key: Key, name: str, operator: str) -> Predicate:
    """NaN is greater than all values and equal to itself."""
    not_nan = all_of([Leaf(key, name, Operator.NOT_NAN), Leaf(key, name, Operator.NOT_NULL)])
    return {
        "=": Leaf(key, name, Operator.IS_NAN),
        ">=": Leaf(key, name, Operator.IS_NAN),
        "!=": not_nan,
        "<": not_nan,
        "<=": Leaf(key, name, Operator.NOT_NULL),
        ">": NOTHING,
    }[operator]


def _number(constant: Constant) -> Decimal:
    if constant.kind == "number":
        return Decimal(constant.value)
    if constant.kind != "text":
        raise ValueError(constant.kind)
    number = Decimal(constant.value.strip())
    if not number.is_finite():
        raise ValueError(constant.value)
    return number


def _scaled(constant: Constant, scale: int) -> tuple[int, Fit]:
    """The constant in units of 10**-scale. A quoted constant must be exact, since engines round text differently."""
    number = _number(constant)
    if abs(number.adjusted()) > _EXACT.prec // 2:
        raise ValueError(number)
    scaled = number.scaleb(scale, _EXACT)
    whole = scaled.to_integral_value(ROUND_FLOOR)
    if whole != scaled and constant.kind == "text":
        raise ValueError(constant.value)
    return int(whole), Fit.EXACT if whole == scaled else Fit.BELOW


def _integer(bits: int) -> Reader:
    def read(_kind: PrimitiveType, constant: Constant) -> Value:
        whole, fit = _scaled(constant, 0)
        within = -(2 ** (bits - 1)) <= whole < 2 ** (bits - 1)
        return Value(whole, fit if within else Fit.BELOW)  # out of range: equal to no value, but comparable

    return read


def _decimal(kind: PrimitiveType, constant: Constant) -> Value:
    scale, precision = kind.scale, kind.precision  # type: ignore[attr-defined]
    whole, fit = _scaled(constant, scale)
    digits = tuple(map(int, str(abs(whole))))
    stored = Decimal((int(whole < 0), digits, -scale))
    return Value(stored, fit if abs(whole) < 10**precision else Fit.BELOW)


def _double(_kind: PrimitiveType, constant: Constant) -> Value:
    if constant.kind == "text" and constant.value.strip().upper() in _NOT_FINITE:
        return Value(_NOT_FINITE[constant.value.strip().upper()])
    return Value(float(_number(constant)))


def _float(kind: PrimitiveType, constant: Constant) -> Value:
    wide = _double(kind, constant).stored
    if not math.isfinite(wide):
        return Value(wide)
    try:
        near = struct.unpack("<f", struct.pack("<f", wide))[0]
    except OverflowError:
        near = math.copysign(math.inf, wide)
    return Value(near, Fit.EXACT if Decimal(near) == _number(constant) else Fit.NEAR)


def _date(_kind: PrimitiveType, constant: Constant) -> Value:
    days, rest = divmod(_nanos(constant, zoned=False), NANOS_PER_DAY)
    return Value(days, Fit.CUT if rest else Fit.EXACT)


def _timestamp(zoned: bool, nanos_per_unit: int) -> Reader:
    def read(_kind: PrimitiveType, constant: Constant) -> Value:
        units, rest = divmod(_nanos(constant, zoned), nanos_per_unit)
        return Value(units, Fit.CUT if rest else Fit.EXACT)

    return read


def _nanos(constant: Constant, zoned: bool) -> int:
    """Nanoseconds since 1970, in UTC or without zone; a column without zone accepts no zone."""
    found = _MOMENT.fullmatch(constant.value.strip()) if constant.kind == "text" else None
    if found is None or (found["zone"] and not zoned):
        raise ValueError(constant.value)
    days = (dt.date(int(found["year"]), int(found["month"]), int(found["day"])) - _EPOCH).days
    return days * NANOS_PER_DAY + (_clock(found) if found["hour"] else 0) - _offset(found["zone"])


def _clock(found: re.Match[str]) -> int:
    moment = dt.time(int(found["hour"]), int(found["minute"]), int(found["second"] or 0))
    seconds = (moment.hour * 60 + moment.minute) * 60 + moment.second
    return seconds * NANOS_PER_SECOND + int((found["fraction"] or "").ljust(9, "0"))


_FARTHEST_ZONE: Final = 18 * 60
"""Minutes from UTC, as in java.time."""


def _offset(zone: str | None) -> int:
    digits = (zone or "").lstrip("+-").replace(":", "")
    if not digits.isdigit():
        return 0
    hours, minutes = (digits, "0") if len(digits) <= len("23") else (digits[:-2], digits[-2:])
    total = int(hours) * 60 + int(minutes)
    if int(minutes) >= 60 or total > _FARTHEST_ZONE:  # noqa: PLR2004 - minutes of an hour
        raise ValueError(zone)
    return (-1 if str(zone).startswith("-") else 1) * total * 60 * NANOS_PER_SECOND


def _time(_kind: PrimitiveType, constant: Constant) -> Value:
    found = _TIME.fullmatch(constant.value.strip()) if constant.kind == "text" else None
    if found is None:
        raise ValueError(constant.value)
    micros, rest = divmod(_clock(found), 1000)
    return Value(micros, Fit.CUT if rest else Fit.EXACT)


def _boolean(_kind: PrimitiveType, constant: Constant) -> Value:
    if constant.kind == "boolean":
        return Value(constant.value)
    if constant.kind == "text" and constant.value.lower() in {"true", "false"}:
        return Value(constant.value.lower() == "true")
    raise ValueError(constant.value)


def _uuid(_kind: PrimitiveType, constant: Constant) -> Value:
    if constant.kind == "bytes" and len(constant.value) == len(UUID(int=0).bytes):
        return Value(constant.value)
    if constant.kind != "text":
        raise ValueError(constant.value)
    return Value(UUID(constant.value.strip()).bytes)


def _as_written(wanted: Literal["text", "bytes"]) -> Reader:
    def read(_kind: PrimitiveType, constant: Constant) -> Value:
        if constant.kind != wanted:
            raise ValueError(constant.value)
        return Value(constant.value)

    return read


Reader = Callable[[PrimitiveType, Constant], Value]
_TYPES: Final[dict[type[PrimitiveType], tuple[Reader, str]]] = {
    types.BooleanType: (_boolean, "true"),
    types.IntegerType: (_integer(32), "12"),
    types.LongType: (_integer(64), "12"),
    types.FloatType: (_float, "1.5"),
    types.DoubleType: (_double, "1.5"),
    types.DecimalType: (_decimal, "12.50"),
    types.DateType: (_date, "'2024-01-15'"),
    types.TimeType: (_time, "'10:00:00'"),
    types.TimestampType: (
        _timestamp(zoned=False, nanos_per_unit=1000),
        "'2024-01-15 10:00:00' (no zone: the column has none)",
    ),
    types.TimestamptzType: (
        _timestamp(zoned=True, nanos_per_unit=1000),
        "'2024-01-15 10:00:00+01:00' (UTC without an offset)",
    ),
    types.TimestampNanoType: (
        _timestamp(zoned=False, nanos_per_unit=1),
        "'2024-01-15 10:00:00.123456789' (no zone: the column has none)",
    ),
    types.TimestamptzNanoType: (
        _timestamp(zoned=True, nanos_per_unit=1),
        "'2024-01-15 10:00:00.123456789+01:00' (UTC without an offset)",
    ),
    types.StringType: (_as_written("text"), "'text'"),
    types.UUIDType: (_uuid, "'f79c3e09-677c-4bbd-a479-3f349cb785e7'"),
    types.BinaryType: (_as_written("bytes"), "X'0aff'"),
    types.FixedType: (_as_written("bytes"), "X'0aff'"),
}
"""How to read a constant of each type, and an example."""
