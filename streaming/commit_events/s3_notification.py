"""Notifications of object stores about new metadata files: S3 of AWS, MinIO, Ceph; also through EventBridge and SNS.

Sources: the S3 user guide (event message structure; EventBridge), `eventArgs.ToEvent` of MinIO, `rgw_pubsub_s3_event`
of Ceph, `TableMetadataParser` of Iceberg for the names of metadata files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote_plus

from streaming.commit_events.decoder import (
    SEND_ANOTHER,
    BadEvent,
    BadEventReason,
    Decoded,
    LocationChanged,
    MalformedError,
    NotACommit,
    shown,
    together,
)
from streaming.commit_events.strict_json import Fields, JsonDecoder, Mark, checked_text, mark, parse_object

SOURCE = "s3"
CREATED = "ObjectCreated:"
PREFIX = "s3:"  # of event names, at MinIO
TEST_EVENT = "s3:TestEvent"
CEPH = "ceph:s3"
EVENTBRIDGE, OBJECT_CREATED = "aws.s3", "Object Created"
NO_METADATA_FILE = "no new metadata file"

# Catalogs name the file 00003-<uuid>.metadata.json, file-system tables v3.metadata.json, both with `.gz` before the
# extension if it is compressed, or behind it (older versions). The folder is usually `metadata`, but the table property
# write.metadata.path can name any.
_METADATA_FILE = re.compile(r"[^/]\.metadata\.json(?:\.gz)?\Z")
_EVENT_SOURCE = re.compile(r"[a-z]+:s3")
# MinIO: tags, retention and legal hold of an object that exists.
_NO_CONTENT = frozenset({"PutTagging", "DeleteTagging", "PutRetention", "PutLegalHold"})


def _read(event: Fields, arrived_ms: int) -> Decoded:
    if event.has("detail-type"):
        return _through_eventbridge(event, arrived_ms)
    if event.has("TopicArn"):
        return _notification(_through_sns(event), arrived_ms)
    return _notification(event, arrived_ms)


def _notification(event: Fields, arrived_ms: int) -> Decoded:
    if not event.has("Records") and event.has("Event") and event.text("Event") == TEST_EVENT:
        return NotACommit(SOURCE, TEST_EVENT)
    found = (part for record in event.records("Records") for part in _part(record, arrived_ms))
    return together(SOURCE, found, NO_METADATA_FILE)


def _part(record: Fields, arrived_ms: int) -> Iterator[LocationChanged | BadEvent]:
    """One record; a bad one drops no other."""
    try:
        yield from _of_record(record, arrived_ms)
    except MalformedError as malformed:
        yield malformed.bad


def _of_record(record: Fields, arrived_ms: int) -> Iterator[LocationChanged]:
    source = record.text("eventSource")
    if not _EVENT_SOURCE.fullmatch(source):
        raise MalformedError(
            BadEventReason.UNRECOGNISED, f"{record.path}eventSource is {shown(source)}, not S3; {SEND_ANOTHER}"
        )
    kind = record.text("eventName").removeprefix(PREFIX)
    if not kind.startswith(CREATED) or kind.removeprefix(CREATED) in _NO_CONTENT:
        return
    s3 = record.record("s3")
    bucket, written = s3.record("bucket").text("name"), s3.record("object")
    if _is_of_another_object(written):
        return
    key = written.text("key")
    if source != CEPH:
        key = _url_decoded(key, f"{written.path}key")
    time_ms = record.optional_instant_ms("eventTime")
    event_id = written.optional_text("sequencer")
    yield from _metadata_file(bucket, key, event_id, arrived_ms if time_ms is None else time_ms)


def _through_eventbridge(event: Fields, arrived_ms: int) -> Decoded:
    """An event of EventBridge. It has one object, whose key is not URL-encoded."""
    source, kind = event.text("source"), event.text("detail-type")
    if source != EVENTBRIDGE:
        raise MalformedError(
            BadEventReason.UNRECOGNISED, f"source is {shown(source)}, not {EVENTBRIDGE}; {SEND_ANOTHER}"
        )
    if kind != OBJECT_CREATED:
        return NotACommit(SOURCE, shown(kind))
    detail = event.record("detail")
    bucket, written = detail.record("bucket").text("name"), detail.record("object")
    if _is_of_another_object(written):
        return NotACommit(SOURCE, NO_METADATA_FILE)
    time_ms = event.optional_instant_ms("time")
    found = _metadata_file(bucket, written.text("key"), event.text("id"), arrived_ms if time_ms is None else time_ms)
    return together(SOURCE, found, NO_METADATA_FILE)


def _through_sns(event: Fields) -> Fields:
    """The notification in a message of SNS, which is JSON in a JSON string."""
    message = event.values.get("Message")
    if not isinstance(message, str):
        raise MalformedError(BadEventReason.WRONG_TYPE, f"Message is {shown(message)}; it must be a string")
    return Fields(parse_object(message.encode("utf-8", "surrogatepass")), "Message.")


def _is_of_another_object(written: Fields) -> bool:
    """Whether the object is no metadata file: its key can be any text."""
    key = written.values.get("key")
    return isinstance(key, str) and _METADATA_FILE.search(key) is None


def _url_decoded(key: str, where: str) -> str:
    try:
        return checked_text(unquote_plus(key, errors="strict"), where)
    except UnicodeDecodeError as error:
        raise MalformedError(
            BadEventReason.INVALID_TEXT, f"{where} is {shown(key)}; it must be URL-encoded UTF-8"
        ) from error


def _metadata_file(bucket: str, key: str, event_id: str | None, timestamp_ms: int) -> Iterator[LocationChanged]:
    if _METADATA_FILE.search(key):
        location = f"s3://{bucket}/{key}"
        yield LocationChanged(SOURCE, event_id or location, location, timestamp_ms)


DECODER = JsonDecoder(
    SOURCE,
    (
        (mark("Records"), mark("eventSource", "[a-z]+:s3")),
        (mark("Event", TEST_EVENT),),
        (mark("detail-type"), mark("source", re.escape(EVENTBRIDGE))),
        (mark("TopicArn"), Mark(b"s3", re.compile(rb'"[a-z]+:s3\\"|s3:TestEvent\\"'))),
    ),
    _read,
)
