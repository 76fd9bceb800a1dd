"""What a test expects to fail, by the reason that the error gives."""

from __future__ import annotations

import pytest

from compactor.errors import FirnlineError, GiveUpError


def fails(reason: str, kind: type[FirnlineError] = GiveUpError) -> pytest.RaisesExc[FirnlineError]:
    return pytest.raises(kind, check=lambda error: error.reason == reason)
