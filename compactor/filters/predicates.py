"""Predicates over columns or partition fields, without NOT: test one value, or all values between bounds.

Null satisfies only IS NULL, as in SQL (and IS NOT NAN). NaN is greater than every number and equal to itself, as in
Spark. Values that cannot be compared match: a predicate selects files to look at and must not lose a row.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import takewhile
from typing import Any, Final, NamedTuple


class Operator(Enum):
    """The test of a leaf; IN and NOT IN also stand for `=` and `!=`.

    MATCHES has a pattern of LIKE, with a backslash as escape; STARTS_WITH the text before the only `%`, at the end.
    """

    IN = "IN"
    NOT_IN = "NOT IN"
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="
    STARTS_WITH = "LIKE"
    NOT_STARTS_WITH = "NOT LIKE"
    MATCHES = "matches"
    NOT_MATCHES = "does not match"
    IS_NULL = "IS NULL"
    NOT_NULL = "IS NOT NULL"
    IS_NAN = "IS NAN"
    NOT_NAN = "IS NOT NAN"


class Transformed(NamedTuple):
    """The key of a column's values after a transform of a partition spec, as Iceberg writes it: `bucket[16]`, `day`."""

    source: int
    transform: str


Key = int | Transformed


@dataclass(frozen=True)
class Leaf:
    """One test of one value.

    Attributes:
        key: A field id of a schema, or one with a transform, or a position in a partition tuple.
        name: The name of the column or partition field.
        operator: The test.
        values: Constants as Iceberg stores them (days, microseconds, uuids as 16 bytes): one, or any number for IN.
        also: More values that match, because of how writers store some values; not shown to people.
    """

    key: Key
    name: str
    operator: Operator
    values: frozenset[Any] = frozenset()
    also: frozenset[Any] = frozenset()

    @property
    def value(self) -> Any:
        """The one constant of a comparison."""
        return next(iter(self.values))


@dataclass(frozen=True)
class AllOf:
    """AND; without parts, everything matches."""

    parts: tuple[Predicate, ...] = ()


@dataclass(frozen=True)
class AnyOf:
    """OR; without parts, nothing matches."""

    parts: tuple[Predicate, ...] = ()


Predicate = Leaf | AllOf | AnyOf
EVERYTHING: Final = AllOf()
NOTHING: Final = AnyOf()


@dataclass(frozen=True)
class Bounds:
    """Bounds of many values: none is below `lower` or above `upper` (None: unknown).

    `nulls`, `nans`, `values`: whether nulls, NaN and other values may occur.
    """

    lower: Any = None
    upper: Any = None
    nulls: bool = True
    nans: bool = True
    values: bool = True


UNKNOWN_BOUNDS: Final = Bounds()


def all_of(parts: Iterable[Predicate]) -> Predicate:
    """AND of `parts`, flat and without duplicates."""
    kept: dict[Predicate, None] = {}
    for part in parts:
        if part == NOTHING:
            return NOTHING
        kept.update(dict.fromkeys(part.parts if isinstance(part, AllOf) else (part,)))
    return next(iter(kept)) if len(kept) == 1 else AllOf(tuple(kept))


def any_of(parts: Iterable[Predicate]) -> Predicate:
    """OR of `parts`, flat, without duplicates, with the IN sets of one key united."""
    kept: dict[Any, Predicate] = {}
    for part in parts:
        if part == EVERYTHING:
            return EVERYTHING
        for each in part.parts if isinstance(part, AnyOf) else (part,):
            if isinstance(each, Leaf) and each.operator is Operator.IN:
                before = kept.get(each.key)
                if isinstance(before, Leaf):
                    united = (before.values | each.values, before.also | each.also)
                    kept[each.key] = Leaf(each.key, each.name, Operator.IN, *united)
                else:
                    kept[each.key] = each
            else:
                kept[each] = each
    found = tuple(kept.values())
    return found[0] if len(found) == 1 else AnyOf(found)


def narrowed(predicate: Predicate) -> Predicate:
    """An equal predicate with simpler ANDs: other tests of a key are evaluated on the values of its `=` or IN.

    It matches the same rows but fewer partitions: `a = 1 AND (a > 5 OR b = 2)` becomes `a = 1 AND b = 2`, which also
    narrows `b`.
    """
    match predicate:
        case AnyOf():
            return any_of(map(narrowed, predicate.parts))
        case AllOf():
            parts = list(map(narrowed, predicate.parts))
        case _:
            return predicate
    for index, leaf in enumerate(parts):
        if not isinstance(leaf, Leaf) or leaf.operator is not Operator.IN or leaf.also:
            continue
        others = [part for part in parts if part is not leaf]
        values = frozenset(
            value for value in leaf.values if all(_given(part, leaf.key, value) != NOTHING for part in others)
        )
        if not values:
            return NOTHING
        if len(values) == 1:
            parts = [_given(part, leaf.key, next(iter(values))) for part in parts]
        parts[index] = replace(leaf, values=values)
    made = all_of(parts)
    return made if made == predicate else narrowed(made)


