"""The metrics reporter's jar: what is in it, the same bytes twice, and what is said where there is no compiler."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from compactor.errors import InputError
from deploy.reporter import build as reporter_build
from deploy.reporter.build import DATE, NESTED, RELEASE, build, find_compiler
from tests.services.reporter import REPORTER, built_reporter

ROOT = Path(__file__).parents[3]
FIRST_CLASS_VERSION = 44  # of Java 0


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_reporter(tmp_path_factory.mktemp("first"))


def test_the_jar_holds_our_classes_for_old_java_and_kafkas_where_nobody_else_finds_them(jar: Path) -> None:
    with zipfile.ZipFile(jar) as file:
        names = file.namelist()
        code = {name: file.read(name) for name in names if name.endswith(".class") and not name.startswith(NESTED)}
    assert names[0] == "META-INF/MANIFEST.MF"
    assert f"{REPORTER.replace('.', '/')}.class" in code
    assert {name.rpartition("/")[0] for name in code} == {"io/firnline/iceberg"}
    assert {int.from_bytes(each[6:8]) for each in code.values()} == {FIRST_CLASS_VERSION + int(RELEASE)}
    assert f"{NESTED}org/apache/kafka/clients/producer/KafkaProducer.class" in names
    assert f"{NESTED}LICENSE" in names
    assert not [name for name in names if name.startswith("org/")]


def test_the_same_sources_make_the_same_bytes(jar: Path, tmp_path: Path) -> None:
    again = build(tmp_path)
    assert again.name == jar.name
    assert again.read_bytes() == jar.read_bytes()
    with zipfile.ZipFile(jar) as file:
        assert {entry.date_time for entry in file.infolist()} == {DATE}


def test_without_a_compiler_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(reporter_build, "java_home", lambda: tmp_path)
    with pytest.raises(InputError, match=r"openjdk-17-jdk-headless.*set JAVA_HOME"):
        find_compiler()


def test_a_compiler_that_is_too_old_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "bin" / "javac"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho javac 11.0.20\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))  # /bin can have a compiler too
    monkeypatch.setattr(reporter_build, "java_home", lambda: tmp_path)
    with pytest.raises(InputError, match="Java 17 or later"):
        find_compiler()


def test_the_image_has_the_jar_and_no_compiler() -> None:
    recipe = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    assert "/build/deploy/reporter/build.py /opt/firnline/share/firnline\n" in recipe
    assert "/opt/jdk" not in recipe.rsplit("\nFROM ", 1)[1]
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "writers").glob("*.md"))
    named = set(re.findall(r"/opt/firnline/share/firnline/firnline-iceberg-reporter-[\d.]+\.jar", pages))
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert named == {f"/opt/firnline/share/firnline/firnline-iceberg-reporter-{version[1]}.jar"}
