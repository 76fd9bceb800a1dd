"""Bind a filter's syntax tree to a schema: names become field ids, constants become values, NOT moves into the leaves.

SQL's three-valued logic holds: a test of null is neither true nor false, so neither the test nor its negation matches.
"""

from __future__ import annotations

from typing import Final

from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, NestedField, PrimitiveType, StringType

from compactor.filter_syntax import Constant, Every, Negated, Node, Some, Test
from compactor.filters.predicates import EVERYTHING, NOTHING, Leaf, Predicate, all_of, any_of
from compactor.filters.predicates import Operator as LeafOperator
from compactor.filters.values import compared, listed, value_of


def bind(schema: Schema, node: Node, negated: bool = False) -> Predicate:
    """The predicate over field ids of `node`, or of its negation.

    Raises:
        ValueError: the column is unknown, or its type does not accept the constant.
    """
    match node:
        case Negated():
            return bind(schema, node.part, not negated)
        case Every() | Some():
            join = all_of if isinstance(node, Every) != negated else any_of
            return join([bind(schema, part, negated) for part in node.parts])
    return _bind_test(schema, node, negated)


_OPPOSITES: Final = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def _bind_test(schema: Schema, test: Test, negated: bool) -> Predicate:
    field = _column(schema, test.column)
    key, name = field.field_id, schema.find_column_name(field.field_id) or test.column
    if test.operator == "is null":
        return Leaf(key, name, LeafOperator.NOT_NULL if negated else LeafOperator.IS_NULL)
    kind = field.field_type
    if not isinstance(kind, PrimitiveType):
        raise ValueError(f"{test.column} is a {kind}; only its fields can be compared, as in {test.column}.field")  # noqa: TRY004 - an input, not a bug
    if test.operator == "is nan":
        return _nan_test(key, name, kind, negated)
    if test.operator == "like":
        return _like(key, name, kind, test.constants, negated)
    values = [value_of(kind, constant) for constant in test.constants]
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


def _nan_test(key: int, name: str, kind: PrimitiveType, negated: bool) -> Predicate:
    if isinstance(kind, FloatType | DoubleType):
        return Leaf(key, name, LeafOperator.NOT_NAN if negated else LeafOperator.IS_NAN)
    return EVERYTHING if negated else NOTHING


def _like(key: int, name: str, kind: PrimitiveType, constants: tuple[Constant, ...], negated: bool) -> Predicate:
    """LIKE: exact for a plain text or a prefix pattern; else a test of the prefix before the first wildcard."""
    if not isinstance(kind, StringType):
        raise ValueError(f"LIKE needs a column of strings; {name} is of type {kind}")  # noqa: TRY004 - an input
    if any(constant.kind != "text" for constant in constants):
        raise ValueError("LIKE takes a string in single quotes, e.g. 'abc%'")
    prefix, rest = _prefix_of_pattern(*(str(constant.value) for constant in constants))
    not_null = Leaf(key, name, LeafOperator.NOT_NULL)
    if not rest:
        return Leaf(key, name, LeafOperator.NOT_IN if negated else LeafOperator.IN, frozenset({prefix}))
    if set(rest) != {"%"} and negated:
        return not_null
    if not prefix:
        return NOTHING if negated else not_null
    return Leaf(key, name, LeafOperator.NOT_STARTS_WITH if negated else LeafOperator.STARTS_WITH, frozenset({prefix}))


def _prefix_of_pattern(pattern: str, escape: str = "\\") -> tuple[str, str]:
    """The text before the first wildcard, and the pattern from there on."""
    if len(escape) != 1:
        raise ValueError("ESCAPE takes one character")
    prefix: list[str] = []
    position = 0
    while position < len(pattern) and pattern[position] not in {"%", "_"} - {escape}:
        if pattern[position] == escape and position + 1 < len(pattern):
            position += 1
        prefix.append(pattern[position])
        position += 1
    return "".join(prefix), pattern[position:]
