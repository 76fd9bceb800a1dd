"""The interface of commit-event decoders: the raw event, the possible results, and the choice of a decoder.

Events come from other systems. For any bytes, decoding returns a result and never raises, so that a bad event becomes
one dead letter and does not stop the stream.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

MAX_EVENT_BYTES = 1024 * 1024
MAX_TEXT_CHARACTERS = 4096
MAX_SHOWN_CHARACTERS = 120
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
TIMESTAMP_MS_MAX = 253_402_300_799_999  # last millisecond of the year 9999, the limit of datetime and Spark
UUID_BYTES = 16


class BadEventReason(StrEnum):
    """Why an event cannot be used. Values as in metric labels and dead-letter headers."""

    TOMBSTONE = "tombstone"
    OVERSIZE = "oversize"
    UNRECOGNISED = "unrecognised"
    DECODER_FAILED = "decoder_failed"
    INVALID_JSON = "invalid_json"
    INVALID_AVRO = "invalid_avro"
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    OUT_OF_RANGE = "out_of_range"
    INVALID_TEXT = "invalid_text"
    NO_IDENTIFIER = "no_identifier"
    NO_NAMESPACE = "no_namespace"
    UNKNOWN_CATALOG = "unknown_catalog"
    AMBIGUOUS_CATALOG = "ambiguous_catalog"
    UNKNOWN_TABLE = "unknown_table"


@dataclass(frozen=True)
class RawEvent:
    """The parts of a Kafka record that decoding needs."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int


@dataclass(frozen=True)
class TableChanged:
    """A table may have changed and must be counted. `source`: name of the decoder, not of the event's sender.

    `report`: the ledger must report all counts of the table. `continues`: continue a long recount. `request`: a person
    requests a rewrite of the partitions of this filter, or of all (empty).

    `catalog`: as the source calls it: a catalog, warehouse, account or repository. `realm`: what the source calls the
    owner of that catalog, if one source serves several (a realm of Polaris). Settings translate both to a configured
    catalog.
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
    realm: str | None = None


@dataclass(frozen=True)
class LocationChanged:
    """A table wrote a metadata file. The event does not name the table: its location does.

    `metadata_location`: URI of the metadata file, as in `s3://bucket/db/events/metadata/00003-….metadata.json`.
    """

    source: str
    event_id: str
    metadata_location: str
    timestamp_ms: int


@dataclass(frozen=True)
class Several:
    """One event about several tables, each once."""

    source: str
    changes: tuple[TableChanged | LocationChanged, ...]


@dataclass(frozen=True)
class NotACommit:
    """A valid event that is not about a commit: ignored, not dead-lettered. `what`: short text for the log."""

    source: str
    what: str


@dataclass(frozen=True)
class BadEvent:
    """An event that cannot be used. `reason`: metric label and dead-letter header; `detail`: text for display."""

    reason: BadEventReason
    detail: str


Change = TableChanged | LocationChanged
Decoded = Change | Several | NotACommit | BadEvent


def changes_of(decoded: Decoded) -> tuple[Change, ...]:
    """What the event announces; nothing for an event that is bad or not about a commit."""
    if isinstance(decoded, Several):
        return decoded.changes
    return (decoded,) if isinstance(decoded, TableChanged | LocationChanged) else ()


class Decoder(Protocol):
    """One wire format. Both methods accept any bytes and do not raise."""

    @property
    def source(self) -> str:
        """Name of the format: a short slug, fit for a metric label."""

    def recognises(self, event: RawEvent) -> bool:
        """Whether the event has this format's mark. Cheap; also true for a damaged event with the mark."""

    def decode(self, event: RawEvent) -> Decoded:
        """Decode a recognised event."""


