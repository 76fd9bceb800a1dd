"""What the JVM prints arrives without secrets, as whole lines, and stops nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.redaction import HIDDEN, remember
from compactor.spark.jvm_output import LONGEST_LINE, Passage

ROOT = Path(__file__).parents[3]
SECRET = "canary-of-the-jvm"  # noqa: S105


@pytest.fixture
def passage(tmp_path: Path) -> Iterator[tuple[Passage, Path]]:
    """A passage to a file."""
    file = tmp_path / "out"
    with file.open("wb") as out:
        yield Passage(out.fileno()), file


def test_known_secrets_and_their_forms_are_hidden_and_all_else_stays(passage: tuple[Passage, Path]) -> None:
    made, file = passage
    remember([SECRET])
    line = json.dumps({"message": f'refused "{SECRET}"', "stack_trace": "\tat x\n"})
    said = f"ERROR {SECRET}\n{line}\nclient_secret=other-value\n\n\u00e9 and no newline"
    os.write(made.entrance, said.encode())
    os.close(made.entrance)
    made.drain()
    wanted = said.replace(SECRET, HIDDEN).replace("other-value", HIDDEN)
    assert file.read_text() == wanted + "\n"


def test_for_machines_each_line_is_an_entry(tmp_path: Path) -> None:
    file, own = tmp_path / "out", '{"message":"m","level":"error"}'
    with file.open("wb") as out:
        made = Passage(out.fileno(), as_json=True)
        os.write(made.entrance, f"# A fatal error\n\n{own}\n".encode())
        os.close(made.entrance)
        made.drain()
    first, second = file.read_text().splitlines()
    assert second == own
    entry = json.loads(first)
    assert (entry["message"], entry["level"], entry["logger"]) == ("# A fatal error", "warning", "stderr")
    assert entry["timestamp"].endswith("Z")


def test_a_secret_that_arrives_in_two_parts_is_hidden(passage: tuple[Passage, Path]) -> None:
    made, file = passage
    remember([SECRET])
    os.write(made.entrance, f"said {SECRET[:5]}".encode())
    made.drain()
    assert file.read_bytes() == b""
    os.write(made.entrance, f"{SECRET[5:]} again\n".encode())
    made.drain()
    assert file.read_text() == f"said {HIDDEN} again\n"
    os.close(made.entrance)


def test_a_line_without_end_does_not_fill_the_memory(passage: tuple[Passage, Path]) -> None:
    made, file = passage
    with os.fdopen(made.entrance, "wb") as entrance:
        entrance.write(b"x" * (3 * LONGEST_LINE))
    made.drain()
    lines = file.read_bytes().splitlines()
    assert len(lines) > 1
    assert b"".join(lines) == b"x" * (3 * LONGEST_LINE)


def test_the_first_error_is_kept_without_secrets(passage: tuple[Passage, Path]) -> None:
    made, _ = passage
    remember([SECRET])
    assert made.first_error == ""
    os.write(made.fileno(), f"WARNING: Using incubator modules\nPicked up _JAVA_OPTIONS: {SECRET}\n\n".encode())
    os.write(made.fileno(), f"Invalid maximum heap size: -Xmx{SECRET}\nError: no JVM\n".encode())
    os.close(made.entrance)
    made.drain()
    assert made.first_error == f"Invalid maximum heap size: -Xmx{HIDDEN}"


def test_a_reader_that_has_gone_does_not_stop_the_writer() -> None:
    gone, to = os.pipe()
    os.close(gone)
    made = Passage(to)
    for _ in range(100):
        os.write(made.entrance, b"x" * 4000 + b"\n")
    os.close(made.entrance)
    made.drain()
    os.close(to)


def test_a_child_that_fails_at_once_has_said_why() -> None:
    """As a JVM that cannot start: the process ends right after its child."""
    script = """
import subprocess, sys
from compactor.spark.jvm_output import output_without_secrets
with output_without_secrets() as output:
    subprocess.run(["sh", "-c", "echo out; echo client_secret=canary123 >&2"], stdout=output, stderr=output)
sys.exit(1)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"out\nclient_secret={HIDDEN}\n")
