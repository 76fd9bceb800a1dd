"""The command line: every command is there, and one that is called loads no more than it needs."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import click
import pytest

from streaming import commands
from streaming.cli import COMMANDS, first_sentence, main

CODE = """
import sys
from streaming.cli import main
try:
    main({arguments})
except SystemExit:
    print(*sorted({{name.partition(".")[0] for name in sys.modules}}))
"""
LARGE = {"datafusion", "numpy", "pandas", "pyarrow", "pyiceberg", "pyspark"}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_found_under_its_name(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.name == name


def test_no_command_is_left_out() -> None:
    names = [each.name for each in iter_modules(commands.__path__)]
    found = {name: vars(import_module(f"{commands.__name__}.{name}")).values() for name in names}
    modules = {name for name, values in found.items() if any(isinstance(each, click.Command) for each in values)}
    assert {where.partition(":")[0] for where in COMMANDS.data.values()} == modules
    assert main.list_commands(click.Context(main)) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says(name: str) -> None:
    assert first_sentence(COMMANDS.data[name], 70) == COMMANDS[name].get_short_help_str(70)


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        (["--help"], LARGE | {"rich", "kafka", "pydantic", "yaml"}),
        (["emit", "--help"], LARGE | {"rich"}),
        (["emit", "db.t"], LARGE),
    ],
)
def test_no_large_library_is_loaded(arguments: list[str], unneeded: set[str], tmp_path: Path) -> None:
    """Jobs call `emit` after each commit. The last call fails, because no broker is set; Rich shows the error."""
    config = tmp_path / "firnline.yaml"
    config.write_text("catalogs: {lake: {type: rest, uri: 'http://catalog:8181'}}")
    code = CODE.format(arguments=["-c", str(config), *arguments])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert ("kafka" in loaded) == ("emit" in arguments)
    assert loaded & unneeded == set()
