"""Commit events by HTTP: each is written to the commit topic, and from there takes the way of all events.

The answer comes after the broker has the event: a sender that gets no 2xx sends it again, and nothing is lost. An event
that cannot be used is refused with the reason, and is no dead letter, because its sender knows.

`POST /v1/events`: one event in any format that firnline reads; headers of CloudEvents (`ce-…`) are kept.
`POST /v1/…/namespaces/{namespace}/tables/{table}/metrics`: reports as clients of Iceberg's REST catalog send them.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote, unquote_plus, unquote_to_bytes

from kafka.errors import MessageSizeTooLargeError, RecordListTooLargeError, RetriableError

from compactor.errors import FirnlineError, RetryError
from compactor.events import HttpEventAnswered, Listener, ignore
from compactor.settings.kafka import KafkaSettings
from compactor.table_names import TableName
from metrics.http.http_answer import Answer
from streaming.commit_events import canonical, commit_report
from streaming.commit_events.decoder import BadEvent, LocationChanged, MalformedError, RawEvent, TableChanged
from streaming.intake.event_sources import EventSources
from streaming.intake.records import Named, Record, named
from streaming.kafka.clients import producer
from streaming.kafka.commit_topic import RecordKind, kind_of
from streaming.logs.events import LOG

if TYPE_CHECKING:
    from kafka import KafkaProducer

EVENTS_PATH = "/v1/events"
MOST_WAITING = 16
"""Requests at a time that wait for the broker; a further one is asked to come again."""
ANSWER_SECONDS = 10.0
"""Of the broker; the sender of the request waits as long."""
WAIT_SECONDS = 1.0
"""For a connection that another sender makes, and for what a producer that is closed still has to send."""
LEVELS = "\x1f"
"""Between the levels of a namespace in a path of a REST catalog."""

_METRICS_PATH = re.compile(
    r"/v1/(?:(?P<prefix>[^/]+(?:/[^/]+)*)/)?namespaces/(?P<namespace>[^/]+)/tables/(?P<name>[^/]+)/metrics"
)
_JSON = "application/json"
Headers = tuple[tuple[str, bytes], ...]


class Result(StrEnum):
    """What became of an event; a label of the metric."""

    ACCEPTED = "accepted"
    IGNORED = "ignored"
    REFUSED = "refused"
    BUSY = "busy"
    UNAUTHORIZED = "unauthorized"
    CLOSED = "closed"


Outcome = tuple[Result, Answer]
UNREAD: Mapping[HTTPStatus, Result] = {
    HTTPStatus.UNAUTHORIZED: Result.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN: Result.CLOSED,
    HTTPStatus.SERVICE_UNAVAILABLE: Result.BUSY,
}
"""Of requests that are refused before their body is read; all others: REFUSED."""


def is_events_path(path: str) -> bool:
    """Whether events are accepted at this path."""
    place = path.partition("?")[0]
    return place == EVENTS_PATH or _METRICS_PATH.fullmatch(place) is not None


class EventIntake:
    """Takes the bodies of requests whose sender has logged in. Thread-safe. `connect`: see `producer`."""

    def __init__(
        self,
        kafka: KafkaSettings,
        sources: EventSources,
        listener: Listener = ignore,
        connect: Callable[[KafkaSettings], KafkaProducer] = producer,
    ) -> None:
        self._kafka = kafka
        self._sources = sources
        self._listener = listener
        self._connect = connect
        self._producer: KafkaProducer | None = None
        self._lock = threading.Lock()
        self._waiting = threading.Semaphore(MOST_WAITING)

    def __call__(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """The response: 202 or 204 once the broker has the event."""
        place = path.partition("?")[0]
        report = _METRICS_PATH.fullmatch(place)
        result, answer = self._take_event(headers, body) if report is None else self._take_report(report, body)
        self._listener(HttpEventAnswered(result))
        return answer

    def unread(self, status: HTTPStatus) -> None:
        """Count a request that was refused before its body was read."""
        self._listener(HttpEventAnswered(UNREAD.get(status, Result.REFUSED)))

    def _take_event(self, headers: Mapping[str, str], body: bytes) -> Outcome:
        kept = _cloud_events(headers)
        event = RawEvent(None, body, kept, int(time.time() * 1000))
        parts = named(Record(event, len(body), self._kafka.commit_topic, 0, 0), self._sources)
        bad = [part for part in parts if isinstance(part, BadEvent)]
        if bad and len(bad) == len(parts):  # beside a usable part, a bad one becomes a dead letter
            return _refused(bad[0])
        if not parts:
            return Result.IGNORED, _answer(HTTPStatus.ACCEPTED, result=Result.IGNORED)
        accepted = Result.ACCEPTED, _answer(HTTPStatus.ACCEPTED, result=Result.ACCEPTED)
        if kind_of(event) is not RecordKind.SINK_CONTROL:
            return self._send(_key_of(parts), body, kept) or accepted
        # A topic with such a record is taken for the sink's own, which must not be written to.
        sent = (self._send(*_canonical(part.event, part.table), ()) for part in parts if isinstance(part, Named))
        return next((failure for failure in sent if failure is not None), accepted)

    def _take_report(self, path: re.Match[str], body: bytes) -> Outcome:
        """A report becomes a canonical event: its path names the table more exactly than its text."""
        try:
            changed = commit_report.with_table(body, *_table_of(path), int(time.time() * 1000))
        except MalformedError as malformed:
            return _refused(malformed.bad)
        nothing = Answer(b"", _JSON, HTTPStatus.NO_CONTENT)
        if changed is None:
            return Result.IGNORED, nothing
        table = self._sources.table(changed)
        if isinstance(table, BadEvent):
            return _refused(table)
        if table is None:
            return Result.IGNORED, nothing
        return self._send(*_canonical(changed, table), ()) or (Result.ACCEPTED, nothing)

    def close(self) -> None:
        """Close the connection to the broker."""
        with self._lock:
            made, self._producer = self._producer, None
        if made is not None:
            made.close(timeout=WAIT_SECONDS)

    def _drop(self, failed: KafkaProducer) -> None:
        """Close a producer that may be of no more use; the next sender connects again."""
        with self._lock:
            is_kept = self._producer is failed
            if is_kept:
                self._producer = None
        if is_kept:
            with suppress(Exception):  # it waits for other senders' records, and may have failed in any way
                failed.close(timeout=WAIT_SECONDS)

    def _send(self, key: bytes, value: bytes, headers: Headers) -> Outcome | None:
        """Write the event to the topic; what is answered if that fails."""
        if not self._waiting.acquire(blocking=False):
            return _busy("too many requests wait for the broker")
        topic, connected = self._kafka.commit_topic, None
        try:
            connected = self._connected()
            connected.send(topic, key=key, value=value, headers=list(headers)).get(timeout=ANSWER_SECONDS)
        except (MessageSizeTooLargeError, RecordListTooLargeError):
            return _too_large(topic)
        except FirnlineError as error:
            return _busy(str(error))
        except Exception as error:  # noqa: BLE001 - every failure of the client has the same remedy: send again
            LOG.warning("an event that came by HTTP could not be written to topic %s: %s", topic, error)
            if connected is not None and not isinstance(error, RetriableError):
                self._drop(connected)
            return _busy("the broker did not take the event")
        finally:
            self._waiting.release()
        return None

    def _connected(self) -> KafkaProducer:
        """The producer. While one sender waits for a connection, the others do not wait as long.

        Raises:
            FirnlineError: no broker answers.
        """
        made = self._producer
        if made is None:
            if not self._lock.acquire(timeout=WAIT_SECONDS):
                raise RetryError("no broker has answered yet")
            try:
                made = self._producer = self._producer or self._connect(self._kafka)
            finally:
                self._lock.release()
        return made


def _key_of(parts: Sequence[Named | LocationChanged | BadEvent]) -> bytes:
    """The key of an event that is sent on as it came: a compacted topic refuses a record without one."""
    usable = next(part for part in parts if not isinstance(part, BadEvent))
    if isinstance(usable, LocationChanged):
        return usable.metadata_location.encode("utf-8", "backslashreplace")
    return _canonical(usable.event, usable.table)[0]


def _canonical(changed: TableChanged, table: TableName) -> tuple[bytes, bytes]:
    """Key and value of the canonical event of a change of `table`."""
    named = replace(changed, catalog=table.catalog, namespace=table.namespace, name=table.name)
    return canonical.encode(named, sender=changed.source)


def _table_of(path: re.Match[str]) -> tuple[str | None, tuple[str, ...], str]:
    """What the path of a REST catalog names: catalog (the end of the prefix), namespace, table.

    Iceberg's Java client writes a blank of the last two as `+`; a catalog chooses the prefix itself.
    """
    prefix = path["prefix"]
    catalog = unquote(prefix.rpartition("/")[2]) if prefix else None
    return catalog, tuple(unquote_plus(path["namespace"]).split(LEVELS)), unquote_plus(path["name"])


def _cloud_events(headers: Mapping[str, str]) -> Headers:
    """Attributes of CloudEvents as Kafka's binding of CloudEvents writes them: without HTTP's percent-encoding."""
    found = ((name.lower(), value) for name, value in headers.items() if name.lower().startswith("ce-"))
    return tuple(
        # The HTTP server reads the bytes of headers as Latin-1; they may be UTF-8.
        (f"ce_{name.removeprefix('ce-')}", unquote_to_bytes(value.encode("latin-1")))
        for name, value in found
    )


def _refused(bad: BadEvent) -> Outcome:
    return Result.REFUSED, _answer(HTTPStatus.BAD_REQUEST, reason=bad.reason.value, detail=bad.detail)


def _too_large(topic: str) -> Outcome:
    detail = f"topic {topic} takes no record of this size; send less, or raise its max.message.bytes"
    return Result.REFUSED, _answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail=detail)


def _busy(why: str) -> Outcome:
    retry = (("Retry-After", "5"),)
    return Result.BUSY, _answer(HTTPStatus.SERVICE_UNAVAILABLE, retry, detail=f"{why}; send the event again")


def _answer(status: HTTPStatus, headers: tuple[tuple[str, str], ...] = (), **fields: str) -> Answer:
    return Answer(json.dumps(fields).encode() + b"\n", _JSON, status, headers)
