"""Dead letters: the bytes of an unusable event, its place in the topic, and the reason. Pure.

A dead letter must fit into a record of Kafka's default size (1 MiB with headers and key), because a record that the
broker rejects would stop the query. So value, key and original headers each have a limit. Value and key are cut in the
JVM (dead_letter_query.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from streaming.commit_events.decoder import BadEvent, RawEvent

MAX_VALUE_BYTES = 900 * 1024
MAX_KEY_BYTES = 16 * 1024
MAX_ORIGINAL_HEADERS_BYTES = 64 * 1024
MAX_DETAIL_BYTES = 1000
REASON = "firnline.reason"
"""The header that every dead letter has."""
HEADER_OVERHEAD_BYTES = 10  # two lengths of at most five bytes each; so many empty headers count too

Headers = tuple[tuple[str, bytes], ...]


def letter_headers(event: RawEvent, bad: BadEvent, *, topic: str, partition: int, offset: int) -> Headers:
    """The original headers, then firnline's: Kafka clients use the last header of a name.

    Original headers are kept in order while they fit; `firnline.headers-dropped` counts the rest. Others say whether
    value and key are longer than a letter keeps.
    """
    kept = _fitting(event.headers)
    headers = [
        *kept,
        (REASON, _bytes(bad.reason)),
        ("firnline.detail", _shortened(bad.detail)),
        ("firnline.topic", _bytes(topic)),
        ("firnline.partition", _bytes(str(partition))),
        ("firnline.offset", _bytes(str(offset))),
    ]
    if len(kept) < len(event.headers):
        headers.append(("firnline.headers-dropped", _bytes(str(len(event.headers) - len(kept)))))
    if event.value is not None and len(event.value) > MAX_VALUE_BYTES:
        headers.append(("firnline.truncated", b"true"))
    if event.key is not None and len(event.key) > MAX_KEY_BYTES:
        headers.append(("firnline.key-truncated", b"true"))
    return tuple(headers)


def is_letter(event: RawEvent) -> bool:
    """Whether the event is a dead letter, of this deployment or another."""
    return any(name == REASON for name, _ in event.headers)


def _fitting(headers: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    kept = []
    room = MAX_ORIGINAL_HEADERS_BYTES
    for name, value in headers:
        room -= len(_bytes(name)) + len(value) + HEADER_OVERHEAD_BYTES
        if room < 0:
            break
        kept.append((name, value))
    return kept


def _shortened(detail: str) -> bytes:
    # Cutting bytes can split a character: drop the rest of it, so that the header stays UTF-8.
    return _bytes(detail)[:MAX_DETAIL_BYTES].decode("utf-8", "ignore").encode("utf-8")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
