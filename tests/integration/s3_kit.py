"""A large object and refusals, for tests of the S3 store."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from compactor.errors import FirnlineError

MIB = 1024 * 1024
MAGIC = b"PAR1"
LARGE = MAGIC + random.Random(1).randbytes(12 * MIB) + MAGIC


def caught(action: Callable[[], object]) -> FirnlineError:
    with pytest.raises(FirnlineError) as found:
        action()
    return found.value
