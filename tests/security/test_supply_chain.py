"""A tampered jar and a tampered wheel are refused, by firnline and by pip as they are."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from compactor.spark.java import SPARK_JARS, fetch_jars
from tests.integration.service_process import ROOT

LIST = ROOT / "deploy" / "docker" / "requirements.txt"
WHEELS = ROOT / ".venv" / "image-packages"
COMMAND = """
import sys
from pathlib import Path
import compactor.spark.java as java
java.jars_folder = lambda jar_set: Path({folder!r})
from streaming.cli import main
main(sys.argv[1:])
"""


def tamper(file: Path) -> None:
    """Change one bit in the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("command", [("jars", "spark"), ("compact", "db.t")], ids=" ".join)
def test_a_tampered_jar_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    folder = tmp_path / "jars"
    shutil.copytree(fetch_jars(SPARK_JARS)[0].parent, folder)
    config = tmp_path / "firnline.yaml"
    catalog = f"{{type: sql, uri: 'sqlite:///{tmp_path}/c.db', warehouse: 'file://{tmp_path}/w'}}"
    config.write_text(f"catalogs: {{lake: {catalog}}}\n")
    append_to_table(tmp_path)

    def run() -> subprocess.CompletedProcess[str]:
        script = COMMAND.format(folder=str(folder))
        return subprocess.run(
            [sys.executable, "-c", script, "-c", str(config), *command],
            capture_output=True, text=True, check=False, cwd=ROOT,
        )  # fmt: skip

    done = run()
    assert done.returncode == 0, done.stderr
    jar = next(folder.glob("iceberg-spark-runtime-*.jar"))
    tamper(jar)
    append_to_table(tmp_path)
    done = run()
    assert done.returncode == 2, done.stdout + done.stderr
    said = " ".join(done.stderr.split())
    assert jar.name in said
    assert len(set(re.findall(r"[0-9a-f]{64}", said))) == 2
    assert "Delete the folder" in said
    print(f"\n{said}")


def append_to_table(folder: Path) -> None:
    """Six small files, for `compact` to have something to do."""
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}/w")
    catalog.create_namespace_if_not_exists("db")
    rows = pa.table({"id": [1]})
    table = catalog.create_table_if_not_exists("db.t", rows.schema)
    for _ in range(6):
        table.append(rows)


def test_a_tampered_wheel_is_refused(tmp_path: Path) -> None:
    """With the image's own list of packages, and the files that it names."""
    if not WHEELS.is_dir():
        pytest.fail("run deploy/setup.sh image-packages")
    line = re.search(r"^six==.*\n(?:    --hash.*\n)+", LIST.read_text(), re.MULTILINE)
    assert line is not None
    (tmp_path / "list.txt").write_text(line[0])
    shutil.copy(next(WHEELS.glob("six-*.whl")), tmp_path)

    def install() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(sys.executable, "-m", "pip", "--isolated", "install", "--no-deps", "--no-index", "--no-cache-dir"),
                *("--find-links", str(tmp_path), "--target", str(tmp_path / "made"), "-r", str(tmp_path / "list.txt")),
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    assert install().returncode == 0
    shutil.rmtree(tmp_path / "made")
    tamper(next(tmp_path.glob("six-*.whl")))
    done = install()
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "made").exists()
    print(f"\n{done.stderr.strip()}")
