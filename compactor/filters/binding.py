"""Bind a filter's syntax tree to a schema: names become field ids, constants become values, NOT moves into the leaves.

SQL's three-valued logic holds: a test of null is neither true nor false, so neither the test nor its negation matches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
)
from pyiceberg.types import (
    DateType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    NestedField,
    PrimitiveType,
    StringType,
)

from compactor.filter_syntax import Constant, Every, Negated, Node, Some, Test
from compactor.filters.predicates import (
    EVERYTHING,
    NOTHING,
    Key,
    Leaf,
    Predicate,
    Transformed,
    all_of,
    any_of,
    pattern_parts,
    prefix_of,
)
from compactor.filters.predicates import Operator as LeafOperator
from compactor.filters.values import Value, calendar_value, compared, listed, value_of


def bind(schema: Schema, node: Node, specs: Iterable[PartitionSpec] = (), negated: bool = False) -> Predicate:
    """The predicate over field ids of `node`, or of its negation. `specs`: of partition fields that it may name.

    Raises:
        ValueError: the column is unknown, or its type does not accept the constant.
    """
    match node:
        case Negated():
            return bind(schema, node.part, specs, not negated)
        case Every() | Some():
            join = all_of if isinstance(node, Every) != negated else any_of
            return join([bind(schema, part, specs, negated) for part in node.parts])
    return _bind_test(_term(schema, specs, node), node, negated)


@dataclass(frozen=True)
class _Term:
    """What a test is about. `unit`: years, months or hours since 1970 are compared, which text names by the calendar;
    `numbers`: may be given too, as to the functions.
    """

    key: Key
    name: str
    kind: IcebergType
    unit: str = ""
    numbers: bool = True

    def value(self, kind: PrimitiveType, constant: Constant) -> Value:
        if not self.unit or (self.numbers and constant.kind == "number"):
            return value_of(kind, constant)
        return calendar_value(self.unit, constant)


def _term(schema: Schema, specs: Iterable[PartitionSpec], test: Test) -> _Term:
    """A column; a transform of one that a spec has; or, where there is no such column, a partition field's name."""
    fields = [
        each
        for spec in specs
        for each in spec.fields
        if schema.find_column_name(each.source_id) and not isinstance(each.transform, VoidTransform)
    ]
    if test.transform:
        source = _column(schema, test.column)
        found = {
            each.transform
            for each in fields
            if (each.source_id, str(each.transform)) == (source.field_id, test.transform)
        }
        if not found:
            known = sorted({f"{each.transform}({schema.find_column_name(each.source_id)})" for each in fields})
            raise ValueError(
                f"the table is not partitioned by {test.transform}({test.column})"
                + (f", but by {', '.join(known)}" if known else "")
            )
        return _transformed(source, found.pop(), f"{test.transform}({source.name})")
    if test.column.lower() not in map(str.lower, schema.column_names):
        named = {(each.source_id, each.transform) for each in fields if each.name.lower() == test.column.lower()}
        if len(named) > 1:
            raise ValueError(
                f"partition specs mean different things by {test.column}: name the transform and the column"
            )
        for source_id, transform in named:
            term = _transformed(schema.find_field(source_id), transform, test.column)
            return replace(term, numbers=False)
    field = _column(schema, test.column)
    return _Term(field.field_id, schema.find_column_name(field.field_id) or test.column, field.field_type)


def _transformed(source: NestedField, transform: Transform[Any, Any], name: str) -> _Term:
    key = Transformed(source.field_id, str(transform))
    match transform:
        case IdentityTransform():
            return _Term(source.field_id, source.name, source.field_type)
        case TruncateTransform():
            return _Term(key, name, source.field_type)
        case DayTransform():
            return _Term(key, name, DateType())
        case BucketTransform():
            return _Term(key, name, IntegerType())
        case _:
            return _Term(key, name, IntegerType(), unit=str(transform))


_OPPOSITES: Final = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def _bind_test(term: _Term, test: Test, negated: bool) -> Predicate:
    key, name, kind = term.key, term.name, term.kind
    if test.operator == "is null":
        return Leaf(key, name, LeafOperator.NOT_NULL if negated else LeafOperator.IS_NULL)
    if not isinstance(kind, PrimitiveType):
        raise ValueError(f"{test.column} is a {kind}; only its fields can be compared, as in {test.column}.field")  # noqa: TRY004 - an input, not a bug
    if test.operator == "is nan":
        return _nan_test(key, name, kind, negated)
    if test.operator == "like":
        return _like(key, name, kind, test.constants, negated)
    values = [term.value(kind, constant) for constant in test.constants]
    if test.operator == "in":
        return listed(key, name, values, negated)
    return compared(key, name, _OPPOSITES[test.operator] if negated else test.operator, values[0])


def _column(schema: Schema, name: str) -> NestedField:
    """The field with this full name; else the only field whose name differs in case only."""
    known = schema.column_names
    found = [name] if name in known else [each for each in known if each.lower() == name.lower()]
    if len(found) != 1:
        raise ValueError(f"{name} could be any of {', '.join(found)}" if found else f"there is no column {name}")
    field = schema.find_field(found[0])
    try:
        schema.accessor_for_field(field.field_id)
    except ValueError:
        raise ValueError(f"{name} lies in a list or map: a row has many values of it") from None
    return field


def _nan_test(key: Key, name: str, kind: PrimitiveType, negated: bool) -> Predicate:
    if isinstance(kind, FloatType | DoubleType):
        return Leaf(key, name, LeafOperator.NOT_NAN if negated else LeafOperator.IS_NAN)
    return EVERYTHING if negated else NOTHING


def _like(key: Key, name: str, kind: PrimitiveType, constants: tuple[Constant, ...], negated: bool) -> Predicate:
    """LIKE: a plain text, a prefix, or a pattern, which is exact for partition values and else tests its prefix."""
    if not isinstance(kind, StringType):
        raise ValueError(f"LIKE needs a column of strings; {name} is of type {kind}")  # noqa: TRY004 - an input
    if any(constant.kind != "text" for constant in constants):
        raise ValueError("LIKE takes a string in single quotes, e.g. 'abc%'")
    escape = str(constants[1].value) if len(constants) > 1 else "\\"
    if len(escape) != 1:
        raise ValueError("ESCAPE takes one character")
    parts = pattern_parts(str(constants[0].value), escape)
    pattern = "".join(each if wild or each not in "\\%_" else f"\\{each}" for each, wild in parts)
    prefix = prefix_of(pattern)
    rest = parts[len(prefix) :]
    if not rest:
        return Leaf(key, name, LeafOperator.NOT_IN if negated else LeafOperator.IN, frozenset({prefix}))
    if set(rest) != {("%", True)}:
        return Leaf(key, name, LeafOperator.NOT_MATCHES if negated else LeafOperator.MATCHES, frozenset({pattern}))
    if not prefix:
        return NOTHING if negated else Leaf(key, name, LeafOperator.NOT_NULL)
    return Leaf(key, name, LeafOperator.NOT_STARTS_WITH if negated else LeafOperator.STARTS_WITH, frozenset({prefix}))
