"""Find columns of equality deletes that `encode` cannot compare: Arrow and Iceberg must agree on equality. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyiceberg import types
from pyiceberg.schema import Schema

COMPARED: Final = (
    types.BooleanType,
    types.IntegerType,
    types.LongType,
    types.DecimalType,
    types.DateType,
    types.TimeType,
    types.TimestampType,
    types.TimestamptzType,
    types.TimestampNanoType,
    types.TimestamptzNanoType,
    types.StringType,
    types.UUIDType,
    types.FixedType,
    types.BinaryType,
)
"""Types whose values are equal in Arrow if and only if they are equal in Iceberg."""


def not_compared(schema: Schema, field_ids: Iterable[int]) -> str | None:
    """Why `encode` cannot compare columns: one is nested, or its type is not in `COMPARED`. None if it can."""
    by_id = {field.field_id: field for field in schema.fields}
    for field_id in field_ids:
        field = by_id.get(field_id)
        if field is None:
            return f"an equality delete compares field {field_id}, which is not a top-level column"
        if not isinstance(field.field_type, COMPARED):
            return f"an equality delete compares column {field.name} of type {field.field_type}"
    return None
