"""A few rounds of `python -m tests.chaos`, so that it stays alive between the long runs."""

from __future__ import annotations

import pytest

from tests.chaos.rounds import Chaos
from tests.conftest import Lake
from tests.services.faulty_catalog import faulty_catalog
from tests.services.rest_lake import rest_lake_of
from tests.slow import slow

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("version", "partitioned", "honours"),
    [(3, True, False), *slow((2, True, True), (2, False, False))],
)
def test_rows_equal_the_serial_model(
    lake: Lake, tmp_path_factory: pytest.TempPathFactory, version: int, partitioned: bool, honours: bool
) -> None:
    with faulty_catalog(tmp_path_factory.mktemp("chaos")) as faulty:
        faulty.honours_rollback = honours
        rest = rest_lake_of(lake, faulty, f"chaos_{version}_{partitioned}")
        chaos = Chaos(rest, faulty, "db.chaos", seed=7, version=version, partitioned=partitioned)
        rounds = [chaos.play(number) for number in range(3)]
    assert not [each.outcome for each in rounds if each.outcome.startswith("FAILED")]
    assert not honours or not [failure for each in rounds for failure in each.writer_failures]
