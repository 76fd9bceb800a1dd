"""The log pump: every line becomes one JSON object, whatever prints it and however it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from streaming.logs.pump import Entries, pump

ROOT = Path(__file__).parents[3]
OWN = {"message": "ready", "timestamp": "2026-03-01T10:00:03.417Z", "level": "info", "logger": "firnline"}

PYTHON = """Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
ValueError: odd
"""
CHAINED = """Traceback (most recent call last):
  File "a.py", line 1, in f
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in f
compactor.errors.LaterError: not now
  and a second line of it
"""
UNRAISABLE = """Exception ignored in: <function C.__del__ at 0x7f>
Traceback (most recent call last):
  File "c.py", line 2, in __del__
ZeroDivisionError: division by zero
"""
JAVA = """Exception in thread "stream" org.apache.spark.SparkException: Job aborted.
Driver stacktrace:
\tat org.apache.spark.Dispatcher.post(Dispatcher.scala:176)
\tSuppressed: java.io.IOException: closed
\t\tat java.base/java.io.Reader.read(Reader.java:1)
Caused by: java.lang.IllegalStateException: stopped
\tat org.apache.spark.Env.get(Env.scala:3)
\t... 12 more
"""
CRASH = """#
# A fatal error has been detected by the Java Runtime Environment:
#
#  SIGSEGV (0xb) at pc=0x7f, pid=1, tid=2
#
"""
FAULT = """Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "x.py", line 1 in f

Thread 0x00007e (most recent call first):
  File "y.py", line 1 in g
"""


def made_of(text: str) -> list[dict[str, Any]]:
    entries = Entries()
    lines = [made for line in text.encode().split(b"\n") for made in entries.add(line)]
    return [json.loads(line) for line in (*lines, *entries.flush())]


@pytest.mark.parametrize(
    ("text", "message", "level"),
    [
        (PYTHON, "ValueError: odd", "error"),
        (CHAINED, "compactor.errors.LaterError: not now", "error"),
        (UNRAISABLE, "ZeroDivisionError: division by zero", "error"),
        (JAVA, 'Exception in thread "stream" org.apache.spark.SparkException: Job aborted.', "error"),
        (CRASH, "A fatal error has been detected by the Java Runtime Environment:", "critical"),
        (FAULT, "Fatal Python error: Segmentation fault", "critical"),
    ],
    ids=["python", "chained", "unraisable", "java", "jvm crash", "python crash"],
)
def test_a_stack_trace_is_one_entry_beside_what_surrounds_it(text: str, message: str, level: str) -> None:
    before, made, own = made_of(f"WARNING: Using incubator modules\n{text}{json.dumps(OWN)}\n")
    assert (before["message"], before["level"], "stack_trace" in before) == (
        "WARNING: Using incubator modules", "warning", False,
    )  # fmt: skip
    assert (made["message"], made["level"], made["logger"]) == (message, level, "stderr")
    assert made["stack_trace"] == text.rstrip()
    assert own == OWN


def test_two_stack_traces_in_a_row_are_two_entries() -> None:
    assert [made["stack_trace"] for made in made_of(PYTHON + PYTHON + UNRAISABLE + JAVA)] == [
        each.rstrip() for each in (PYTHON, PYTHON, UNRAISABLE, JAVA)
    ]


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("Picked up JAVA_TOOL_OPTIONS: -Dx=y", "info"),
        ("SLF4J(W): Class path contains multiple providers.", "warning"),
        ("OpenJDK 64-Bit Server VM warning: INFO: os::commit_memory failed", "warning"),
        ("/usr/lib/x.py:3: UserWarning: old", "warning"),
        ("26/11/23 10:54:45 ERROR Utils: no", "error"),
        ("Error: No such option '--bogus'.", "error"),
        ('{"a": 1}', "info"),
        ('{"message": NaN, "level": "info", "logger": "x"}', "info"),
        ('{"message": "m", "level": "info"', "info"),
        ("[1, 2]", "info"),
        ("\udcff\x00\x1b[1mhello", "info"),
    ],
)
def test_any_other_line_is_the_message_of_an_entry(line: str, level: str) -> None:
    data = line.encode("utf-8", "surrogateescape")
    entries = Entries()
    (made,) = map(json.loads, (*entries.add(data), *entries.flush()))
    assert made["message"] == data.decode("utf-8", "replace")
    assert (made["level"], made["logger"]) == (level, "stderr")
    assert made["timestamp"].endswith("Z")


def test_an_entry_behind_the_beginning_of_another_line_is_found() -> None:
    text, own = made_of(f"Starting worker{json.dumps(OWN)}")
    assert (text["message"], own) == ("Starting worker", OWN)


def piped(script: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and lines of a program whose output passes a pump."""
    code = "import logging, os, signal, subprocess, sys, threading, time\n" + textwrap.dedent(script)
    begin = "from streaming.logs.json_output import output_as_json\nlog = output_as_json()\n"
    done = subprocess.run(
        [sys.executable, "-c", begin + code], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )
    assert done.stdout == ""
    return done.returncode, [json.loads(line) for line in done.stderr.splitlines()]


