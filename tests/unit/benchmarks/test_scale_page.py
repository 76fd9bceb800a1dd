"""docs/scale.md is what the model says, and what was not measured is called so."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import get_type_hints

import pytest

from compactor.settings.tree import ServiceSettings
from streaming.intake.event_query import TRIGGER_SECONDS
from tests.benchmarks.scale.files import read_figures, read_prices
from tests.benchmarks.scale.model import Service, UnitCosts
from tests.benchmarks.scale.page import FLEET, NOT_MEASURED, number, page, seconds

PAGE = Path(__file__).parents[3] / "docs" / "scale.md"


def written(**fleet: object) -> str:
    figures = read_figures()
    return page(replace(figures, fleet={**figures.fleet, **fleet}), *read_prices())


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == written(), "run: make generate"


def test_what_was_not_measured_is_called_so() -> None:
    nothing = written(measured_on=None, machine=None, **{name: None for _, _, name, _ in FLEET})
    assert nothing.count(f"| {NOT_MEASURED} |") == len(FLEET)
    assert "They are not measured yet." in nothing
    one = written(measured_on="2026-12-01", machine="a machine", case_a_p50_seconds=0.75)
    assert "| 0.750 s |" in one
    assert "Measured on 2026-12-01: a machine." in one


def test_every_figure_is_there_with_its_origin() -> None:
    figures = read_figures()
    origins = {*figures.measured, *figures.taken}
    groups = get_type_hints(UnitCosts)
    assert {f"{name}_{each.name}" for name, kind in groups.items() for each in fields(kind)} <= {
        *origins,
        "disk_manifest",
    }
    assert not set(figures.measured) & set(figures.taken)
    assert figures.machine
    assert all(each["from"] for each in figures.taken.values())
    assert set(figures.fleet) == {"measured_on", "machine", *(name for _, _, name, _ in FLEET)}


def test_every_price_has_a_source_and_a_date() -> None:
    _, tree = read_prices()
    assert all(each["source"] and each["per"] for each in tree["prices"].values())
    assert tree["read_on"]


def test_the_model_uses_the_defaults_of_the_settings() -> None:
    service, settings = Service(), ServiceSettings()
    for name in ("sweep_seconds", "looks_per_catalog", "concurrent_runs"):
        assert getattr(service, name) == getattr(settings, name), name
    assert service.trigger_seconds == TRIGGER_SECONDS


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1234567, "1,230,000"), (12.345, "12.3"), (0.00123, "0.00123"), (1.0, "1.00")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7200, "2.00 h"),
        (90, "90.0 s"),
        (180, "3.00 min"),
        (0.0015, "1.50 ms"),
        (2.7e-05, "27.0 µs"),
        (23e-9, "23.0 ns"),
    ],
)
def test_times_have_a_unit_that_suits_them(value: float, text: str) -> None:
    assert seconds(value) == text
