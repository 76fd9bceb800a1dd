"""Find columns of equality deletes that `encode` cannot compare: Arrow and Iceberg must agree on equality. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

COMPARED: Final = (
    BooleanType,
    IntegerType,
    LongType,
    DecimalType,
    DateType,
    TimeType,
    TimestampType,
    TimestamptzType,
    TimestampNanoType,
    TimestamptzNanoType,
    StringType,
    UUIDType,
    FixedType,
    BinaryType,
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