def test_nothing_is_lost_or_torn_when_many_print_at_once() -> None:
    """More than a pipe holds, and lines longer than a pipe takes at once, from threads and from a child."""
    code, lines = piped(
        f"""
        record = logging.makeLogRecord(dict(msg='{json.dumps(OWN)}'.replace("ready", "r" * 9000)))
        handler = logging.StreamHandler(log)
        lines = "[os.write(1, b'child %d' % number + bytes([10])) for number in range(3000)]"
        child = subprocess.Popen([sys.executable, "-c", f"import os; {{lines}}"])
        threads = [threading.Thread(target=lambda: [handler.handle(record) for _ in range(100)]) for _ in range(4)]
        [thread.start() for thread in threads]
        for number in range(3000): os.write(2, b"service %d\\n" % number)
        [thread.join() for thread in threads]
        child.wait()
        print("last", end="")
        """
    )
    assert code == 0
    assert [line["message"] for line in lines if line["logger"] == "firnline"] == ["r" * 9000] * 400
    for who in ("child", "service"):
        said = [line["message"] for line in lines if line["message"].startswith(who)]
        assert said == [f"{who} {number}" for number in range(3000)]
    assert [line["message"] for line in lines if line["logger"] == "stderr"][-1] == "last"


@pytest.mark.parametrize(
    ("end", "code", "message"),
    [
        ("raise ValueError('odd')", 1, "ValueError: odd"),
        ("sys.exit('sorry')", 1, "sorry"),
        ("os.abort()", -6, "before"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, "before"),
        ("import faulthandler; faulthandler.enable(); os.abort()", -6, "Fatal Python error: Aborted"),
        ("os.killpg(0, signal.SIGTERM)", -15, "before"),
    ],
)
def test_the_last_lines_are_passed_on_however_it_ends(end: str, code: int, message: str) -> None:
    ended, lines = piped(f"os.setpgid(0, 0)\nprint('before', file=sys.stderr)\n{end}")
    assert ended == code
    assert lines[-1]["message"] == message


def test_a_child_prints_after_its_parent_was_killed() -> None:
    code, lines = piped(
        """
        subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read(); 1 / 0"], stdin=subprocess.PIPE)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert (code, [line["message"] for line in lines]) == (-9, ["ZeroDivisionError: division by zero"])


def test_at_a_good_end_everything_has_been_passed_on_though_a_child_lives(tmp_path: Path) -> None:
    """Nobody has to wait for the pump: in a container it ends with the service."""
    out = tmp_path / "log"
    script = f"""
from streaming.logs.json_output import output_as_json
import subprocess, sys
log = output_as_json()
subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read(); print('late')"], stdin=int(sys.argv[1]))
for _ in range(1000): log.write('{json.dumps(OWN)}\\n')
print("printed")
sys.stdout.flush()
"""
    held, hold = os.pipe()
    with out.open("wb") as log:
        subprocess.run(
            [sys.executable, "-c", script, str(held)], stderr=log, cwd=ROOT, pass_fds=(held,), check=True, timeout=120
        )
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    os.close(hold)
    os.close(held)
    assert sorted(line["message"] for line in lines) == ["printed", *["ready"] * 1000]


def test_without_the_pump_its_own_log_goes_on() -> None:
    code, lines = piped(
        f"""
        children = open("/proc/self/task/%d/children" % os.getpid()).read().split()
        os.kill(int(children[0]), signal.SIGKILL)
        os.waitpid(int(children[0]), 0)
        log.write('{json.dumps(OWN)}\\n')
        """
    )
    assert (code, lines) == (0, [OWN])


def test_a_reader_that_has_gone_stops_nobody() -> None:
    pipes = [os.pipe() for _ in range(4)]
    (own, to_own), (printed, to_printed), (drained, done), (gone, to) = pipes
    os.close(gone)
    os.write(to_own, b"a\n")
    os.write(to_printed, b"b\n")
    os.close(to_own)
    os.close(to_printed)
    pump(own, printed, done, to)
    assert os.read(drained, 1) == b""
    for descriptor in (own, printed, drained, to):
        os.close(descriptor)


def test_another_program_keeps_its_exit_code_and_its_output() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "streaming.logs.json_output", "sh", "-c", "echo one; echo two >&2; exit 7"],
        capture_output=True, text=True, cwd=ROOT, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 7
    assert [json.loads(line)["message"] for line in done.stderr.splitlines()] == ["one", "two"]


def test_what_looks_like_a_secret_is_hidden() -> None:
    """Of an executor in a pod; nobody else does it there."""
    own = json.dumps({"message": "Bearer canary1234", "level": "error", "logger": "x"})
    said = f"echo 'ERROR refused: password=canary123'; echo '{own}'"
    done = subprocess.run(
        [sys.executable, "-m", "streaming.logs.json_output", "sh", "-c", said],
        capture_output=True, text=True, cwd=ROOT, timeout=120, check=False,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["level"] for line in lines] == ["error", "error"]
    assert "canary" not in done.stderr
