"""Whatever is wrong with a settings file, a variable or a command line is refused with a message, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.contracts.invalid_input import FILE, Case, cases, make_place, message_of, run, written

CASES = {case.name: case for case in cases()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("place").resolve()
    make_place(made)
    return made


def test_the_file_has_many_cases_and_no_name_twice() -> None:
    assert len(CASES) == len(cases()) >= 60
    assert written(cases()) == FILE.read_text(encoding="utf-8"), "run: make update-messages"


@pytest.mark.parametrize(
    "command",
    ["check-config", "plan db.events", "compact db.events", "compact db.events --dry-run", "debt db.events --why",
     "debt", "assess", "simulate --commits 10 --size 1MB,40MiB --target 512MiB"],
)  # fmt: skip
def test_the_same_place_accepts_what_is_valid_and_documents_have_a_version(command: str, place: Path) -> None:
    done = run(Case("valid", command=command), place)
    assert (done.exit_code, done.exception) == (0, None), done.output
    found = json.loads(run(Case("valid", command=f"{command} --output json"), place).stdout)
    assert next(iter(found)) == "version"
    assert found["version"] == 1


@pytest.mark.parametrize("name", CASES)
def test_invalid_input_is_refused_with_its_message(name: str, place: Path) -> None:
    case = CASES[name]
    done = run(case, place)
    assert done.exit_code == 2, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "Traceback" not in done.output
    assert done.stdout == ""
    assert message_of(done, place) == case.message, "if the new message is better, run: make update-messages"
