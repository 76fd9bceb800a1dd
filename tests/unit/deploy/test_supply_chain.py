"""What the image is made of: every package by its digest, and the lists that are derived from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compactor.spark.java import AWS_JARS, SPARK_JARS
from deploy.audit import Audit, judged
from deploy.sbom import jar, jars

DOCKER = Path(__file__).parents[3] / "deploy" / "docker"
LISTS = ("requirements.txt", "requirements-extras.txt", "requirements-build.txt")


@pytest.mark.parametrize("name", LISTS)
def test_every_package_has_digests(name: str) -> None:
    blocks = re.split(r"^(?=[A-Za-z])", (DOCKER / name).read_text(), flags=re.MULTILINE)[1:]
    assert blocks
    for block in blocks:
        assert re.match(r"[\w.-]+==\S+ \\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n)+\Z", block), block


def test_the_image_takes_nothing_without_a_digest() -> None:
    recipe = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ")
    commands = [each for each in re.split(r"&&|;|\n", recipe) if re.search(r"/bin/pip\b.* (install|wheel) ", each)]
    assert len(commands) == 5
    for command in commands:
        local = "--no-index" in command or re.search(r"--no-deps .*--no-build-isolation /build ", command)
        assert "--require-hashes" in command or local, command
        assert " wheel " not in command or "--no-build-isolation" in command, command


def test_every_stage_starts_from_the_pinned_base() -> None:
    recipe = (DOCKER / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE=debian:bookworm-\d{8}-slim@sha256:[0-9a-f]{64}$", recipe, re.MULTILINE)
    bases = set(re.findall(r"^FROM (\S+)", recipe, re.MULTILINE))
    assert bases == {"${BASE}", "scratch"}
    system = recipe.split("FROM ${BASE} AS system", 1)[1].split("\nFROM ")[0]
    assert "apt-get upgrade" in system, "a pinned base brings the packages of its day"


def test_vulnerabilities_and_unknown_packages_are_told_apart() -> None:
    document = {
        "dependencies": [
            {"name": "good", "version": "1", "vulns": []},
            {
                "name": "bad", "version": "1",
                "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}, {"id": "CVE-2", "fix_versions": []}],
            },
            {"name": "other", "skip_reason": "not found"},
        ],
        "fixes": [],
    }  # fmt: skip
    wanted = Audit(("good", "bad"), ("other",), ("bad 1: CVE-1, fixed in 2", "bad 1: CVE-2, fixed in none"))
    assert judged(document) == wanted
    assert wanted + Audit(("x",)) == Audit(("good", "bad", "x"), ("other",), wanted.vulnerable)


def test_the_list_of_components_has_the_jars_with_their_digests() -> None:
    listed = jars()
    assert len(listed) == len(SPARK_JARS.coordinates) + len(AWS_JARS.coordinates)
    assert all(re.fullmatch("[0-9a-f]{64}", each["hashes"][0]["content"]) for each in listed)
    one = jar("g:a:1", {"a-1.jar": "unknown"})
    assert (one["purl"], one["hashes"]) == ("pkg:maven/g/a@1", [])
