"""What every benchmark prints of the machine and the installation that it measures."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from tests.benchmarks import machine

BENCHMARKS = sorted(Path(machine.__file__).parent.glob("bench_*.py"))


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda path: path.stem)
def test_every_benchmark_says_what_it_measures(benchmark: Path) -> None:
    assert "bench_folder(" in benchmark.read_text()


def test_optional_packages_are_listed_with_their_extra(tmp_path: Path) -> None:
    header = machine.description(tmp_path)
    assert "firnline's default installation" in header
    assert f"matplotlib {version('matplotlib')} (plot)" in header
    assert "(test)" not in header


def test_extras_of_other_packages_are_looked_into() -> None:
    assert {("hive", "thrift"), ("adls", "adlfs")} <= set(machine._optional("firnline"))
