"""Back-off: it doubles, it has a bound, it never overflows."""

from __future__ import annotations

import pytest

from compactor.patience.backoff import Backoff


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 0.0), (1, 5.0), (2, 10.0), (3, 20.0), (7, 300.0), (10**6, 300.0)]
)
def test_it_doubles_up_to_its_bound(failures: int, seconds: float) -> None:
    assert Backoff(first_seconds=5.0, longest_seconds=300.0).seconds(failures) == seconds
