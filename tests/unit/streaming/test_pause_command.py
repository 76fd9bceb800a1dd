"""`firnline pause` and `firnline resume`, as a person types them. No broker and no service is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from streaming.cli import main


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    catalogs = '{lake: {type: sql, uri: "sqlite:///:memory:"}}'
    (tmp_path / "firnline.yaml").write_text(f"catalogs: {catalogs}\nstate: {{checkpoint: 'file://{folder}'}}\n")
    return folder


def firnline(checkpoint: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["-c", str(checkpoint.parent / "firnline.yaml"), *arguments])


def globs(checkpoint: Path) -> list[str]:
    done = firnline(checkpoint, "pause", "--list", "--output", "json")
    document = json.loads(done.stdout)
    assert document["version"] == 1
    return [each["glob"] for each in document["pauses"]]


def test_a_person_pauses_and_resumes(checkpoint: Path) -> None:
    assert firnline(checkpoint, "pause", "--list").stdout == "nothing is paused\n"
    done = firnline(checkpoint, "pause", "db.ev*", "--for", "2h", "--reason", "catalog upgrade")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("paused: db.ev* until 2")
    assert done.stdout.endswith(": catalog upgrade\n")
    assert firnline(checkpoint, "pause").exit_code == 0
    assert globs(checkpoint) == ["*", "db.ev*"]
    assert "paused: * until `firnline resume`" in firnline(checkpoint, "pause", "--list").stdout
    assert firnline(checkpoint, "resume", "db.ev*").exit_code == 0
    assert globs(checkpoint) == ["*"]
    assert firnline(checkpoint, "resume").stdout == "nothing is paused\n"


def test_a_pause_that_has_ended_is_not_shown_and_can_be_resumed(checkpoint: Path) -> None:
    assert firnline(checkpoint, "pause", "--for", "1ms").exit_code == 0
    assert globs(checkpoint) == []
    assert firnline(checkpoint, "resume").exit_code == 0
    assert list((checkpoint / "pauses").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pause", "events"), "has a namespace: write e.g. db.events"),
        (("pause", "db.e\nvents"), "cannot be printed"),
        (("pause", "db.[a"), "has a '[' that is not closed: write ']' after the characters, e.g. db.[ab]*"),
        (("pause", "db.[]"), "has a '[' that is not closed"),
        (("pause", "db.[!]"), "has a '[' that is not closed"),
        (("pause", "db.[a]["), "has a '[' that is not closed"),
        (("pause", "--for", "soon"), "'soon' is not a time: write e.g. 30min, 2h or 1d"),
        (("pause", "--for", "2"), "'2' has no unit: write e.g. 30min, 2h or 1d"),
        (("pause", "--for", "0s"), "'0s' is not a time"),
        (("pause", "--for", "3654d"), "is more than ten years: leave out --for"),
        (("pause", "--for", "9" * 400 + "d"), "is more than ten years: leave out --for"),
        (("pause", "--reason", "a\nb"), "write one line"),
        (("pause", "--list", "db.*"), "leave out the other options"),
        (("resume", "db.*"), "there is no pause of db.*; nothing is paused"),
    ],
)
def test_bad_input_changes_nothing(checkpoint: Path, arguments: tuple[str, ...], said: str) -> None:
    done = firnline(checkpoint, *arguments)
    assert (done.exit_code, said in done.stderr, done.stdout) == (2, True, ""), done.output
    assert list(checkpoint.iterdir()) == []


@pytest.mark.parametrize("until", ["865701561600.5", "1e300", "Infinity", "1" + "0" * 400])
def test_a_pause_that_ends_after_all_dates_is_shown(checkpoint: Path, until: str) -> None:
    (checkpoint / "pauses").mkdir()
    written = f'{{"version": 1, "since": 1.0, "until": {until}, "reason": "upgrade"}}'
    (checkpoint / "pauses" / "db%2Eevents.json").write_text(written)
    done = firnline(checkpoint, "pause", "--list")
    assert done.stdout == "paused: db.events until `firnline resume`: upgrade\n", done.output


@pytest.mark.parametrize("glob", ["db.[a]", "db.[!a]", "db.[]a]*", "db.[[]", "db.a]"])
def test_brackets_that_are_closed_are_a_glob(checkpoint: Path, glob: str) -> None:
    assert firnline(checkpoint, "pause", glob).exit_code == 0
    assert globs(checkpoint) == [glob]


@pytest.mark.parametrize("name", ["%FF.json", "db.[a.json", "db%2E%5Ba.json"])
def test_a_document_that_no_pause_of_today_would_write_can_be_resumed(checkpoint: Path, name: str) -> None:
    (checkpoint / "pauses").mkdir()
    (checkpoint / "pauses" / name).write_text('{"version": 1, "since": 1.0, "until": null, "reason": ""}')
    (glob,) = globs(checkpoint)
    assert firnline(checkpoint, "resume", glob).exit_code == 0
    assert globs(checkpoint) == []


def test_a_checkpoint_that_is_elsewhere_is_no_success(checkpoint: Path) -> None:
    checkpoint.rmdir()
    for arguments in (("pause",), ("pause", "--list"), ("resume",)):
        done = firnline(checkpoint, *arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "run this command where the service runs" in " ".join(done.stderr.split())


def test_a_store_that_does_not_answer_is_no_bad_input(checkpoint: Path) -> None:
    (checkpoint / "pauses").write_text("a file, no folder")
    assert firnline(checkpoint, "pause").exit_code == 3


def test_settings_without_a_checkpoint_name_it(tmp_path: Path) -> None:
    (tmp_path / "firnline.yaml").write_text('catalogs: {lake: {type: sql, uri: "sqlite:///:memory:"}}\n')
    done = CliRunner().invoke(main, ["-c", str(tmp_path / "firnline.yaml"), "pause"])
    assert (done.exit_code, "state.checkpoint is not set" in done.stderr) == (2, True)
