"""Values of a parameter that only `make test-slow` tries: they repeat a check, `make test` does it with others."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: Any) -> list[Any]:
    """Each of `values` as a parameter marked `slow`; a tuple is one value for each of several parameters."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow) for value in values
    ]
