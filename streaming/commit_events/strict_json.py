"""Strict access to untrusted JSON: one parser, typed access to fields, and the marks that tell formats apart.

A mark is a key of the event, with some of its values. It is searched in the bytes, because most events of a topic that
several systems write to are of another format, and parsing them for each decoder would cost too much.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from streaming.commit_events.decoder import (
    TIMESTAMP_MS_MAX,
    BadEventReason,
    Decoded,
    MalformedError,
    RawEvent,
    explained,
    shown,
)

MAX_TEXT_CHARACTERS = 4096
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
UUID_BYTES = 16
FEWEST_PARTS = 2  # of a table's identifier: one level of a namespace, and the name

# Control characters can forge log lines. A lone surrogate cannot be encoded as UTF-8.
_UNUSABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_OBJECT = re.compile(rb"[ \t\r\n]*\{")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Mark:
    """Bytes that a value must contain, and the pattern that they must be part of. Most values lack the bytes.

    A pattern must begin with certain bytes: one that begins with a run of any length (`[a-z]+:s3`) takes time with the
    square of such a run in the value.
    """

    literal: bytes
    pattern: re.Pattern[bytes]

    def is_in(self, value: bytes) -> bool:
        return self.literal in value and self.pattern.search(value) is not None


def mark(key: str, values: str = "") -> Mark:
    """The mark of a key, followed by a string that matches `values` (a regular expression) if that is given.

    A string that quotes the key is not found: JSON writes a backslash before each quote in it.
    """
    value = rf'\s*"(?:{values})"' if values else ""
    return Mark(f'"{key}"'.encode(), re.compile(rf'"{re.escape(key)}"\s*:{value}'.encode()))


@dataclass(frozen=True)
class JsonDecoder:
    """A decoder of events that are one JSON object.

    `marks`: an event of the format has all marks of one of these groups. `read`: its result, from the fields and the
    time of the record in milliseconds; it may raise MalformedError.
    """

    source: str
    marks: tuple[tuple[Mark, ...], ...]
    read: Callable[[Fields, int], Decoded]

    def recognises(self, event: RawEvent) -> bool:
        value = event.value
        if value is None or _OBJECT.match(value) is None:
            return False
        for group in self.marks:  # no generators: each event is asked about by all decoders
            for each in group:
                if not each.is_in(value):
                    break
            else:
                return True
        return False

    def decode(self, event: RawEvent) -> Decoded:
        try:
            return self.read(Fields(parse_object(event.value or b"")), event.timestamp_ms)
        except MalformedError as malformed:
            return malformed.bad


def parse_object(content: bytes) -> dict[str, Any]:
    """Parse one JSON object strictly: UTF-8, no NaN, no duplicate keys, limited depth and size of numbers.

    Raises:
        MalformedError: `invalid_json`, or `wrong_type` for JSON that is not an object.
    """
    try:
        value = json.loads(
            content.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_object_without_duplicates
        )
    except (ValueError, RecursionError) as error:  # ValueError: bad UTF-8, bad JSON, numbers with too many digits
        raise MalformedError(BadEventReason.INVALID_JSON, f"not strict JSON: {explained(error)}") from error
    if not isinstance(value, dict):
        raise MalformedError(
            BadEventReason.WRONG_TYPE, f"the event is a JSON {type(value).__name__}; it must be an object"
        )
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # JSON parsers differ in which of two equal keys they keep: two tools could read two different events.
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {shown(twice)} occurs twice in one object")
    return fields


@dataclass(frozen=True)
class Fields:
    """Typed access to an untrusted record. A null field counts as absent; unknown fields are ignored.

    Every method raises MalformedError: `missing_field`, `wrong_type`, `out_of_range` or `invalid_text`.
    """

    values: Mapping[str, Any]
    path: str = ""

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def text(self, name: str) -> str:
        return checked_text(self._required(name), self.path + name)

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if self.has(name) else None

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._required(name)
        if not isinstance(value, list):
            raise _wrong_type(self.path + name, value, "a list of strings")
        return tuple(checked_text(part, f"{self.path}{name}[{index}]") for index, part in enumerate(value))

    def namespace(self, name: str) -> tuple[str, ...]:
        """The levels of a table's namespace.

        Raises:
            MalformedError: also `no_namespace`, because settings cannot name a table without a namespace.
        """
        levels = self.texts(name)
        if not levels:
            raise no_namespace(f"{self.path}{name} is empty")
        return levels

    def identifier(self, name: str) -> tuple[tuple[str, ...], str]:
        """Namespace and name of a table, from a list of the namespace's levels and the name.

        Raises:
            MalformedError: also `no_namespace`.
        """
        parts = self.texts(name)
        if len(parts) < FEWEST_PARTS:
            raise no_namespace(f"{self.path}{name} has {len(parts)} parts")
        return parts[:-1], parts[-1]

    def integer(self, name: str, low: int = INT64_MIN, high: int = INT64_MAX) -> int:
        value = self._required(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong_type(self.path + name, value, "an integer")
        if not low <= value <= high:
            raise MalformedError(
                BadEventReason.OUT_OF_RANGE, f"{self.path}{name} is {shown(value)}; it must be in {low}..{high}"
            )
        return value

    def optional_integer(self, name: str, low: int = INT64_MIN, high: int = INT64_MAX) -> int | None:
        return self.integer(name, low, high) if self.has(name) else None

    def uuid(self, name: str) -> str:
        """A UUID in its canonical lower-case form, from text or from 16 bytes."""
        value = self._required(name)
        if isinstance(value, bytes) and len(value) == UUID_BYTES:
            return str(UUID(bytes=value))
        written = checked_text(value, self.path + name).lower()
        try:
            usual = str(UUID(written))
        except ValueError:
            usual = ""
        if usual != written:  # UUID() also accepts braces, URNs and missing hyphens; table metadata does not use them
            raise MalformedError(BadEventReason.INVALID_TEXT, f"{self.path}{name} is {shown(value)}; it must be a UUID")
        return usual

    def optional_uuid(self, name: str) -> str | None:
        return self.uuid(name) if self.has(name) else None

    def instant_ms(self, name: str) -> int:
        """An instant in ISO 8601 with an offset from UTC, in milliseconds since 1970."""
        written = self.text(name)
        try:
            instant = datetime.fromisoformat(written)
            since_epoch = (instant - _EPOCH) // _MILLISECOND  # TypeError: no offset, so the instant is unknown
        except (ValueError, TypeError, OverflowError) as error:
            raise MalformedError(
                BadEventReason.INVALID_TEXT, f"{self.path}{name} is {shown(written)}; it must be an instant in ISO 8601"
            ) from error
        if not 0 <= since_epoch <= TIMESTAMP_MS_MAX:
            raise MalformedError(
                BadEventReason.OUT_OF_RANGE, f"{self.path}{name} is {shown(written)}; it must be in 1970 or later"
            )
        return since_epoch

    def optional_instant_ms(self, name: str) -> int | None:
        return self.instant_ms(name) if self.has(name) else None

    def record(self, name: str) -> Fields:
        value = self._required(name)
        if not isinstance(value, dict):
            raise _wrong_type(self.path + name, value, "an object")
        return Fields(value, f"{self.path}{name}.")

    def optional_record(self, name: str) -> Fields:
        """The record; one without fields if there is none."""
        return self.record(name) if self.has(name) else Fields({}, f"{self.path}{name}.")

    def records(self, name: str) -> tuple[Fields, ...]:
        value = self._required(name)
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise _wrong_type(self.path + name, value, "a list of objects")
        return tuple(Fields(each, f"{self.path}{name}[{index}].") for index, each in enumerate(value))

    def optional_records(self, name: str) -> tuple[Fields, ...]:
        return self.records(name) if self.has(name) else ()

    def _required(self, name: str) -> Any:
        value = self.values.get(name)
        if value is None:
            raise MalformedError(BadEventReason.MISSING_FIELD, f"the event has no {self.path}{name}")
        return value


def no_namespace(what: str) -> MalformedError:
    """The error for a table whose namespace is missing: settings cannot name it."""
    return MalformedError(BadEventReason.NO_NAMESPACE, f"{what}; tables without a namespace are not supported")


def _wrong_type(where: str, value: object, wanted: str) -> MalformedError:
    return MalformedError(BadEventReason.WRONG_TYPE, f"{where} is {shown(value)}; it must be {wanted}")


def checked_text(value: object, where: str) -> str:
    """The value, if it is text that can be a name: not empty, not too long, printable. `where`: its name in errors.

    Raises:
        MalformedError: `wrong_type` or `invalid_text`.
    """
    if not isinstance(value, str):
        raise _wrong_type(where, value, "a string")
    if not 1 <= len(value) <= MAX_TEXT_CHARACTERS:
        limits = f"1 to {MAX_TEXT_CHARACTERS} characters"
        raise MalformedError(BadEventReason.INVALID_TEXT, f"{where} has {len(value)} characters; it must have {limits}")
    if _UNUSABLE.search(value):
        raise MalformedError(
            BadEventReason.INVALID_TEXT, f"{where} is {shown(value)}; it contains control characters or surrogates"
        )
    return value
