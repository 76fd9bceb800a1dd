"""Types of settings that are texts of a certain form: topics, globs, addresses, URIs, filters. Each checks its form."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

from compactor.filter_syntax import parse_filter
from compactor.redaction import without_password

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_BROKER: Final = re.compile(
    r"(?:(?:PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://)?(?:\[[0-9A-Fa-f:.]+\]|[\w.-]+):(\d{1,5})"
)
_MASTER: Final = re.compile(
    r"local|local\[(?:0*[1-9]\d*|\*)(?:,\s*0*[1-9]\d*)?\]|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|yarn|k8s://\S+"
    r"|spark://[\w.-]+:\d+(?:,[\w.-]+:\d+)*"
)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST: Final = re.compile(r"[\w.:-]+")
_LARGEST_PORT: Final = 65_535
CHECKPOINT_SCHEMES: Final = ("hdfs", "viewfs", "s3", "gs", "abfs", "abfss")
"""File systems that Spark and Arrow know by the same name; the checkpoint lies on one of them, or on local disk."""


@dataclass(frozen=True)
class Form:
    """Metadata of a text type: the form in plain words, and what is wrong with a text (None: nothing).

    `problem` returns the rest of a sentence that begins with the text, with the remedy. `is_hidden`: the sentence does
    not show the text.
    """

    text: str
    problem: Callable[[str], str | None]
    may_be_empty: bool = False
    is_hidden: bool = False

    def check(self, text: str) -> str:
        """The text.

        Raises:
            ValueError: the text does not have this form.
        """
        found = None if self.may_be_empty and not text else self.problem(text)
        if found is not None:
            raise ValueError(f"{'its value' if self.is_hidden else repr(without_password(text))} {found}")
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))


def _matching(pattern: re.Pattern[str], remedy: str) -> Callable[[str], str | None]:
    return lambda text: None if pattern.fullmatch(text) else remedy


def _topic(text: str) -> str | None:
    if _TOPIC.fullmatch(text) and text not in {".", ".."}:
        return None
    return "is not the name of a topic: use 1 to 249 letters, digits, '.', '_' and '-'"


def _topic_pattern(text: str) -> str | None:
    try:
        re.compile(text)
    except re.error as error:
        return f"is not a regular expression: {error}; write e.g. lake-.* for all topics that begin with lake-"
    return None


def _glob(text: str) -> str | None:
    if text != text.strip() or not text:
        return "matches no table: remove the spaces; write e.g. db.events or db.*"
    if "." not in text and not any(mark in text for mark in "*?["):
        return "matches no table, because a table's name has a namespace: write e.g. db.events or db.*"
    if _has_open_bracket(text):
        return "has a '[' that is not closed: write ']' after the characters, e.g. db.[ab]*; a '[' in a name is '[[]'"
    return None


def _has_open_bracket(text: str) -> bool:
    """Whether a '[' has no ']': `fnmatch` takes it for a letter then. The first letter in brackets may be a ']'."""
    at = 0
    while (at := text.find("[", at)) >= 0:
        at = text.find("]", at + 2 + (text[at + 1 : at + 2] == "!"))
        if at < 0:
            return True
    return False


def _brokers(text: str) -> str | None:
    for part in text.split(","):
        found = _BROKER.fullmatch(part.strip())
        if found is None or not 0 < int(found[1]) <= _LARGEST_PORT:
            shown = without_password(part.strip())
            return f"has {shown!r}, which is not host:port: write e.g. kafka-1:9092,kafka-2:9092"
    return None


def _checkpoint(text: str) -> str | None:
    if text.startswith("/") or re.match(r"file:/([^/]|//[^/])", text):
        return None
    if text.startswith("file:"):
        return "is not an absolute path: a file URI has three slashes, e.g. file:///var/lib/firnline/checkpoint"
    scheme, separator, rest = text.partition("://")
    if not separator:
        return "is not an absolute path: write e.g. file:///var/lib/firnline/checkpoint"
    if scheme not in CHECKPOINT_SCHEMES:
        known = ", ".join(f"{each}://" for each in CHECKPOINT_SCHEMES)
        return f"is on an unknown file system: use file:/// (a volume), or one of {known}"
    if not rest.strip("/"):
        return f"names no folder: write e.g. {scheme}://place/firnline/checkpoint"
    return None


def _filter(text: str) -> str | None:
    try:
        if text.strip():
            parse_filter(text)
    except (ValueError, ArithmeticError, RecursionError) as error:
        return f"is not a filter: {error or 'it is nested too deeply'}; docs/where.md has the syntax"
    return None


def address_problem(text: str, schemes: tuple[str, ...], example: str) -> str | None:
    """What keeps `text` from being an address (scheme://host, with or without a port and a path); None: nothing."""
    known = " or ".join(f"{scheme}://" for scheme in schemes)
    remedy = f"{without_password(text)!r} is not an address with {known}: write e.g. {example}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        return remedy if "@" in text else f"{remedy} ({str(error).lower()})"  # the error may show a password
    usable = parts.scheme in schemes and parts.hostname and port != 0 and not re.search(r"\s", text)
    return None if usable else remedy


FILTER: Final = Form("a filter (docs/where.md)", _filter)

GLOB: Final = Form("a table name or glob", _glob)

Topic = Annotated[str, Form("the name of a topic", _topic)]
TopicPattern = Annotated[str, Form("a regular expression", _topic_pattern, may_be_empty=True)]
Glob = Annotated[str, GLOB]
Brokers = Annotated[str, Form("addresses host:port, separated by commas", _brokers, may_be_empty=True)]
Checkpoint = Annotated[str, Form("a URI or an absolute path", _checkpoint, may_be_empty=True)]
Master = Annotated[
    str,
    Form(
        "a Spark master",
        _matching(_MASTER, "is not a Spark master: write e.g. local[4], spark://host:7077, k8s://https://host, yarn"),
    ),
]
Host = Annotated[
    str, Form("a host name or IP address", _matching(_HOST, "is not a host name or IP address: write e.g. 0.0.0.0"))
]
VariableName = Annotated[
    str,
    Form(
        "the name of an environment variable",
        _matching(
            _VARIABLE,
            "(not shown) is not the name of an environment variable: put the password into a variable and write its "
            "name, e.g. TRINO_PASSWORD",
        ),
        may_be_empty=True,
        is_hidden=True,
    ),
]
