"""Project a predicate over columns onto the partitions of one spec. The projection is *inclusive*: no row is lost.

If a row satisfies the predicate, its partition tuple satisfies the projection. PyIceberg's transforms (`project`)
project each leaf onto each partition field of its column; a leaf that cannot be projected matches every partition.
Differences from PyIceberg 0.12, as in Iceberg's Java code or safer:

- Iceberg 0.10 and earlier stored times before 1970 with a year, month, day or hour one too late: both values match
  (see `ProjectionUtil.fixInclusiveTimeProjection`).
- Java's truncation of the smallest ints and longs overflows: the overflowed value matches too.
- IS NULL of a required field in an optional struct may match, since the struct may be null; PyIceberg says never.
- A comparison with the end of Python's calendar is projected without its end point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final, cast

from pyiceberg import expressions, transforms, types
from pyiceberg.expressions import literals
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Accessor
from pyiceberg.types import PrimitiveType

from compactor.filters.predicates import (
    EVERYTHING,
    Leaf,
    Operator,
    Predicate,
    Transformed,
    all_of,
    as_text,
    possible_values,
    prefix_of,
    replaced,
)
from compactor.partitions import to_json


@dataclass(frozen=True)
class Buckets:
    """The number of buckets of one bucket field that a filter selects."""

    field: str
    selected: int
    of: int


@dataclass(frozen=True)
class Projection:
    """A filter over the partitions of one spec; the keys of the leaves are positions in the partition tuple."""

    predicate: Predicate
    text: str
    buckets: tuple[Buckets, ...] = ()


def project(predicate: Predicate, spec: PartitionSpec, kinds: Mapping[int, PrimitiveType]) -> Projection:
    """Project a predicate over columns onto one spec.

    Args:
        predicate: A predicate over columns: the keys of its leaves are field ids.
        spec: The partition spec.
        kinds: Column types by field id, at least for the columns of the predicate.
    """
    found = replaced(predicate, lambda leaf: _project(leaf, spec, kinds))
    buckets = {
        position: (field.name, field.transform.num_buckets)
        for position, field in enumerate(spec.fields)
        if isinstance(field.transform, transforms.BucketTransform)
    }

    def show(leaf: Leaf, value: Any) -> str:
        field = spec.fields[cast("int", leaf.key)]
        return shown(field.transform, kinds.get(field.source_id), value)

    return Projection(
        found,
        as_text(found, show, buckets.keys()),
        tuple(_buckets(found, position, *bucket) for position, bucket in buckets.items()),
    )


def _buckets(predicate: Predicate, position: int, name: str, of: int) -> Buckets:
    wanted = possible_values(predicate, position)
    return Buckets(name, of if wanted is None else len(wanted), of)


def _project(leaf: Leaf, spec: PartitionSpec, kinds: Mapping[int, PrimitiveType]) -> Predicate:
    if isinstance(leaf.key, Transformed):
        return all_of(
            _as_written(replace(leaf, key=position, name=field.name), field, kinds[field.source_id])
            for position, field in enumerate(spec.fields)
            if (field.source_id, str(field.transform)) == leaf.key
        )
    return all_of(
        _project_leaf(leaf, kinds[leaf.key], position, field)
        for position, field in enumerate(spec.fields)
        if field.source_id == leaf.key
    )


def _project_leaf(leaf: Leaf, kind: PrimitiveType, position: int, field: PartitionField) -> Predicate:
    is_pattern = leaf.operator in {Operator.MATCHES, Operator.NOT_MATCHES}
    if is_pattern and isinstance(field.transform, transforms.IdentityTransform):
        return replace(leaf, key=position, name=field.name)
    for weaker in _weaker_and_weaker(leaf):
        try:
            projected = field.transform.project(field.name, _bound(weaker, kind))
        except Exception:  # noqa: BLE001, S112 - a leaf that PyIceberg cannot project must keep all partitions
            continue
        if projected is not None:
            return _as_written(_leaf(projected, position, field), field, kind)
    return EVERYTHING


def _weaker_and_weaker(leaf: Leaf) -> Iterator[Leaf]:
    """The leaf, then weaker leaves that follow from it, for leaves that PyIceberg cannot project.

    PyIceberg moves the end point of `<` and `>` by one, which fails at the end of the calendar. Every test but IS NULL
    implies IS NOT NULL (except for `void`, transforms map only null to null).
    """
    yield leaf
    if leaf.operator in _WITH_END_POINT:
        yield replace(leaf, operator=_WITH_END_POINT[leaf.operator])
    if leaf.operator is Operator.MATCHES:
        yield replace(leaf, operator=Operator.STARTS_WITH, values=frozenset({prefix_of(leaf.value)}))
    if leaf.operator not in {Operator.IS_NULL, Operator.NOT_NAN}:
        yield Leaf(leaf.key, leaf.name, Operator.NOT_NULL)


_WITH_END_POINT: Final = {Operator.LESS: Operator.AT_MOST, Operator.GREATER: Operator.AT_LEAST}


def _bound(leaf: Leaf, kind: PrimitiveType) -> expressions.BoundPredicate:
    # Optional, even if the schema says required: PyIceberg folds IS NULL of a required field in a struct to "never".
    field = types.NestedField(field_id=cast("int", leaf.key), name=leaf.name, field_type=kind, required=False)
    column = expressions.BoundReference(field=field, accessor=Accessor(position=0))
    constants = {_literal(kind, value) for value in leaf.values}
    many = len(constants) > 1
    made = _BOUND_SETS[leaf.operator](column, constants) if many else _BOUND[leaf.operator](column, *constants)
    if not isinstance(made, expressions.BoundPredicate):
        raise TypeError(f"PyIceberg turns {leaf.operator} into {made}")
    return made


def _literal(kind: PrimitiveType, value: Any) -> literals.Literal[Any]:
    match kind:
        case types.DateType():
            return literals.DateLiteral(value)
        case types.TimestampType() | types.TimestamptzType():
            return literals.TimestampLiteral(value)
        case types.UUIDType():
            return literals.UUIDLiteral(value)
        case _:
            return literals.literal(value)


def _leaf(projected: expressions.BooleanExpression, position: int, field: PartitionField) -> Leaf:
    values: frozenset[Any] = frozenset()
    if isinstance(projected, expressions.LiteralPredicate):
        values = frozenset({projected.literal.value})
    elif isinstance(projected, expressions.SetPredicate):
        values = frozenset(each.value for each in projected.literals)
    return Leaf(position, field.name, _OPERATORS[type(projected)], values)


def _as_written(leaf: Leaf, field: PartitionField, kind: PrimitiveType) -> Predicate:
    """The leaf, plus the other partition values that writers store for the same columns."""
    if isinstance(field.transform, transforms.TimeTransform):
        days_of_dates = isinstance(kind, types.DateType) and isinstance(field.transform, transforms.DayTransform)
        return leaf if days_of_dates else _one_later_before_1970(leaf)
    if isinstance(field.transform, transforms.TruncateTransform) and isinstance(
        kind, types.IntegerType | types.LongType
    ):
        return _wrapped_around(leaf, field.transform.width)
    return leaf


def _one_later_before_1970(leaf: Leaf) -> Predicate:
    if leaf.operator is Operator.LESS:
        leaf = replace(leaf, operator=Operator.AT_MOST, values=frozenset({leaf.value - 1}))
    if leaf.operator is Operator.NOT_IN:
        values = frozenset(value for value in leaf.values if value > 0)
        if not values:
            return Leaf(leaf.key, leaf.name, Operator.NOT_NULL)
    elif leaf.operator is Operator.IN:
        values = leaf.values | {value + 1 for value in leaf.values if value < 0}
    elif leaf.operator is Operator.AT_MOST and leaf.value < 0:
        values = frozenset({leaf.value + 1})
    else:
        return leaf
    return replace(leaf, values=values)


def _wrapped_around(leaf: Leaf, width: int) -> Leaf:
    also = set()
    for smallest in (-(2**31), -(2**63)):  # the column may have been promoted from int to long
        truncated = smallest - smallest % width
        if truncated < smallest and _reaches_down_to(leaf, truncated):
            also.add(truncated - 2 * smallest)
    return replace(leaf, also=frozenset(also))


def _reaches_down_to(leaf: Leaf, value: int) -> bool:
    match leaf.operator:
        case Operator.IN:
            return value in leaf.values
        case Operator.LESS | Operator.AT_MOST:
            return bool(leaf.value >= value)
        case _:
            return False


_BOUND_SETS: Final[dict[Operator, Callable[..., Any]]] = {
    Operator.IN: expressions.BoundIn,
    Operator.NOT_IN: expressions.BoundNotIn,
}
_CLASSES: Final = {
    Operator.IN: "EqualTo",
    Operator.NOT_IN: "NotEqualTo",
    Operator.LESS: "LessThan",
    Operator.AT_MOST: "LessThanOrEqual",
    Operator.GREATER: "GreaterThan",
    Operator.AT_LEAST: "GreaterThanOrEqual",
    Operator.STARTS_WITH: "StartsWith",
    Operator.NOT_STARTS_WITH: "NotStartsWith",
    Operator.IS_NULL: "IsNull",
    Operator.NOT_NULL: "NotNull",
    Operator.IS_NAN: "IsNaN",
    Operator.NOT_NAN: "NotNaN",
}
"""PyIceberg's classes of tests with one literal or none."""
_BOUND: Final = {operator: getattr(expressions, f"Bound{name}") for operator, name in _CLASSES.items()}
_OPERATORS: Final[dict[type[expressions.BooleanExpression], Operator]] = {
    **{getattr(expressions, name): operator for operator, name in _CLASSES.items()},
    expressions.In: Operator.IN,
    expressions.NotIn: Operator.NOT_IN,
}


def shown(transform: transforms.Transform[Any, Any], source: PrimitiveType | None, value: Any) -> str:
    """A partition value for people: `2024-01`, `2024-01-15-10`, `'text'`, or a bucket number."""
    match transform:
        case transforms.YearTransform():
            return f"{1970 + value:04d}"
        case transforms.MonthTransform():
            return f"{1970 + value // 12:04d}-{value % 12 + 1:02d}"
        case transforms.DayTransform():
            return str(to_json(types.DateType(), value))
        case transforms.HourTransform():
            return str(to_json(types.TimestampType(), value * 3_600_000_000)).split(":")[0].replace("T", "-")
        case transforms.BucketTransform():
            return str(value)
    return shown_value(source, value)


def shown_value(kind: PrimitiveType | None, value: Any) -> str:
    """A column value as in a filter's text, but dates and times without quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(kind, types.StringType) and isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if kind is None or isinstance(value, float | Decimal):
        return str(value)
    written = to_json(kind, value)
    return f"X'{written}'" if isinstance(value, bytes) and not isinstance(kind, types.UUIDType) else str(written)
