"""Sizes and times with units, as settings accept them: `512MB`, `512MiB`, `10min`. Plain numbers are bytes, seconds.

Not pydantic's ByteSize: it reads `512m` as megabytes, which Spark reads as mebibytes, and knows bits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

_PREFIXES: Final = ("k", "m", "g", "t", "p")
_BYTES: Final = {
    "b": Decimal(1),
    **{f"{prefix}b": Decimal(1000) ** power for power, prefix in enumerate(_PREFIXES, 1)},
    **{f"{prefix}ib": Decimal(1024) ** power for power, prefix in enumerate(_PREFIXES, 1)},
}
_SECONDS: Final = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "min": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86_400),
}
_WITH_UNIT: Final = re.compile(r"(\d{1,4000}(?:\.\d{1,4000})?)\s*([a-z]+)", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class Unit:
    """The unit of a number, and values with a unit as examples."""

    name: str
    examples: str


def read_bytes(given: Any) -> Any:
    """`512MB` → 512,000,000, `512MiB` → 536,870,912; anything that is no whole number of bytes stays as it is."""
    size = _of_unit(given, _BYTES)
    return int(size) if size is not None and size == int(size) else given


def read_seconds(given: Any) -> Any:
    """`10min` → 600.0; anything without a unit of time stays as it is."""
    seconds = _of_unit(given, _SECONDS)
    return given if seconds is None else float(seconds)


def _of_unit(given: Any, units: dict[str, Decimal]) -> Decimal | None:
    found = _WITH_UNIT.fullmatch(given.strip()) if isinstance(given, str) else None
    unit = units.get(found[2].lower()) if found else None
    return Decimal(found[1]) * unit if found and unit is not None else None


Bytes = Annotated[int, BeforeValidator(read_bytes), Unit("bytes", "512MB, 512MiB")]
"""A number of bytes: MB is 10^6, MiB is 2^20."""

Seconds = Annotated[float, BeforeValidator(read_seconds), Unit("seconds", "30s, 10min, 1h")]
"""A time in seconds, with the units ms, s, min (or m), h and d."""
