import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streaming.commit_events.decoder import BadEvent, RawEvent
from streaming.intake.dead_letters import (
    MAX_DETAIL_BYTES,
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    Headers,
    kept_headers,
    letter_headers,
)

BAD = BadEvent("invalid_json", "not strict JSON")
KAFKA_DEFAULT_MAX_MESSAGE_BYTES = 1024 * 1024
RECORD_OVERHEAD_BYTES = 200


def headers_of(event: RawEvent, bad: BadEvent = BAD) -> Headers:
    return letter_headers(event, bad, topic="commits", partition=3, offset=42)


def raw(value: bytes | None = b"{", key: bytes | None = b"k", headers: tuple[tuple[str, bytes], ...] = ()) -> RawEvent:
    return RawEvent(key, value, headers, 1)


def size(event: RawEvent, sent: Headers) -> int:
    headers = sum(len(name.encode()) + len(value) + 10 for name, value in sent)
    kept = len((event.key or b"")[:MAX_KEY_BYTES]) + len((event.value or b"")[:MAX_VALUE_BYTES])
    return kept + headers + RECORD_OVERHEAD_BYTES


def test_headers_say_why_and_where():
    assert list(headers_of(raw(), BadEvent("oversize", "too long"))) == [
        ("firnline.reason", b"oversize"),
        ("firnline.detail", b"too long"),
        ("firnline.topic", b"commits"),
        ("firnline.partition", b"3"),
        ("firnline.offset", b"42"),
    ]


@pytest.mark.parametrize("length", [MAX_VALUE_BYTES, MAX_VALUE_BYTES + 1])
def test_long_values_are_marked(length):
    sent = headers_of(raw(b"x" * length))
    assert (("firnline.truncated", b"true") in sent) == (length > MAX_VALUE_BYTES)


def test_headers_that_do_not_fit_are_dropped_and_counted():
    originals = (("first", b"1"), ("huge", b"x" * 100_000), ("last", b"2"))
    assert kept_headers(raw(headers=originals)) == 1
    assert ("firnline.headers-dropped", b"2") in headers_of(raw(headers=originals))


def test_a_long_detail_is_cut_between_characters():
    headers = dict(headers_of(raw(), BadEvent("wrong_type", "é" * 2000 + "\udc80")))
    assert headers["firnline.detail"].decode() == "é" * (MAX_DETAIL_BYTES // 2)
    odd = dict(headers_of(raw(), BadEvent("wrong_type", "a" + "é" * 2000)))
    assert odd["firnline.detail"].decode() == "a" + "é" * ((MAX_DETAIL_BYTES - 1) // 2)


@given(
    value=st.integers(0, 1_100_000),
    key=st.integers(0, 1_100_000),
    headers=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 200_000)), max_size=8),
    empty_headers=st.sampled_from([0, 3, 50_000]),
    detail=st.text(max_size=3000),
)
@example(value=1_100_000, key=1_100_000, headers=[], empty_headers=50_000, detail="é" * 3000)
def test_every_letter_fits_into_a_record_of_kafkas_default_size(value, key, headers, empty_headers, detail):
    originals = tuple(("h" * name, b"v" * length) for name, length in headers) + (("", b""),) * empty_headers
    event = raw(b"x" * value, b"k" * key, originals)
    sent = (*originals[: kept_headers(event)], *headers_of(event, BadEvent("wrong_type", detail)))
    assert size(event, sent) <= KAFKA_DEFAULT_MAX_MESSAGE_BYTES
    assert sent[-1][1]  # ours are never pushed out
    assert {name for name, _ in sent} >= {"firnline.reason", "firnline.topic", "firnline.offset"}