def _given(predicate: Predicate, key: Key, value: Any) -> Predicate:
    """The remaining predicate over the other keys if `key` has this value."""

    def rest(leaf: Leaf) -> Predicate:
        if leaf.key != key:
            return leaf
        return EVERYTHING if matches(leaf, lambda _key: value) else NOTHING

    return replaced(predicate, rest)


def replaced(predicate: Predicate, new: Callable[[Leaf], Predicate]) -> Predicate:
    """The predicate with `new(leaf)` in place of each leaf."""
    match predicate:
        case AllOf():
            return all_of(replaced(part, new) for part in predicate.parts)
        case AnyOf():
            return any_of(replaced(part, new) for part in predicate.parts)
    return new(predicate)


def matches(predicate: Predicate, value_of: Callable[[Any], Any]) -> bool:
    """Whether one row or partition tuple satisfies `predicate`; True if a value is missing or cannot be compared."""
    return _holds(predicate, lambda leaf: _satisfies(leaf, value_of(leaf.key)))


def _holds(predicate: Predicate, test: Callable[[Leaf], bool]) -> bool:
    """Whether `predicate` holds by the tests of its leaves; a leaf whose test fails with an error holds."""
    match predicate:
        case AllOf():
            return all(_holds(part, test) for part in predicate.parts)
        case AnyOf():
            return any(_holds(part, test) for part in predicate.parts)
    try:
        return test(predicate)
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
        return True


def pattern_parts(pattern: str, escape: str = "\\") -> list[tuple[str, bool]]:
    """The characters of a pattern of LIKE, and whether each is a wildcard."""
    parts: list[tuple[str, bool]] = []
    position = 0
    while position < len(pattern):
        escaped = pattern[position] == escape and position + 1 < len(pattern)
        position += escaped
        parts.append((pattern[position], not escaped and pattern[position] in {"%", "_"} - {escape}))
        position += 1
    return parts


_WILDCARDS: Final = {"%": ".*", "_": "."}


@lru_cache(maxsize=64)
def _expression(pattern: str) -> re.Pattern[str]:
    parts = pattern_parts(pattern)
    return re.compile("".join(_WILDCARDS[each] if wild else re.escape(each) for each, wild in parts), re.DOTALL)


def _satisfies(leaf: Leaf, value: Any) -> bool:
    if value is None:
        return leaf.operator in {Operator.IS_NULL, Operator.NOT_NAN}
    if leaf.operator in _COMPARISONS:
        return value in leaf.also or _COMPARISONS[leaf.operator](value, leaf.value)
    match leaf.operator:
        case Operator.IN:
            return value in leaf.values or value in leaf.also
        case Operator.NOT_IN:
            return value not in leaf.values
        case Operator.IS_NAN | Operator.NOT_NAN:
            return _is_nan(value) == (leaf.operator is Operator.IS_NAN)
        case _:
            return leaf.operator is Operator.NOT_NULL


_COMPARISONS: Final[dict[Operator, Callable[[Any, Any], bool]]] = {
    Operator.LESS: lambda value, limit: value < limit,  # never true of NaN
    Operator.AT_MOST: lambda value, limit: value <= limit,
    Operator.GREATER: lambda value, limit: _is_nan(value) or value > limit,
    Operator.AT_LEAST: lambda value, limit: _is_nan(value) or value >= limit,
    Operator.STARTS_WITH: lambda value, prefix: value.startswith(prefix),
    Operator.NOT_STARTS_WITH: lambda value, prefix: not value.startswith(prefix),
    Operator.MATCHES: lambda value, pattern: _expression(pattern).fullmatch(value) is not None,
    Operator.NOT_MATCHES: lambda value, pattern: _expression(pattern).fullmatch(value) is None,
}


def prefix_of(pattern: str) -> str:
    """The text that every match of a pattern begins with."""
    return "".join(each for each, _ in takewhile(lambda part: not part[1], pattern_parts(pattern)))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value  # noqa: PLR0124 - only NaN differs from itself


def may_match(predicate: Predicate, bounds_of: Callable[[Any], Bounds]) -> bool:
    """Whether any value within the bounds may satisfy `predicate`; each leaf is tested alone, so True too often."""
    return _holds(predicate, lambda leaf: _may_satisfy(leaf, bounds_of(leaf.key)))


def _may_satisfy(leaf: Leaf, bounds: Bounds) -> bool:
    match leaf.operator:
        case Operator.IS_NULL:
            return bounds.nulls
        case Operator.IS_NAN:
            return bounds.nans
        case Operator.NOT_NAN:
            return bounds.nulls or bounds.values
        case Operator.NOT_NULL:
            return bounds.nans or bounds.values
        case Operator.GREATER | Operator.AT_LEAST | Operator.NOT_IN if bounds.nans:
            return True
        case _:
            return bounds.values and _any_satisfies(leaf, bounds)


