"""Where the output of a command goes may lack characters, or room: no traceback, and the work that was done counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, CompletedProcess

import pytest


def run_command(checkpoint: Path, *arguments: str, to: str | None = None, **variables: str) -> CompletedProcess[bytes]:
    """A command in a process of its own; `to`: a file for its standard output."""
    settings = checkpoint.parent / "firnline.yaml"
    settings.write_text(
        f'catalogs: {{lake: {{type: sql, uri: "sqlite:///:memory:"}}}}\nstate: {{checkpoint: "file://{checkpoint}"}}\n'
    )
    command = [sys.executable, "-m", "streaming.cli", "-c", str(settings), *arguments]
    with ExitStack() as stack:
        stdout = PIPE if to is None else stack.enter_context(Path(to).open("wb"))
        return subprocess.run(command, stdout=stdout, stderr=PIPE, env=os.environ | variables, check=False)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_a_terminal_without_the_characters_shows_their_escapes(tmp_path: Path, encoding: str) -> None:
    done = run_command(tmp_path, "pause", "db.наледь", "--reason", "лёд", PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"paused: db.\u043d\u0430" in done.stdout
    done = run_command(tmp_path, "pause", "--list", "--output", "json", PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert [each["glob"] for each in json.loads(done.stdout.decode("ascii"))["pauses"]] == ["db.наледь"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_full_disk_behind_the_output_is_one_line(tmp_path: Path) -> None:
    done = run_command(tmp_path, "pause", "db.*", to="/dev/full")
    assert done.returncode == 3
    assert done.stderr.decode().strip() == (
        "firnline: the output cannot be written: No space left on device; the command itself did its work"
    )
    assert [path.name for path in (tmp_path / "pauses").iterdir()] == ["db%2E%2A.json"]
