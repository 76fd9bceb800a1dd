"""The log pump: a process that converts all output of the service's processes to one JSON object per line.

`streaming/logs/json_output.py` starts it by its path; it uses only the standard library. It outlives the service, so
that the last lines of a killed service and of its JVM are JSON too, and ends when all writers have closed the pipes.
What looks like a secret is hidden in what others print: for executors, only here.

Arguments: the read ends of two pipes (firnline's log; the output of all processes), a descriptor that it closes after
writing everything that was printed before the end of firnline's log, and the path of compactor/redaction.py.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import select
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

STDERR = 2
READ_BYTES = 1 << 16
LONGEST_LINE = 1 << 20  # cut longer lines and stack traces: they must not fill the memory
QUIET_SECONDS = 0.2  # a stack trace is complete after this time without a new line
FIELDS = ("message", "level", "logger")
JVM_OBJECT = b'{"message":'  # start of a line by log4j2-json.properties

TRACEBACK = "Traceback (most recent call last):"
FATAL = ("#", "Fatal Python error", "Terminating due to java.lang.OutOfMemoryError")
CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
HEADER = re.compile(r"Exception ignored in|Exception in thread|--- |Process .*:$")  # precedes a traceback
JAVA_FRAME = re.compile(r"\s+at \S+\(.*\)")
NEAR_FRAMES = 16  # lines: the part of a trace after its frames (causes, indented lines) is never longer
JAVA_MORE = re.compile(r"\s|Caused by: |Suppressed: |\.\.\. \d+ more")
JAVA_ERROR = re.compile(r"(Exception in thread .* )?([a-z]\w*\.)+\w*(Exception|Error|Throwable)\b")
PYTHON_ERROR = re.compile(r"[A-Za-z_][\w.]*(: |$)")
NEW_ENTRY = re.compile(r"WARNING:|SLF4J|Exception in thread|Exception ignored in|--- |\d\d(\d\d)?[-/]\d\d[-/]\d\d ")
ERROR = re.compile(r"(Error|ERROR|SEVERE)\b|.*\b(ERROR|SEVERE)\b|([\w.$]+)?(Error|Exception)\b")
WARNING = re.compile(r".*(\bwarn(ing)?\b|Warning\b|SLF4J\(W\))", re.IGNORECASE)


class Entries:
    """Converts lines of one pipe to log entries: JSON log lines unchanged, other text as new entries."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._bytes = 0

    def add(self, line: bytes) -> Iterator[bytes]:
        """Add a line; return the entries that are now complete."""
        if is_entry(line):
            yield from self.flush()
            yield line
            return
        glued = line.find(JVM_OBJECT)  # another process had printed a part of a line
        if glued > 0 and is_entry(line[glued:]):
            yield from self.add(line[:glued])
            yield from self.flush()
            yield line[glued:]
            return
        text = line.decode("utf-8", "replace").rstrip()
        if self._text and (self._bytes + len(line) > LONGEST_LINE or not continues(text, self._text)):
            yield from self.flush()
        if text or self._text:
            self._text.append(text)
            self._bytes += len(line)

    def flush(self) -> Iterator[bytes]:
        """Return the entry that was held back because more lines could belong to it."""
        text, self._text, self._bytes = self._text, [], 0
        if text:
            yield json.dumps(entry(text)).encode()

    @property
    def waiting(self) -> bool:
        return bool(self._text)


def is_entry(line: bytes) -> bool:
    """Whether a line is a JSON object with the fields of a log entry."""
    if not line.startswith(b"{"):
        return False
    try:
        found = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return all(isinstance(found.get(field), str) for field in FIELDS)


def continues(line: str, text: list[str]) -> bool:
    """Whether a line belongs to the stack trace or JVM crash report that starts in `text`."""
    first, last = text[0], text[-1]
    if not line or line[0].isspace() or JAVA_MORE.match(line):
        return True
    if first.startswith(FATAL):
        return line.startswith("#") or not first.startswith("#")
    last_text = next((each for each in reversed(text) if each), "")
    if last_text in CHAINED or line in CHAINED:
        return True
    if line == TRACEBACK:
        return TRACEBACK not in text and (HEADER.match(last) is not None or last.endswith(":"))
    if TRACEBACK in text:  # the error after the frames, or more lines of its message
        return not NEW_ENTRY.match(line)
    # A Java exception whose message has several lines.
    framed = any(map(JAVA_FRAME.match, text[-NEAR_FRAMES:]))
    return JAVA_ERROR.match(first) is not None and not framed and not NEW_ENTRY.match(line)