def _any_satisfies(leaf: Leaf, bounds: Bounds) -> bool:
    """Whether a value that is neither null nor NaN may satisfy a leaf with constants."""
    if bounds.lower is not None and bounds.lower == bounds.upper:  # then all are this one
        return _satisfies(leaf, bounds.lower)
    return _reaches(leaf, bounds.lower, bounds.upper) or any(_inside(value, bounds) for value in leaf.also)


def _reaches(leaf: Leaf, lower: Any, upper: Any) -> bool:
    """Whether a value between the bounds, of which there are several, may satisfy a leaf with constants."""
    if leaf.operator in {Operator.NOT_IN, Operator.NOT_MATCHES}:
        return True
    if leaf.operator is Operator.MATCHES:
        leaf = replace(leaf, operator=Operator.STARTS_WITH, values=frozenset({prefix_of(leaf.value)}))
    if leaf.operator is Operator.IN:
        ordered = _ordered(leaf.values)
        first = 0 if lower is None else bisect_left(ordered, lower)
        return first < len(ordered) and (upper is None or ordered[first] <= upper)
    if leaf.operator is Operator.NOT_STARTS_WITH:
        # False only if both bounds have the prefix, and so all values between them.
        known = lower is not None and upper is not None
        return not (known and lower.startswith(leaf.value) and upper.startswith(leaf.value))
    if leaf.operator is Operator.STARTS_WITH:
        length = len(leaf.value)
        return (lower is None or lower[:length] <= leaf.value) and (upper is None or upper[:length] >= leaf.value)
    bound = lower if leaf.operator in {Operator.LESS, Operator.AT_MOST} else upper
    return bound is None or _COMPARISONS[leaf.operator](bound, leaf.value)


@lru_cache(maxsize=64)
def _ordered(values: frozenset[Any]) -> tuple[Any, ...]:
    """Cached: thousands of constants of one list may be compared with thousands of manifests."""
    return tuple(sorted(values))


def _inside(value: Any, bounds: Bounds) -> bool:
    return (bounds.lower is None or bounds.lower <= value) and (bounds.upper is None or bounds.upper >= value)


def possible_values(predicate: Predicate, key: int) -> frozenset[Any] | None:
    """The values of `key` that `predicate` allows for any other keys; None if no leaf limits them to a set."""
    match predicate:
        case AllOf():
            sets = [found for part in predicate.parts if (found := possible_values(part, key)) is not None]
            return frozenset.intersection(*sets) if sets else None
        case AnyOf():
            united: frozenset[Any] = frozenset()
            for part in predicate.parts:
                found = possible_values(part, key)
                if found is None:
                    return None
                united |= found
            return united
    if predicate.key != key:
        return None
    if predicate.operator is Operator.IN:
        return predicate.values | predicate.also
    return frozenset() if predicate.operator is Operator.IS_NULL else None


def as_text(predicate: Predicate, show: Callable[[Leaf, Any], str], sets: AbstractSet[Key] = frozenset()) -> str:
    """SQL-like text. `TRUE`: everything matches, `FALSE`: nothing does.

    Args:
        predicate: The predicate to write.
        show: Formats one value of a leaf.
        sets: Keys whose values are always written as sets, e.g. bucket numbers: `IN (2)`, not `= 2`.
    """
    match predicate:
        case AllOf():
            joined, empty = " AND ", "TRUE"
        case AnyOf():
            joined, empty = " OR ", "FALSE"
        case _:
            return _leaf_text(predicate, show, predicate.key in sets)
    texts = [as_text(part, show, sets) for part in predicate.parts]
    return (
        joined.join(
            text if isinstance(part, Leaf) else f"({text})" for part, text in zip(predicate.parts, texts, strict=True)
        )
        or empty
    )


_MOST_VALUES_SHOWN: Final = 20


def _leaf_text(leaf: Leaf, show: Callable[[Leaf, Any], str], always_set: bool) -> str:
    if leaf.operator in {Operator.IN, Operator.NOT_IN}:
        if len(leaf.values) == 1 and not always_set:
            return f"{leaf.name} {'=' if leaf.operator is Operator.IN else '!='} {show(leaf, leaf.value)}"
        texts = [show(leaf, value) for value in sorted(leaf.values)]
        more = len(texts) - _MOST_VALUES_SHOWN
        listed = ", ".join(texts[:_MOST_VALUES_SHOWN]) + (f", ... {more:,} more" if more > 0 else "")
        return f"{leaf.name} {leaf.operator.value} ({listed})"
    if leaf.operator in {Operator.STARTS_WITH, Operator.NOT_STARTS_WITH}:
        escaped = leaf.value.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("'", "''")
        return f"{leaf.name} {leaf.operator.value} '{escaped}%'"
    if leaf.operator in {Operator.MATCHES, Operator.NOT_MATCHES}:
        negated = "NOT " if leaf.operator is Operator.NOT_MATCHES else ""
        quoted = leaf.value.replace("'", "''")
        return f"{leaf.name} {negated}LIKE '{quoted}'"
    if not leaf.values:
        return f"{leaf.name} {leaf.operator.value}"
    return f"{leaf.name} {leaf.operator.value} {show(leaf, leaf.value)}"
