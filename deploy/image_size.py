"""How large the image gets, without a Docker daemon: `make image-size` measures it and writes deploy/docker/size.json.

What changes are the pinned packages, the jars, and what slim.py leaves of them: they are installed, slimmed and added
up. The parts of Debian and Java are those of an image that was built: tests/integration/test_image.py compares the sum.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from compactor.spark.java import AWS_JARS, SPARK_JARS, fetch_jars

ROOT = Path(__file__).parents[1]
DOCKER = ROOT / "deploy" / "docker"
SIZE = DOCKER / "size.json"
LARGEST_IMAGE = 890_000_000  # bytes
DEBIAN, JAVA, REPORTER, BYTE_CODE = 109_000_000, 55_000_000, 9_300_000, 4_600_000  # bytes
MADE_FROM = (DOCKER / "requirements.txt", DOCKER / "slim.py", ROOT / "compactor" / "spark" / "jars.sha256")


def made_from() -> str:
    """A digest of all that decides the size."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in MADE_FROM)).hexdigest()


def measured(prefix: Path) -> int:
    """Bytes of an image with what the image has in its environment: installed in the folder, then slimmed there."""
    python = prefix / "bin" / "python"
    _run("bash", str(ROOT / "deploy" / "setup.sh"), "image-packages")
    _run(sys.executable, "-m", "venv", "--without-pip", str(prefix))
    # Without digests: they were checked when the packages were fetched, and pyspark's is that of its source.
    pins = re.findall(r"^[\w.-]+==[^\s;]+", MADE_FROM[0].read_text(), re.MULTILINE)
    _run(
        *(sys.executable, "-m", "pip", "--quiet", "--isolated", "--python", str(python), "install", "--no-compile"),
        *("--no-deps", "--no-index", "--find-links", str(ROOT / ".venv" / "image-packages"), *pins),
    )
    (packages,) = prefix.glob("lib/python3.*/site-packages")
    for name in ("compactor", "metrics", "streaming"):
        shutil.copytree(ROOT / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    for jar_set in (SPARK_JARS, AWS_JARS):
        folder = fetch_jars(jar_set)[0].parent
        shutil.copytree(folder, prefix / "share" / "firnline" / "jars" / folder.name)
    _run(str(python), str(DOCKER / "slim.py"), str(prefix))
    files = (path for path in prefix.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) + DEBIAN + JAVA + REPORTER + BYTE_CODE


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def main() -> None:
    """Measure and write."""
    with tempfile.TemporaryDirectory(prefix="firnline-image-") as folder:
        size = measured(Path(folder) / "firnline")
    SIZE.write_text(json.dumps({"bytes": size, "made_from": made_from()}, indent=1) + "\n")
    sys.exit(
        f"the image would take {size / 1e6:.0f} MB; allowed are {LARGEST_IMAGE / 1e6:.0f}" * (size > LARGEST_IMAGE)
        or None
    )


if __name__ == "__main__":
    main()
