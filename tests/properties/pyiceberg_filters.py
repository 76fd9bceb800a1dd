"""PyIceberg's parsed filters as syntax trees of ours, to compare the two parsers."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from pyiceberg.expressions import (
    AlwaysTrue,
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
    Or,
)

from compactor.filter_syntax import Constant, Every, Negated, Node, Operator, Some, Test

OPERATORS: dict[type[Any], Operator] = {
    EqualTo: "=",
    NotEqualTo: "!=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    In: "in",
    NotIn: "in",
    IsNull: "is null",
    NotNull: "is null",
    IsNaN: "is nan",
    NotNaN: "is nan",
}


def node_of(expression: Any) -> Node:
    """The syntax tree of an unbound PyIceberg expression, as its parser makes it of text."""
    match expression:
        case And() | Or():
            parts = (node_of(expression.left), node_of(expression.right))
            return Every(parts) if isinstance(expression, And) else Some(parts)
        case Not():
            return Negated(node_of(expression.child))
    if type(expression) not in OPERATORS:
        return Every(()) if isinstance(expression, AlwaysTrue) else Some(())
    test = Test(expression.term.name, OPERATORS[type(expression)], constants_of(expression))
    return Negated(test) if isinstance(expression, NotIn | NotNull | NotNaN) else test


def constants_of(expression: Any) -> tuple[Constant, ...]:
    literals = getattr(expression, "literals", None) or ([expression.literal] if hasattr(expression, "literal") else [])
    return tuple(constant_of(each.value) for each in literals)


def constant_of(value: Any) -> Constant:
    if isinstance(value, bool):
        return Constant("boolean", value)
    return Constant("text", value) if isinstance(value, str) else Constant("number", Decimal(value))
