"""Which partitions a filter can match: predicates select files, never rows.

PyIceberg's inclusive projection is used for every spec: if a row matches the filter, its partition value matches the
projection (spec: scan planning), so no file that holds a matching row is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyiceberg.expressions import BooleanExpression, visitors
from pyiceberg.expressions.parser import parse
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from compactor.errors import InputError
from compactor.inventory import LiveFile
from compactor.partitions import PartitionKey
from compactor.tables import TableView

PartitionFilter = Callable[[PartitionKey, tuple[LiveFile, ...]], bool]


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
        expression = parse(where)
        visitors.bind(table.metadata.schema(), expression, case_sensitive=True)
    except Exception as error:  # the parser raises pyparsing's and its own errors alike
        columns = ", ".join(table.metadata.schema().column_names)
        raise InputError(
            f"--where {where!r} is not a filter over {table.name}: {error}\n"
            f"write e.g. \"day = '2024-01-15' and id in (1, 2)\"; columns: {columns}",
            reason="bad_filter",
        ) from None
    return expression


def _evaluator(table: TableView, spec_id: int, expression: BooleanExpression) -> Callable[[Any], bool]:
    spec = table.spec(spec_id)
    schema = table.metadata.schema()
    if any(field.source_id not in schema._lazy_id_to_field for field in spec.fields):  # noqa: SLF001 - see tables.py
        return lambda _record: True  # an old spec over a dropped column cannot be projected: keep the partition
    projected = visitors.inclusive_projection(schema, spec)(expression)
    partition_schema = Schema(*spec.partition_type(schema).fields)
    return visitors.expression_evaluator(partition_schema, projected, case_sensitive=True)