def decode(event: RawEvent, decoders: Sequence[Decoder], max_bytes: int = MAX_EVENT_BYTES) -> Decoded:
    """Decode with the first decoder that recognises the event. `decoders`: in detection order."""
    if event.value is None:
        return BadEvent(BadEventReason.TOMBSTONE, "the event has no value")
    if len(event.value) > max_bytes:
        return oversize(len(event.value), max_bytes)
    for decoder in decoders:
        try:
            if decoder.recognises(event):
                return decoder.decode(event)
        except Exception as error:  # noqa: BLE001 - a bug in a decoder must not stop the stream
            return BadEvent(BadEventReason.DECODER_FAILED, f"decoder {decoder.source} failed: {explained(error)}")
    return BadEvent(
        BadEventReason.UNRECOGNISED, f"no decoder recognises an event that begins with {event.value[:16]!r}"
    )


def oversize(size: int, max_bytes: int = MAX_EVENT_BYTES) -> BadEvent:
    """The result for a value of `size` bytes, of which at most `max_bytes` are read."""
    return BadEvent(BadEventReason.OVERSIZE, f"the value has {size} bytes; at most {max_bytes} are read")


class MalformedError(ValueError):
    """Raised inside a decoder for an event that cannot be read; the decoder returns `bad`."""

    def __init__(self, reason: BadEventReason, detail: str) -> None:
        super().__init__(detail)
        self.bad = BadEvent(reason, detail)


def shown(value: object) -> str:
    """A short, printable form of an untrusted value."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - 1] + "…"


def explained(error: Exception) -> str:
    """Class and short text of an error. The text can quote the event, so treat it as untrusted."""
    return f"{type(error).__name__}: {shown(str(error))}"


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
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise ValueError(f"key {shown(key)} occurs twice in one object")
        fields[key] = value
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
        return _text(self._required(name), self.path + name)

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if self.has(name) else None

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._required(name)
        if not isinstance(value, list):
            raise _wrong_type(self.path + name, value, "a list of strings")
        return tuple(_text(part, f"{self.path}{name}[{index}]") for index, part in enumerate(value))

    def namespace(self, name: str) -> tuple[str, ...]:
        """The levels of a table's namespace.

        Raises:
            MalformedError: also `no_namespace`, because settings cannot name a table without a namespace.
        """
        levels = self.texts(name)
        if not levels:
            raise MalformedError(
                BadEventReason.NO_NAMESPACE, f"{self.path}{name} is empty; tables without a namespace are not supported"
            )
        return levels

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
        written = _text(value, self.path + name).lower()
        try:
            usual = str(UUID(written))
        except ValueError:
            usual = ""
        if usual != written:  # UUID() also accepts braces, URNs and missing hyphens; table metadata does not use them
            raise MalformedError(BadEventReason.INVALID_TEXT, f"{self.path}{name} is {shown(value)}; it must be a UUID")
        return usual

    def optional_uuid(self, name: str) -> str | None:
        return self.uuid(name) if self.has(name) else None

    def record(self, name: str) -> Fields:
        value = self._required(name)
        if not isinstance(value, dict):
            raise _wrong_type(self.path + name, value, "an object")
        return Fields(value, f"{self.path}{name}.")

    def _required(self, name: str) -> Any:
        value = self.values.get(name)
        if value is None:
            raise MalformedError(BadEventReason.MISSING_FIELD, f"the event has no {self.path}{name}")
        return value


def _wrong_type(where: str, value: object, wanted: str) -> MalformedError:
    return MalformedError(BadEventReason.WRONG_TYPE, f"{where} is {shown(value)}; it must be {wanted}")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong_type(where, value, "a string")
    if not 1 <= len(value) <= MAX_TEXT_CHARACTERS:
        limits = f"1 to {MAX_TEXT_CHARACTERS} characters"
        raise MalformedError(BadEventReason.INVALID_TEXT, f"{where} has {len(value)} characters; it must have {limits}")
    # Cc: control characters can forge log lines. Cs: a lone surrogate cannot be encoded as UTF-8.
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in value):
        raise MalformedError(
            BadEventReason.INVALID_TEXT, f"{where} is {shown(value)}; it contains control characters or surrogates"
        )
    return value
