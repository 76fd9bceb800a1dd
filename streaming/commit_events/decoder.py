"""What every decoder of commit events shares: the event as Kafka holds it, the three possible answers, and the choice.

An event is a hint written by somebody else. Whatever its bytes are, decoding ends in one of three values and raises
nothing: one bad event must cost one dead letter, never the stream.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args
from uuid import UUID

MAX_EVENT_BYTES = 1024 * 1024
MAX_TEXT_CHARACTERS = 4096
MAX_SHOWN_CHARACTERS = 120
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
TIMESTAMP_MS_MAX = 253_402_300_799_999  # the last millisecond of year 9999, as far as datetime and Spark reach
UUID_BYTES = 16

Reason = Literal[
    "tombstone",
    "oversize",
    "unrecognised",
    "decoder_failed",
    "invalid_json",
    "invalid_avro",
    "missing_field",
    "wrong_type",
    "out_of_range",
    "invalid_text",
    "no_identifier",
    "no_namespace",
    "unknown_catalog",
    "ambiguous_catalog",
    "unknown_table",
]
REASONS: frozenset[str] = frozenset(get_args(Reason))

DETECTION_ORDER = (
    "kafka_connect",
    "lakekeeper",
    "polaris",
    "s3_notification",
    "glue",
    "openlineage",
    "commit_report",
    "canonical",
)
"""Formats with an unmistakable mark come first; the canonical event, told by one JSON key, comes last."""


@dataclass(frozen=True)
class RawEvent:
    """One Kafka record, as far as decoding needs it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int


@dataclass(frozen=True)
class TableChanged:
    """A table may have changed: look at it. `source` is the decoder's name, not what the event calls its sender.

    `report` asks the ledger for a full report of the table; `continues` goes on with a long recount. `request` asks for
    a rewrite, by a person: of what a filter selects, or of everything (empty).
    """

    source: str
    event_id: str
    catalog: str | None
    namespace: tuple[str, ...]
    name: str
    timestamp_ms: int
    table_uuid: str | None = None
    snapshot_id: int | None = None
    ref_name: str | None = None
    operation: str | None = None
    metadata_location: str | None = None
    report: bool = False
    continues: bool = False
    request: str | None = None


@dataclass(frozen=True)
class NotACommit:
    """A well-formed event that announces no commit: ignored, not dead-lettered. `what` is short text for a log."""

    source: str
    what: str


@dataclass(frozen=True)
class BadEvent:
    """An event nobody can use. `reason` is a metric label and a dead-letter header; `detail` is for a person."""

    reason: Reason
    detail: str


Decoded = TableChanged | NotACommit | BadEvent


class Decoder(Protocol):
    """One wire format. Both methods accept any bytes and raise nothing."""

    @property
    def source(self) -> str:
        """A short slug, fit for a metric label."""

    def recognises(self, event: RawEvent) -> bool:
        """Whether the event has this format's mark: cheap, and true for a damaged event that still bears the mark."""

    def decode(self, event: RawEvent) -> Decoded:
        """Read a recognised event."""


def decode(event: RawEvent, decoders: Sequence[Decoder], max_bytes: int = MAX_EVENT_BYTES) -> Decoded:
    """Ask the first decoder that recognises the event. `decoders` come in detection order."""
    if event.value is None:
        return BadEvent("tombstone", "the event has no value")
    if len(event.value) > max_bytes:
        return BadEvent("oversize", f"the value has {len(event.value)} bytes; at most {max_bytes} are read")
    for decoder in decoders:
        try:
            if decoder.recognises(event):
                return decoder.decode(event)
        except Exception as error:  # noqa: BLE001 - a decoder's bug must cost one dead letter, not the stream
            return BadEvent("decoder_failed", f"decoder {decoder.source} failed: {explained(error)}")
    return BadEvent("unrecognised", f"no decoder knows an event that begins with {event.value[:16]!r}")


def in_detection_order(decoders: Iterable[Decoder]) -> tuple[Decoder, ...]:
    """The decoders as `decode` wants them.

    Raises:
        ValueError: a decoder's source has no place in `DETECTION_ORDER`.
    """
    return tuple(sorted(decoders, key=_place))


def _place(decoder: Decoder) -> int:
    return DETECTION_ORDER.index(decoder.source)


class MalformedError(ValueError):
    """Ends the reading of one event from deep inside a decoder. Never leaves the decoder: it becomes `bad`."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.bad = BadEvent(reason, detail)


def shown(value: object) -> str:
    """A short, printable form of an untrusted value, for a detail."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - 1] + "…"


