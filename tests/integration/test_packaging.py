"""The wheel: everything is inside, and it works away from the source tree with the pinned packages and nothing else."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("compactor", "metrics", "streaming")
SOURCES = (*PACKAGES, "deploy", "docs", "pyproject.toml", "MANIFEST.in", "Makefile")
TEXTS = ("README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
IMPORTS = runpy.run_path(str(ROOT / "deploy" / "docker" / "slim.py"))["IMPORTS"]  # the image's own check
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

LOADED = """
import sys
for name, module in sorted(sys.modules.items()):
    print(name, getattr(module, "__file__", None))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dist/ with sdist and wheel, the wheel made from the sdist; the source tree is left as it is."""
    tree = tmp_path_factory.mktemp("source")
    for name in (*SOURCES, *TEXTS):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, tree / name)
    run(sys.executable, "-m", "build", "--no-isolation", str(tree))
    return tree / "dist"


@pytest.fixture(scope="module")
def default_installation(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty environment with the wheel, no extra, and the image's pinned packages, as the image installs them."""
    run("bash", str(ROOT / "deploy" / "setup.sh"), "image-packages")
    environment = tmp_path_factory.mktemp("default")
    run(sys.executable, "-m", "venv", "--without-pip", str(environment))
    (wheel,) = built.glob("*.whl")
    run(
        *(sys.executable, "-m", "pip", "--isolated", "--python", str(environment / "bin" / "python"), "install"),
        *("--no-compile", "--no-index", "--find-links", str(ROOT / ".venv" / "image-packages")),
        str(wheel),
    )
    yield environment
    shutil.rmtree(environment)  # a gigabyte, which pytest would keep for three runs


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with nothing but the wheel in it; dependencies are those of this one."""
    environment = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", str(environment))
    (wheel,) = built.glob("*.whl")
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    (site_packages,) = environment.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return environment


def run(*command: str, cwd: Path | None = None) -> str:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("FIRNLINE_", "PYTHON"))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=kept)
    assert done.returncode == 0, f"{command}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def test_every_file_of_the_packages_is_in_the_wheel(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"firnline-{VERSION}-py3-none-any.whl"
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == files
    assert any(name.endswith("licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist())


def test_the_sdist_holds_what_a_reader_needs(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {*TEXTS, "Makefile", "deploy/setup.sh", "docs/settings.md", "pyproject.toml"} <= names


@pytest.mark.slow
def test_every_module_can_be_imported_in_a_default_installation(default_installation: Path, tmp_path: Path) -> None:
    """With nothing but what pip installs from the image's pinned packages: an extra is imported where it is used."""
    loaded = run(str(default_installation / "bin" / "python"), "-I", "-B", "-c", IMPORTS + LOADED, cwd=tmp_path)
    modules = {line.partition(" ")[0]: line.partition(" ")[2] for line in loaded.splitlines()}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            assert modules[name].startswith(str(default_installation)), name


@pytest.mark.slow
def test_the_wheel_alone_works(installed: Path, tmp_path: Path) -> None:
    firnline = str(installed / "bin" / "firnline")
    assert run(firnline, "--version", cwd=tmp_path).split()[-1] == VERSION
    assert "simulate" in run(firnline, "--help", cwd=tmp_path)
    assert "firnline" in run(firnline, "simulate", "--size", "1MB", cwd=tmp_path)
    where = run(str(installed / "bin" / "python"), "-c", "import compactor; print(compactor.__file__)", cwd=tmp_path)
    assert where.startswith(str(installed))
    assert (installed / "share").exists() is False
    jars = run(firnline, "jars", "--list", "spark", cwd=tmp_path)
    assert "not fetched" in jars  # and a start fetches them: see compactor/spark/java.py
    for module in ("streaming.service.service", "streaming.hooks.kinds", "metrics.http.http_server"):
        run(str(installed / "bin" / "python"), "-c", f"import {module}", cwd=tmp_path)
