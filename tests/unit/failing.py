"""Errors and refusals that a test expects, by their reasons."""

from __future__ import annotations

import pytest

from compactor.errors import FirnlineError, GiveUpError
from compactor.reasons import Refusal


def fails(reason: str, kind: type[FirnlineError] = GiveUpError) -> pytest.RaisesExc[FirnlineError]:
    return pytest.raises(kind, check=lambda error: error.reason == reason)


def reason_of(found: object) -> str:
    """The reason of a refusal."""
    assert isinstance(found, Refusal), found
    return found.reason
