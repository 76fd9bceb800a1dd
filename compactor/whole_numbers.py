"""Whole numbers that others write as text, in properties of tables and catalogs: up to 64 bits, or none."""

from __future__ import annotations

import re
from typing import Final

LARGEST: Final = 2**63 - 1
"""The largest number that Iceberg, Arrow and Java can hold."""
_WHOLE: Final = re.compile(r"\s*(\d{1,19})\s*", re.ASCII)


def whole_number(text: str) -> int | None:
    """The number; None if the text is no whole number, or if it is negative or larger than `LARGEST`."""
    found = _WHOLE.fullmatch(text)
    number = int(found[1]) if found else None
    return None if number is None or number > LARGEST else number
