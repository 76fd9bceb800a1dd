"""A sample of the correctness matrix and of the generated tables; `make test-correctness` plays all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Lake
from tests.correctness.checks import Outcome
from tests.correctness.generated import distinct_scripts, script_of
from tests.correctness.kinds import KINDS
from tests.correctness.matrix import cells_of, results_of
from tests.correctness.stage import any_size_splices
from tests.slow import slow

pytestmark = pytest.mark.spark

SAMPLE = (
    ("day_bucket", "java", ("auto", "spark")),
    ("equality_everywhere", "java", ("auto", "splice")),
    ("evolved_specs_v1", "java", ("auto",)),
    ("odd_partitions", "java", ("auto",)),
    ("schema_widened", "java", ("auto",)),
    ("schema_renamed_predates", "java", ("auto",)),
    ("data_path", "java", ("auto",)),
    ("sorted", "java", ("auto",)),
    ("avro", "java-avro", ("auto",)),
    ("positions_partition", "java", ("auto",)),
    ("vectors_twice", "java", ("auto",)),
)
MORE = (
    ("nested", "duckdb", ("auto",)),
    ("identity", "pyiceberg", ("splice",)),
    ("nan_partitions", "spark", ("auto",)),
    ("orc", "java-orc", ("auto",)),
)
GENERATED = 5
FILTERS = 3


@pytest.fixture(autouse=True)
def _splices_of_any_size() -> Iterator[None]:
    with any_size_splices():
        yield


@pytest.mark.parametrize(
    ("kind", "writer", "engines"),
    [
        *(pytest.param(*cell, id=cell[0]) for cell in SAMPLE),
        *(pytest.param(*cell, id=cell[0], marks=pytest.mark.slow) for cell in MORE),
    ],
)
def test_a_cell_of_the_matrix(lake: Lake, kind: str, writer: str, engines: tuple[str, ...]) -> None:
    for cell in cells_of(kind, writer, engines, lake, FILTERS):
        assert cell.result.problems == ()
        refused = cell.result.engine == "splice" and kind == "equality_everywhere"
        assert cell.result.outcome is (Outcome.REFUSED if refused else Outcome.OK)
        assert cell.result.reason or not refused


@pytest.mark.parametrize("seed", [0, *slow(*range(1, GENERATED))])
def test_a_generated_table(lake: Lake, seed: int) -> None:
    (result,) = results_of(script_of(seed), "java", ("auto",), lake, FILTERS)
    assert result.problems == ()
    assert result.outcome in {Outcome.OK, Outcome.NOTHING}


def test_generated_tables_are_distinct_and_reproducible() -> None:
    scripts = distinct_scripts(0, 40)
    assert len({repr(script) for script in scripts.values()}) == 40
    assert all(script_of(seed) == script for seed, script in list(scripts.items())[:5])
    kinds = {type(operation).__name__ for script in scripts.values() for operation in script.operations}
    assert {"Append", "DeletePositions", "DeleteEqual", "EvolveSpec", "AddColumn"} <= kinds


def test_every_kind_can_be_made_by_some_writer() -> None:
    assert all(kind.writers for kind in KINDS.values())
