"""`make sbom`: dist/firnline.cdx.json, a CycloneDX list of what firnline brings into its image, with digests.

Python packages as requirements.txt pins them, and the jars that firnline fetches. Spark's own jars are parts of the
package pyspark; Debian's packages are the base image's, which scanners of images list.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from compactor.spark.jar_digests import UNKNOWN, pinned_digests
from compactor.spark.java import AWS_JARS, SPARK_JARS, jar_name

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ROOT / "deploy" / "docker" / "requirements.txt"
TARGET = ROOT / "dist" / "firnline.cdx.json"
VERSION = "1.6"  # of CycloneDX


def python_packages() -> dict[str, Any]:
    """The document of cyclonedx-py, without the description that repeats each line of the list."""
    command = [
        str(ROOT / ".venv" / "tools" / "bin" / "cyclonedx-py"), "requirements", str(REQUIREMENTS), "--of", "JSON",
        "--sv", VERSION, "--output-reproducible", "-o", "-",
    ]  # fmt: skip
    document: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for component in document["components"]:
        component.pop("description", None)
        component["bom-ref"] = component["purl"]
    document["dependencies"] = []
    return document


def jars() -> list[dict[str, Any]]:
    """The jars of the image by default."""
    digests = pinned_digests()
    return [jar(coordinate, digests) for jar_set in (SPARK_JARS, AWS_JARS) for coordinate in jar_set.coordinates]


def jar(coordinate: str, digests: dict[str, str]) -> dict[str, Any]:
    """One jar by its Maven coordinate."""
    group, artifact, version = coordinate.split(":")[:3]
    purl, digest = f"pkg:maven/{group}/{artifact}@{version}", digests[jar_name(coordinate)]
    hashes = [{"alg": "SHA-256", "content": digest}] if digest != UNKNOWN else []
    return {
        "type": "library", "group": group, "name": artifact, "version": version, "purl": purl, "bom-ref": purl,
        "hashes": hashes,
    }  # fmt: skip


def main() -> None:
    """Write the document."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    document = python_packages()
    document["components"] += jars()
    purl = f"pkg:pypi/{project['name']}@{project['version']}"
    document.setdefault("metadata", {})["component"] = {
        "type": "application", "name": project["name"], "version": project["version"], "purl": purl, "bom-ref": purl,
    }  # fmt: skip
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(f"{TARGET}: {len(document['components'])} components\n")


if __name__ == "__main__":
    main()
