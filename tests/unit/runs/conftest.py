"""A dispatcher of two lanes for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.runs.dispatcher_bench import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(lanes=2)
    made.dispatcher.start()
    yield made
    assert made.close()
