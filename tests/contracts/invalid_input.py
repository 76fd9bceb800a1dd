"""Invalid settings files and command lines, each with the message that it must produce: `invalid_input.yaml`.

`python -m tests.contracts.invalid_input` writes the messages anew (`make update-messages`). Read the difference: a
message names the key, the value, what is allowed and the remedy.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from click.testing import CliRunner, Result
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from compactor.settings.origins import ENVIRONMENT_PREFIX
from streaming.cli import main

FILE = Path(__file__).with_suffix(".yaml")
HEADER = """\
# Invalid settings files and command lines, each with the message that it must produce (exit code 2, nothing on stdout).
# `make update-messages` writes the messages anew. `settings`: the file; if it is missing, a valid one with the table
# db.events(id, day). `command`: what follows `firnline -c firnline.yaml`; if it is missing, check-config.
"""
VALID = """\
catalogs: {lake: {type: sql, uri: "sqlite:///catalog.db"}}
logging: {format: console}
"""


@dataclass(frozen=True)
class Case:
    """One input, and its message (stderr)."""

    name: str
    settings: str = VALID
    environment: Mapping[str, str] = field(default_factory=dict)
    command: str = "check-config"
    message: str = ""


def cases() -> list[Case]:
    return [Case(**each) for each in yaml.safe_load(FILE.read_text(encoding="utf-8"))]


def make_place(folder: Path) -> None:
    """A folder to run commands in: a catalog in SQLite with one table, and a price file with an unknown key."""
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace("db")
    catalog.create_table("db.events", Schema(NestedField(1, "id", LongType()), NestedField(2, "day", StringType())))
    (folder / "prices.yaml").write_text("get_per_thousand: 1\n")


def run(case: Case, folder: Path) -> Result:
    """Run the command of a case in `folder`, without firnline's variables of this process."""
    with in_folder(folder), without_own_variables():
        Path("firnline.yaml").write_text(case.settings, encoding="utf-8")
        arguments = ["-c", "firnline.yaml", *shlex.split(case.command)]
        return CliRunner().invoke(main, arguments, prog_name="firnline", env=dict(case.environment))


def message_of(result: Result, folder: Path) -> str:
    return result.stderr.replace(str(folder), "<folder>")


@contextlib.contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def without_own_variables() -> Iterator[None]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
    with patch.dict(os.environ, kept, clear=True):
        yield


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text and "\t" not in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def written(found: list[Case]) -> str:
    """The text of the file."""
    entries: list[dict[str, Any]] = []
    for case in found:
        entry: dict[str, Any] = {"name": case.name}
        entry |= {"settings": case.settings} if case.settings != VALID else {}
        entry |= {"environment": dict(case.environment)} if case.environment else {}
        entry |= {"command": case.command} if case.command != "check-config" else {}
        entries.append(entry | {"message": case.message})
    texts = (yaml.dump([each], Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000) for each in entries)
    return HEADER + "".join(texts)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        make_place(place)
        now = [
            Case(each.name, each.settings, each.environment, each.command, message_of(run(each, place), place))
            for each in cases()
        ]
    FILE.write_text(written(now), encoding="utf-8")