def explained(error: Exception) -> str:
    """An error in short. Its text can quote the event, so it is shown like any untrusted value."""
    return f"{type(error).__name__}: {shown(str(error))}"


def parse_object(content: bytes) -> dict[str, Any]:
    """Read one JSON object strictly: UTF-8, no NaN, no key twice in one object, no depth or number that exhausts us.

    Raises:
        MalformedError: `invalid_json`, or `wrong_type` for JSON that is not an object.
    """
    try:
        value = json.loads(
            content.decode("utf-8"),
            parse_constant=_refuse_constant,
            object_pairs_hook=_object_without_duplicates,
        )
    except (ValueError, RecursionError) as error:  # ValueError covers bad UTF-8, bad JSON and numbers of many digits
        raise MalformedError("invalid_json", f"not strict JSON: {explained(error)}") from error
    if not isinstance(value, dict):
        raise MalformedError("wrong_type", f"the event is a JSON {type(value).__name__}; it must be an object")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Of two equal keys, readers keep different ones: what one tool checks, another would not be the one to use.
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise ValueError(f"key {shown(key)} stands twice in one object")
        fields[key] = value
    return fields


@dataclass(frozen=True)
class Fields:
    """Typed reading of an untrusted record. A null field counts as absent; unknown fields are not looked at.

    Every method raises MalformedError: `missing_field`, `wrong_type`, `out_of_range` or `invalid_text`.
    """

    values: Mapping[str, Any]
    path: str = ""

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def text(self, name: str) -> str:
        return _text(self._required(name), self.path + name)

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if self.has(name) else None

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._required(name)
        if not isinstance(value, list):
            raise MalformedError("wrong_type", f"{self.path}{name} is {shown(value)}; it must be a list of strings")
        return tuple(_text(part, f"{self.path}{name}[{index}]") for index, part in enumerate(value))

    def namespace(self, name: str) -> tuple[str, ...]:
        """The levels of a table's namespace.

        Raises:
            MalformedError: also `no_namespace`: tables at a catalog's root cannot be named in the settings.
        """
        levels = self.texts(name)
        if not levels:
            raise MalformedError("no_namespace", f"{self.path}{name} is empty; tables without a namespace are not kept")
        return levels

    def integer(self, name: str, low: int = INT64_MIN, high: int = INT64_MAX) -> int:
        value = self._required(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise MalformedError("wrong_type", f"{self.path}{name} is {shown(value)}; it must be an integer")
        if not low <= value <= high:
            raise MalformedError("out_of_range", f"{self.path}{name} is {shown(value)}; it must be in {low}..{high}")
        return value

    def optional_integer(self, name: str, low: int = INT64_MIN, high: int = INT64_MAX) -> int | None:
        return self.integer(name, low, high) if self.has(name) else None

    def uuid(self, name: str) -> str:
        """A UUID in its usual lower-case form, from text or from 16 bytes."""
        value = self._required(name)
        if isinstance(value, bytes) and len(value) == UUID_BYTES:
            return str(UUID(bytes=value))
        written = _text(value, self.path + name).lower()
        try:
            usual = str(UUID(written))
        except ValueError:
            usual = ""
        if usual != written:  # UUID() also takes braces, URNs and no hyphens; a table's metadata has none of these
            raise MalformedError("invalid_text", f"{self.path}{name} is {shown(value)}; it must be a UUID")
        return usual

    def optional_uuid(self, name: str) -> str | None:
        return self.uuid(name) if self.has(name) else None

    def record(self, name: str) -> Fields:
        value = self._required(name)
        if not isinstance(value, dict):
            raise MalformedError("wrong_type", f"{self.path}{name} is {shown(value)}; it must be an object")
        return Fields(value, f"{self.path}{name}.")

    def _required(self, name: str) -> Any:
        value = self.values.get(name)
        if value is None:
            raise MalformedError("missing_field", f"the event has no {self.path}{name}")
        return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise MalformedError("wrong_type", f"{where} is {shown(value)}; it must be a string")
    if not 1 <= len(value) <= MAX_TEXT_CHARACTERS:
        limits = f"1 to {MAX_TEXT_CHARACTERS} characters"
        raise MalformedError("invalid_text", f"{where} has {len(value)} characters; it must have {limits}")
    # Cc: control characters forge log lines. Cs: half a surrogate pair cannot become UTF-8 again.
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in value):
        raise MalformedError("invalid_text", f"{where} is {shown(value)}; it holds control characters or surrogates")
    return value
