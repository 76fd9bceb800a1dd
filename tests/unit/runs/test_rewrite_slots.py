"""How many outputs a run writes at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from compactor.spark.session import STATE_PARTITIONS
from streaming.wiring import rewrite_slots


@pytest.mark.parametrize(
    ("cores", "most", "beside_stream", "slots"),
    [(8, None, False, 8), (8, 3, False, 3), (8, 20, False, 8), (8, None, True, 8 - STATE_PARTITIONS), (8, 1, True, 1)],
)
def test_as_many_as_there_are_cores_but_no_more_than_wanted(
    cores: int, most: int | None, beside_stream: bool, slots: int
) -> None:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=cores))
    assert rewrite_slots(session, most, beside_stream=beside_stream) == slots
