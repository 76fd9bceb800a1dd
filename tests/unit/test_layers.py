"""The packages: each module in one layer, no import cycle, few modules at the top."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("compactor", "metrics", "streaming")
MOST_TOP_MODULES = 12


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Every module, and the modules that it imports, also those imported within functions."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def layers() -> list[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rows = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [module.strip() for row in rows for module in row.replace(":", "|").split("|")]


def cycle(imports: Mapping[str, Iterable[str]]) -> list[str] | None:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def test_no_module_imports_itself_through_others(imports: dict[str, set[str]]) -> None:
    assert cycle(imports) is None


def test_a_cycle_would_be_found(imports: dict[str, set[str]]) -> None:
    low, high = "compactor.storage.byte_store", "compactor.storage.opening"
    assert cycle(imports | {low: imports[low] | {high}}) is not None


def test_every_module_belongs_to_one_layer(imports: dict[str, set[str]]) -> None:
    known = layers()
    packages = {module.rpartition(".")[0] for module in imports}
    homeless = {
        module: homes
        for module in imports
        if module not in packages
        and len(homes := [layer for layer in known if f"{module}.".startswith(f"{layer}.")]) != 1
    }
    assert homeless == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_top_of_a_package_can_be_seen_at_once(package: str) -> None:
    modules = {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__"}
    assert len(modules) <= MOST_TOP_MODULES, sorted(modules)


def test_packages_re_export_nothing(imports: dict[str, set[str]]) -> None:
    packages = {module.rpartition(".")[0] for module in imports} - {""}
    assert {package: imports[package] for package in packages if imports[package]} == {}
