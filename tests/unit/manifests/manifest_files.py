"""Records of PyIceberg's metadata files, with every field of the newest format version."""

from __future__ import annotations

from typing import Any


def positions(schema: Any) -> dict[str, int]:
    return {field.name: position for position, field in enumerate(schema.fields)}


def record(kind: Any, schema: Any, **values: Any) -> Any:
    fields = positions(schema)
    made = kind(*[None] * len(fields))
    for name, value in values.items():
        made[fields[name]] = value
    return made
