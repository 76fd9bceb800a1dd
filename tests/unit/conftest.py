"""Fixtures of several unit test files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compactor.rewrite import encode_read


@pytest.fixture(scope="module", params=[encode_read.FEW_BYTES, 1_000_000], ids=["few-strings", "all-dictionaries"])
def strings_as_dictionaries(request: pytest.FixtureRequest) -> Iterator[None]:
    """Small test files hardly ever have few enough strings to be read as dictionaries: once as it is, once always."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode_read, "FEW_BYTES", request.param)
        yield
