"""The model's input files: unit costs with their machine and date, and list prices with their source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from tests.benchmarks.scale.model import Prices, UnitCosts

HERE = Path(__file__).parent
UNIT_COSTS = HERE / "unit_costs.json"
PRICES = HERE / "prices.json"


@dataclass(frozen=True)
class Figures:
    """What `unit_costs.json` holds. `fleet`: figures of `make bench-fleet`, None where not measured."""

    costs: UnitCosts
    machine: str
    measured_on: str
    measured: Mapping[str, Any]
    taken: Mapping[str, Mapping[str, Any]]
    fleet: Mapping[str, Any]


def read_figures(path: Path = UNIT_COSTS) -> Figures:
    """Unit costs: those that were measured, and those that other pages of the docs hold.

    Raises:
        KeyError: a figure is missing; it is measured by `make bench-unit-costs`.
    """
    tree = json.loads(path.read_text())
    values = {**tree["measured"], **{name: each["value"] for name, each in tree["from_docs"].items()}}
    values["look_new_snapshot"] = {int(count): cost for count, cost in values["look_new_snapshot"].items()}
    groups = get_type_hints(UnitCosts)
    costs = UnitCosts(
        **{
            name: kind(**{each.name: values[f"{name}_{each.name}"] for each in fields(kind)})
            for name, kind in groups.items()
        }
    )
    return Figures(
        costs=costs,
        machine=tree["machine"],
        measured_on=tree["measured_on"],
        measured=tree["measured"],
        taken=tree["from_docs"],
        fleet=tree["bench_fleet"],
    )


def read_prices(path: Path = PRICES) -> tuple[Prices, dict[str, Any]]:
    """Prices, and the file with what it says of them."""
    tree = json.loads(path.read_text())
    values = {name: each.get("dollars", each.get("bytes")) for name, each in tree["prices"].items()}
    return Prices(**values), tree


def write_measured(found: Mapping[str, Any], machine: str, day: str, path: Path = UNIT_COSTS) -> None:
    """Keep new figures; figures that were not measured again stay."""
    tree = json.loads(path.read_text())
    tree |= {"machine": machine, "measured_on": day, "remarks": "", "measured": {**tree["measured"], **found}}
    path.write_text(json.dumps(tree, indent=2, ensure_ascii=False) + "\n")
