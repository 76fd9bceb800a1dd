"""The log pump: a process that turns whatever the service's processes print into one JSON object a line.

`streaming/logs/json_output.py` starts it by its path, with the standard library alone. It outlives the service, so that
the last lines of a killed service and of its JVM are JSON too, and ends when no process can print any more.

Arguments: the read ends of two pipes (firnline's own log; what all processes print) and a descriptor to close once
everything that was printed before the end of firnline's own log has been passed on.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

STDERR = 2
READ_BYTES = 1 << 16
LONGEST_LINE = 1 << 20  # a line or stack trace beyond it is cut, so that no writer can fill the memory
QUIET_SECONDS = 0.2  # a stack trace without a new line for so long is complete
FIELDS = ("message", "level", "logger")
JVM_OBJECT = b'{"message":'  # as log4j2-json.properties begins a line

TRACEBACK = "Traceback (most recent call last):"
FATAL = ("#", "Fatal Python error", "Terminating due to java.lang.OutOfMemoryError")
CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
HEADER = re.compile(r"Exception ignored in|Exception in thread|--- |Process .*:$")  # precedes a traceback
JAVA_FRAME = re.compile(r"\s+at \S+\(.*\)")
NEAR_FRAMES = 16  # lines: what follows the frames of a trace (causes, indented lines) never goes on for longer
JAVA_MORE = re.compile(r"\s|Caused by: |Suppressed: |\.\.\. \d+ more")
JAVA_ERROR = re.compile(r"(Exception in thread .* )?([a-z]\w*\.)+\w*(Exception|Error|Throwable)\b")
PYTHON_ERROR = re.compile(r"[A-Za-z_][\w.]*(: |$)")
NEW_ENTRY = re.compile(r"WARNING:|SLF4J|Exception in thread|Exception ignored in|--- |\d\d(\d\d)?[-/]\d\d[-/]\d\d ")
ERROR = re.compile(r"(Error|ERROR|SEVERE)\b|.*\b(ERROR|SEVERE)\b|([\w.$]+)?(Error|Exception)\b")
WARNING = re.compile(r".*(\bwarn(ing)?\b|Warning\b|SLF4J\(W\))", re.IGNORECASE)


class Entries:
    """Lines of one pipe become log entries: JSON log lines as they are, all else as the text of an entry."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._bytes = 0

    def add(self, line: bytes) -> Iterator[bytes]:
        """The entries that are complete now."""
        if is_entry(line):
            yield from self.flush()
            yield line
            return
        glued = line.find(JVM_OBJECT)  # another process printed the beginning of a line meanwhile
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
        """What has been held back in case that more of it comes."""
        text, self._text, self._bytes = self._text, [], 0
        if text:
            yield json.dumps(entry(text)).encode()

    @property
    def waiting(self) -> bool:
        """Whether something is held back."""
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
    """Whether a line belongs to the stack trace, or to the JVM's crash report, that `text` begins."""
    first, last = text[0], text[-1]
    if not line or line[0].isspace() or JAVA_MORE.match(line):
        return True
    if first.startswith(FATAL):
        return line.startswith("#") or not first.startswith("#")
    said = next((each for each in reversed(text) if each), "")
    if said in CHAINED or line in CHAINED:
        return True
    if line == TRACEBACK:
        return TRACEBACK not in text and (HEADER.match(last) is not None or last.endswith(":"))
    if TRACEBACK in text:  # the error after its frames, or further lines of its message
        return not NEW_ENTRY.match(line)
    # A Java exception whose message has several lines.
    framed = any(map(JAVA_FRAME.match, text[-NEAR_FRAMES:]))
    return JAVA_ERROR.match(first) is not None and not framed and not NEW_ENTRY.match(line)


def entry(text: list[str]) -> dict[str, Any]:
    """A log entry of lines that are no JSON; a stack trace is a field of its own."""
    while not text[-1]:
        text.pop()
    message, traced = text[0], False
    if TRACEBACK in text:
        begin = len(text) - text[::-1].index(TRACEBACK)  # of chained errors the last is the one that was not handled
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
    """How bad it is, by its first line."""
    if text[0].startswith(FATAL):
        return "critical"
    if traced or ERROR.match(text[0]):
        return "error"
    return "warning" if WARNING.match(text[0]) else "info"


class Source:
    """One pipe: what has been read of it and is no whole line yet, and its entries."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.entries = Entries()
        self.open = True
        self._rest = b""
        self._read_at = 0.0

    def read(self) -> list[bytes]:
        """Entries of what can be read now."""
        found = os.read(self.descriptor, READ_BYTES)
        self._read_at = time.monotonic()
        self.open = bool(found)
        *lines, self._rest = (self._rest + found).split(b"\n")
        if not self.open or len(self._rest) > LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        entries = [made for line in lines for made in self.entries.add(line)]
        return entries if self.open else [*entries, *self.entries.flush()]

    def complete(self) -> list[bytes]:
        """What was held back for longer than a writer takes from one line of a stack trace to the next."""
        return list(self.entries.flush()) if time.monotonic() - self._read_at >= QUIET_SECONDS else []


def pump(own: int, printed: int, done: int, to: int = STDERR) -> None:
    """Pass on both pipes until nobody can write to them; close `done` as soon as `own` has ended."""
    first, second = Source(own), Source(printed)
    while first.open or second.open:
        wait = QUIET_SECONDS if first.entries.waiting or second.entries.waiting else None
        for source in readable([source for source in (first, second) if source.open], wait):
            write(to, source.read())
        for source in (first, second):
            write(to, source.complete())
        if not first.open and done >= 0:
            while second.open and readable([second], 0):
                write(to, second.read())
            write(to, list(second.entries.flush()))
            os.close(done)
            done = -1


def readable(sources: list[Source], wait: float | None) -> list[Source]:
    """The sources that have something to read, or have ended."""
    ready, _, _ = select.select([source.descriptor for source in sources], [], [], wait)
    return [source for source in sources if source.descriptor in ready]


def write(to: int, entries: list[bytes]) -> None:
    """Write whole lines. Where nobody reads them any more, they are dropped: no writer must wait or fail for that."""
    rest = b"".join(line + b"\n" for line in entries)
    while rest:
        try:
            rest = rest[os.write(to, rest) :]
        except BlockingIOError:
            select.select([], [to], [])
        except OSError:
            return


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


if __name__ == "__main__":
    pump(*map(int, sys.argv[1:]))
