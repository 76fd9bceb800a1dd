"""The interface of commit-event decoders: the raw event, the possible results, and the choice of a decoder.

Events come from other systems. For any bytes, decoding returns a result and never raises, so that a bad event becomes
one dead letter and does not stop the stream.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

MAX_EVENT_BYTES = 1024 * 1024
MAX_PARTS = 1000
"""Tables or metadata files of one event: each becomes a row, and is looked for in its catalog."""
MAX_LEVELS = 64
"""Of a namespace."""
MAX_NAME_CHARACTERS = 4096
"""Of a table's namespace and name together: names that no catalog has are remembered for a while."""
SWEEPS_FIND = "sweeps find the commits that it announces"
SEND_ANOTHER = "send one of the formats of docs/commit-events.md, or do not list this topic"
MAX_SHOWN_CHARACTERS = 120
TIMESTAMP_MS_MAX = 253_402_300_799_999  # last millisecond of the year 9999, the limit of datetime and Spark


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

    `request`: a person requests a rewrite of the partitions of this filter, or of all (empty).

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
    """One event about several tables, each once. `bad`: why the first part that cannot be used cannot; the other
    changes count all the same.
    """

    source: str
    changes: tuple[TableChanged | LocationChanged, ...]
    bad: BadEvent | None = None


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


def together(source: str, parts: Iterable[Change | BadEvent], nothing: str) -> Change | Several | NotACommit | BadEvent:
    """The result for an event of these parts: the last change of each table or location, and the first bad part.

    An event of more than MAX_PARTS is bad as a whole. `nothing`: what the event is if there are none.
    """
    changes: dict[tuple[object, ...], Change] = {}
    bad: BadEvent | None = None
    for number, part in enumerate(parts):
        if number == MAX_PARTS:
            detail = f"the event has more than {MAX_PARTS:,} tables or records, the most that are read; {SWEEPS_FIND}"
            return BadEvent(BadEventReason.OVERSIZE, detail)
        if isinstance(part, BadEvent):
            bad = bad or part
        else:
            changes[_subject(part)] = part
    each = tuple(changes.values())
    if not each:
        return bad or NotACommit(source, nothing)
    return each[0] if len(each) == 1 and bad is None else Several(source, each, bad)


def _subject(change: Change) -> tuple[object, ...]:
    if isinstance(change, LocationChanged):
        return (change.metadata_location,)
    return change.realm, change.catalog, change.namespace, change.name, change.ref_name


def changes_of(decoded: Decoded) -> tuple[Change, ...]:
    """What the event announces; nothing for an event that is bad or not about a commit."""
    if isinstance(decoded, Several):
        return decoded.changes
    return (decoded,) if isinstance(decoded, TableChanged | LocationChanged) else ()


def bad_of(decoded: Decoded) -> BadEvent | None:
    """Why the event, or a part of it, cannot be used."""
    if isinstance(decoded, Several):
        return decoded.bad
    return decoded if isinstance(decoded, BadEvent) else None


class Decoder(Protocol):
    """One wire format. Both methods accept any bytes and do not raise.

    A decoder reads its marks at the top level of the event, and finds an event bad that lacks them: see `decode`.
    """

    @property
    def source(self) -> str:
        """Name of the format: a short slug, fit for a metric label."""

    def recognises(self, event: RawEvent) -> bool:
        """Whether the event has this format's mark. Cheap; also true for a damaged event with the mark."""

    def decode(self, event: RawEvent) -> Decoded:
        """Decode a recognised event."""


def decode(event: RawEvent, decoders: Sequence[Decoder], max_bytes: int = MAX_EVENT_BYTES) -> Decoded:
    """Decode with the first decoder that recognises the event and can read it. `decoders`: in detection order.

    A mark is a few bytes, and an event of one format can contain the mark of another somewhere inside. The decoder of
    the other format does not find its fields at the top level then; its result counts only if no decoder has a better.
    """
    if event.value is None:
        return BadEvent(BadEventReason.TOMBSTONE, f"the event has no value; {SEND_ANOTHER}")
    if len(event.value) > max_bytes:
        return oversize(len(event.value), max_bytes)
    bad = None
    for decoder in decoders:
        decoded = _decoded(event, decoder)
        if decoded is not None and not isinstance(decoded, BadEvent):
            return decoded
        bad = bad or decoded
    return bad or BadEvent(
        BadEventReason.UNRECOGNISED,
        f"no decoder recognises an event that begins with {event.value[:16]!r}; {SEND_ANOTHER}",
    )


def _decoded(event: RawEvent, decoder: Decoder) -> Decoded | None:
    try:
        return decoder.decode(event) if decoder.recognises(event) else None
    except Exception as error:  # noqa: BLE001 - a bug in a decoder must not stop the stream
        return BadEvent(BadEventReason.DECODER_FAILED, f"decoder {decoder.source} failed: {explained(error)}")


def oversize(size: int, max_bytes: int = MAX_EVENT_BYTES) -> BadEvent:
    """The result for a value of `size` bytes, of which at most `max_bytes` are read."""
    return BadEvent(BadEventReason.OVERSIZE, f"the value has {size} bytes; at most {max_bytes} are read")


class MalformedError(ValueError):
    """Raised inside a decoder for an event that cannot be read; the decoder returns `bad`."""

    def __init__(self, reason: BadEventReason, detail: str) -> None:
        super().__init__(detail)
        self.bad = BadEvent(reason, detail)


_SHORT = reprlib.Repr()  # `repr` itself overflows the stack on values that are nested deeply enough
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 2 * MAX_SHOWN_CHARACTERS


def shown(value: object) -> str:
    """A short, printable form of an untrusted value."""
    text = _SHORT.repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - 1] + "…"


def explained(error: Exception) -> str:
    """Class and short text of an error. The text can quote the event, so treat it as untrusted."""
    return f"{type(error).__name__}: {shown(str(error))}"
