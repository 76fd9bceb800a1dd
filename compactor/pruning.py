"""Which partitions a filter can match: predicates select files, never rows.

PyIceberg's inclusive projection is used for every spec: if a row matches the filter, its partition value matches the
projection (spec: scan planning), so no file that holds a matching row is left out.

Literals may be written as in SQL. A timestamp may have a space for the T, no seconds or no time at all; without a zone
it is UTC. A number that the column's type would round is refused: rounding could leave out a matching partition.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pyiceberg.expressions import And, BooleanExpression, LiteralPredicate, Not, Or, Reference, SetPredicate, visitors
from pyiceberg.expressions.literals import DecimalLiteral, Literal, StringLiteral
from pyiceberg.expressions.parser import parse
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType, IcebergType, IntegerType, LongType, TimestampType, TimestamptzType

from compactor.errors import InputError
from compactor.inventory import LiveFile
from compactor.partitions import PartitionKey
from compactor.tables import TableView

PartitionFilter = Callable[[PartitionKey, tuple[LiveFile, ...]], bool]

SQL_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d)(:\d\d(?:\.\d{1,6})?)?)? ?(Z|[+-]\d\d:\d\d)?")


def partition_filter(table: TableView, where: str | None) -> PartitionFilter:
    """A predicate over partitions that keeps every partition which may hold a row matching `where` (SQL text).

    Raises:
        InputError: the text does not parse, or names a column that the table does not have.
    """
    if not where:
        return lambda _key, _files: True
    expression = _parse(table, where)
    evaluators: dict[int, Callable[[Any], bool]] = {}

    def keeps(key: PartitionKey, files: tuple[LiveFile, ...]) -> bool:
        if key.spec_id not in evaluators:
            evaluators[key.spec_id] = _evaluator(table, key.spec_id, expression)
        return evaluators[key.spec_id](Record(*files[0].entry.partition))

    return keeps


def _parse(table: TableView, where: str) -> BooleanExpression:
    try:
        expression = _with_exact_literals(parse(where), table.metadata.schema())
        visitors.bind(table.metadata.schema(), expression, case_sensitive=True)
    except Exception as error:  # noqa: BLE001 - the parser raises pyparsing's and its own errors alike
        columns = ", ".join(table.metadata.schema().column_names)
        raise InputError(
            f"--where {where!r} is not a filter over {table.name}: {error}\n"
            f"write e.g. \"day = '2024-01-15' and id in (1, 2)\"; columns: {columns}",
            reason="bad_filter",
        ) from None
    return expression


def _with_exact_literals(expression: BooleanExpression, schema: Schema) -> BooleanExpression:
    """The same filter, with every literal spelled as PyIceberg reads it for its column's type."""
    match expression:
        case And() | Or():
            left, right = (_with_exact_literals(side, schema) for side in (expression.left, expression.right))
            return type(expression)(left, right)
        case Not():
            return Not(_with_exact_literals(expression.child, schema))
        case LiteralPredicate():
            kind = schema.find_type(_name(expression))
            return type(expression)(expression.term, _exact(expression.literal, kind))
        case SetPredicate():
            kind = schema.find_type(_name(expression))
            return type(expression)(expression.term, {_exact(literal, kind) for literal in expression.literals})
        case _:
            return expression


def _name(predicate: LiteralPredicate | SetPredicate) -> str:
    if not isinstance(predicate.term, Reference):
        raise TypeError(f"{predicate.term} is not a column")
    return predicate.term.name


def _exact(literal: Literal[Any], kind: IcebergType) -> Literal[Any]:
    if isinstance(kind, TimestampType | TimestamptzType) and isinstance(literal, StringLiteral):
        return StringLiteral(_iso_timestamp(literal.value, "+00:00" if isinstance(kind, TimestamptzType) else ""))
    if isinstance(kind, IntegerType | LongType | DecimalType) and isinstance(literal, DecimalLiteral | StringLiteral):
        value = Decimal(literal.value)
        at_scale = value.quantize(Decimal(1).scaleb(-getattr(kind, "scale", 0)))
        if at_scale != value:
            raise ValueError(f"{literal.value} is not a value of type {kind}")
        return DecimalLiteral(at_scale)
    return literal


def _iso_timestamp(text: str, zone: str) -> str:
    found = SQL_TIMESTAMP.fullmatch(text.strip())
    if found is None:
        return text  # PyIceberg says what is wrong with it
    date, minutes, seconds, own_zone = found.groups()
    return f"{date}T{minutes or '00:00'}{seconds or ':00'}{(own_zone or zone).replace('Z', '+00:00')}"


def _evaluator(table: TableView, spec_id: int, expression: BooleanExpression) -> Callable[[Any], bool]:
    spec = table.spec(spec_id)
    schema = table.metadata.schema()
    if any(field.source_id not in schema._lazy_id_to_field for field in spec.fields):  # noqa: SLF001 - see tables.py
        return lambda _record: True  # an old spec over a dropped column cannot be projected: keep the partition
    try:
        projected = visitors.inclusive_projection(schema, spec)(expression)
    except OverflowError:  # a date at the calendar's first or last day: PyIceberg cannot step beyond it
        return lambda _record: True
    partition_schema = Schema(*spec.partition_type(schema).fields)
    return visitors.expression_evaluator(partition_schema, projected, case_sensitive=True)