def entry(text: list[str]) -> dict[str, Any]:
    """A log entry of lines that are not JSON; a stack trace becomes its own field."""
    while not text[-1]:
        text.pop()
    message, traced = text[0], False
    if TRACEBACK in text:
        begin = len(text) - text[::-1].index(TRACEBACK)  # the last of chained errors is the unhandled one
        errors = [line for line in text[begin:] if line and not line[0].isspace() and PYTHON_ERROR.match(line)]
        message, traced = (errors or text)[0], True
    elif any(map(JAVA_FRAME.match, text)) or (text[0].startswith(FATAL) and len(text) > 1):
        message, traced = next((line for line in text if line.strip("# ")), text[0]).lstrip("# "), True
    elif len(text) > 1:
        message = "\n".join(text)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    made = {"message": message, "timestamp": now, "level": level(text, traced=traced), "logger": "stderr"}
    return {**made, "stack_trace": "\n".join(text)} if traced else made


def level(text: list[str], *, traced: bool) -> str:
    """Log level, guessed from the first line."""
    if text[0].startswith(FATAL):
        return "critical"
    if traced or ERROR.match(text[0]):
        return "error"
    return "warning" if WARNING.match(text[0]) else "info"


class Source:
    """One pipe: its incomplete last line, and its entries."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.entries = Entries()
        self.open = True
        self._rest = b""
        self._read_at = 0.0

    def read(self) -> list[bytes]:
        """Read once; return the complete entries."""
        found = os.read(self.descriptor, READ_BYTES)
        self._read_at = time.monotonic()
        self.open = bool(found)
        *lines, self._rest = (self._rest + found).split(b"\n")
        if not self.open or len(self._rest) > LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        entries = [made for line in lines for made in self.entries.add(line)]
        return entries if self.open else [*entries, *self.entries.flush()]

    def complete(self) -> list[bytes]:
        """Return the held-back entry after `QUIET_SECONDS` without output."""
        return list(self.entries.flush()) if time.monotonic() - self._read_at >= QUIET_SECONDS else []


def pump(own: int, printed: int, done: int, to: int = STDERR, hide: Callable[[str], str] = str) -> None:
    """Convert both pipes until all writers have closed them; close `done` once `own` has ended."""
    first, second = Source(own), Source(printed)

    def write(source: Source, entries: list[bytes]) -> None:
        if source is second:  # firnline's own are free of secrets
            entries = [hide(each.decode("utf-8", "replace")).encode() for each in entries]
        write_lines(to, entries)

    while first.open or second.open:
        wait = QUIET_SECONDS if first.entries.waiting or second.entries.waiting else None
        for source in readable([source for source in (first, second) if source.open], wait):
            write(source, source.read())
        for source in (first, second):
            write(source, source.complete())
        if not first.open and done >= 0:
            while second.open and readable([second], 0):
                write(second, second.read())
            write(second, list(second.entries.flush()))
            os.close(done)
            done = -1


def readable(sources: list[Source], wait: float | None) -> list[Source]:
    """Sources with data to read, or at their end."""
    ready, _, _ = select.select([source.descriptor for source in sources], [], [], wait)
    return [source for source in sources if source.descriptor in ready]


def write_lines(to: int, entries: list[bytes]) -> None:
    """Write whole lines. Drop them if the reader is gone: writers must not wait or fail because of it."""
    rest = b"".join(line + b"\n" for line in entries)
    while rest:
        try:
            rest = rest[os.write(to, rest) :]
        except BlockingIOError:
            select.select([], [to], [])
        except OSError:
            return


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


if __name__ == "__main__":
    descriptors, redaction = [int(each) for each in sys.argv[1:4]], runpy.run_path(sys.argv[4])
    pump(descriptors[0], descriptors[1], descriptors[2], hide=redaction["hide"])
