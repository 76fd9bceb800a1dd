"""firnline's modules as an archive: all of them, importable without the project."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa

import compactor
from compactor.spark.shipped_modules import PACKAGES, explanation, write_archive

ROOT = Path(compactor.__file__).parents[1]


def test_the_archive_holds_every_module(tmp_path: Path) -> None:
    write_archive(tmp_path / "modules.zip")
    held = set(zipfile.ZipFile(tmp_path / "modules.zip").namelist())
    assert held == {str(path.relative_to(ROOT)) for name in PACKAGES for path in (ROOT / name).rglob("*.py")}


def test_the_modules_of_tasks_are_imported_from_the_archive(tmp_path: Path) -> None:
    write_archive(tmp_path / "modules.zip")
    packages = Path(pa.__file__).parents[1]
    code = "import compactor.rewrite.tasks.output_task as m; print(m.__file__)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": f"{tmp_path}/modules.zip:{packages}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"{tmp_path}/modules.zip/compactor/")


def test_what_is_missing_is_named_with_its_host_and_the_remedy() -> None:
    text = explanation([("b", "/usr/bin/python3", "3.11.2", "ModuleNotFoundError: No module named 'pyarrow'")])
    assert "b, /usr/bin/python3 (Python 3.11.2): ModuleNotFoundError: No module named 'pyarrow'" in text
    assert "spark.pyspark.python" in text
