"""Types of format version 3 that PyIceberg 0.12 cannot parse become an opaque type, so that their tables load.

These are `variant`, and `geometry` and `geography` as Iceberg's Java code writes them. PyIceberg turns names of types
into types in one function, which its compiled validators hold. Only the code of that function is replaced: the new code
asks the old one first.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, Final

from pyiceberg import types
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IcebergType, PrimitiveType

OPAQUE: Final = ("variant", "geometry", "geography")
"""Starts of the names of types whose values are never decoded here: they are copied, or left to Iceberg's own code."""


class OpaqueType(PrimitiveType):
    """A type of which only the name is known."""

    root: str

    def __init__(self, root: str) -> None:
        super().__init__(root=root)

    def minimum_format_version(self) -> TableVersion:
        """The first version with these types."""
        return 3


def parsed_schema(schema_json: str) -> Schema:
    """A schema from its JSON, as executors get it.

    Raises:
        ValueError: it is none.
    """
    return Schema.model_validate_json(schema_json)


def _teach() -> None:
    function: Any = IcebergType.handle_primitive_type.__func__
    known = FunctionType(function.__code__, function.__globals__, function.__name__)

    def parse(cls: type[IcebergType], value: Any, handler: Any) -> Any:
        if cls is OpaqueType:
            return handler(value)
        try:
            return known(cls, value, handler)
        except (ValueError, ValidationError):
            if isinstance(value, str) and value.startswith(OPAQUE):
                return OpaqueType(value)
            raise

    def asks(cls, value, handler):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - runs among PyIceberg's names
        return _firnline_parse(cls, value, handler)  # type: ignore[name-defined] # noqa: F821

    types._firnline_parse = parse  # type: ignore[attr-defined] # noqa: SLF001
    function.__code__ = asks.__code__


_teach()
