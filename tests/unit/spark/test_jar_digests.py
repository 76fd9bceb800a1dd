"""Jars that differ from their pinned digest are refused, at each start and before they are installed."""

from __future__ import annotations

import hashlib
import logging
import re
from pathlib import Path

import pytest

from compactor.errors import InputError
from compactor.reasons import Reason
from compactor.spark import jar_digests, java
from compactor.spark.jar_digests import check_jars, checked, digest_of, pinned_digests
from compactor.spark.java import JAR_SETS, SPARK_JARS, fetch_jars, jar_name, jars_folder


@pytest.fixture
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A jar whose digest is pinned."""
    jar = tmp_path / "good-1.0.jar"
    jar.write_bytes(b"as it was tested")
    (tmp_path / "jars.sha256").write_text(f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}\n")
    monkeypatch.setattr(jar_digests, "DIGESTS", tmp_path / "jars.sha256")
    return jar


def test_a_jar_as_it_was_tested_is_accepted(pinned: Path) -> None:
    check_jars([pinned])


def test_a_tampered_jar_is_refused_with_file_digests_and_remedy(pinned: Path) -> None:
    expected = digest_of(pinned)
    pinned.write_bytes(pinned.read_bytes() + b"!")
    with pytest.raises(InputError) as raised:
        check_jars([pinned])
    assert raised.value.reason == Reason.JAR_DIFFERS
    for part in (str(pinned), expected, digest_of(pinned), "Delete the folder", "firnline jars"):
        assert part in str(raised.value)


def test_a_jar_without_a_digest_is_refused(pinned: Path) -> None:
    other = pinned.with_name("other-1.0.jar")
    other.write_bytes(b"?")
    with pytest.raises(InputError, match=r"none in jars\.sha256"):
        check_jars([pinned, other])


def test_a_jar_that_could_not_be_pinned_is_used_with_a_warning(
    pinned: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "jars.sha256").write_text(f"unknown  {pinned.name}\n")
    with caplog.at_level(logging.WARNING):
        check_jars([pinned])
    assert "was not checked" in caplog.text
    assert digest_of(pinned) in caplog.text


def test_jars_are_read_once_in_a_process(pinned: Path) -> None:
    assert checked((pinned,)) == (pinned,)
    pinned.write_bytes(b"changed while the process runs")
    assert checked((pinned,)) == (pinned,)


def test_a_repository_that_serves_another_jar_leaves_nothing_behind(
    pinned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "installed" / "set"
    monkeypatch.setattr(java, "jars_folder", lambda _set: folder)

    def serve(_set: object, scratch: Path) -> None:
        (scratch / "jars").mkdir()
        (scratch / "jars" / pinned.name).write_bytes(b"not what was tested")

    monkeypatch.setattr(java, "retrieve", serve)
    with pytest.raises(InputError, match=pinned.name):
        fetch_jars(SPARK_JARS)
    assert not folder.exists()
    assert list(folder.parent.iterdir()) == []


def test_every_coordinate_has_a_digest() -> None:
    known = pinned_digests()
    assert all(re.fullmatch("[0-9a-f]{64}|unknown", digest) for digest in known.values())
    for jar_set in JAR_SETS:
        for coordinate in jar_set.coordinates:
            assert jar_name(coordinate) in known, "run make jar-digests"


@pytest.mark.parametrize("jar_set", JAR_SETS, ids=lambda each: each.name)
def test_the_jars_of_this_environment_are_those(jar_set: java.JarSet) -> None:
    folder = jars_folder(jar_set)
    if not folder.is_dir():
        pytest.skip(f"{jar_set.name} is not fetched here")
    check_jars(folder.glob("*.jar"))


def test_a_folder_that_cannot_be_written_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").write_text("no folder")
    monkeypatch.setattr(java, "jars_folder", lambda _set: tmp_path / "home" / "jars" / "spark")
    with pytest.raises(InputError, match=r"jars cannot be written to .*home/jars: .*XDG_CACHE_HOME"):
        fetch_jars(SPARK_JARS)
