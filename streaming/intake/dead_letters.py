"""Dead letters: the bytes of an unusable event, its place in the topic, and the reason. Pure.

A dead letter must fit into a record of Kafka's default size (1 MiB with headers and key), because a record that the
broker rejects would stop the query. So value, key and original headers each have a limit. Value and key are cut in the
JVM (event_query.py).
"""

from __future__ import annotations

from itertools import accumulate

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
    """Firnline's headers, behind the `kept_headers` of the event: Kafka clients use the last header of a name.

    `firnline.headers-dropped` counts the others. Two say whether value and key are longer than a letter keeps.
    """
    headers = [
        (REASON, _bytes(bad.reason)),
        ("firnline.detail", _shortened(bad.detail)),
        ("firnline.topic", _bytes(topic)),
        ("firnline.partition", _bytes(str(partition))),
        ("firnline.offset", _bytes(str(offset))),
    ]
    dropped = len(event.headers) - kept_headers(event)
    if dropped:
        headers.append(("firnline.headers-dropped", _bytes(str(dropped))))
    if event.value is not None and len(event.value) > MAX_VALUE_BYTES:
        headers.append(("firnline.truncated", b"true"))
    if event.key is not None and len(event.key) > MAX_KEY_BYTES:
        headers.append(("firnline.key-truncated", b"true"))
    return tuple(headers)


def kept_headers(event: RawEvent) -> int:
    """How many of the event's headers a letter keeps: the first ones, while they fit."""
    sizes = (len(_bytes(name)) + len(value) + HEADER_OVERHEAD_BYTES for name, value in event.headers)
    return sum(total <= MAX_ORIGINAL_HEADERS_BYTES for total in accumulate(sizes))


def is_letter(event: RawEvent) -> bool:
    """Whether the event is a dead letter, of this deployment or another."""
    return any(name == REASON for name, _ in event.headers)


def _shortened(detail: str) -> bytes:
    # Cutting bytes can split a character: drop the rest of it, so that the header stays UTF-8.
    return _bytes(detail)[:MAX_DETAIL_BYTES].decode("utf-8", "ignore").encode("utf-8")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
