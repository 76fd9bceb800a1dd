"""100,000 hostile events through the code that decodes them in Spark's Python workers."""

from __future__ import annotations

import resource
import unicodedata
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pyarrow as pa
import pytest

from compactor.shards import EVERYTHING
from streaming.commit_events.decoder import BadEventReason
from streaming.ledger.dead_letter_query import LetterDecoder, found
from streaming.ledger.event_reader import EventDecoder, heard_of
from streaming.ledger.records import ARROW_BATCH_RECORDS
from tests.security.hostile_events import hostile_events
from tests.unit.streaming.test_event_decoding import records

EVENTS = 100_000
CATALOGS = ("lake",)
LETTER_BYTES = 1024 * 1024
MEMORY_BYTES = 600 * 1024 * 1024


def batches(seed: int) -> Iterator[pa.RecordBatch]:
    """As Spark hands them over."""
    events = hostile_events(seed, EVENTS)
    while values := tuple(islice(events, ARROW_BATCH_RECORDS)):
        yield records(*values)


def printable(text: str) -> bool:
    return not any(unicodedata.category(character) in {"Cc", "Cs"} for character in text)


@pytest.mark.timeout(1800)
def test_no_event_stops_the_stream_or_brings_a_text_that_could_do_harm() -> None:
    usable = 0
    for batch in EventDecoder(CATALOGS).heard(batches(1)):
        for row in batch.to_pylist():
            heard = heard_of(row)
            usable += 1
            assert heard.table.catalog in CATALOGS
            assert all(map(printable, (*heard.table.namespace, heard.table.name, heard.request or "")))
    assert 0 < usable < EVENTS
    print(f"\n{EVENTS:,} hostile events: {usable:,} name a table (a hint, no more)")


@pytest.mark.timeout(1800)
def test_every_other_event_becomes_one_dead_letter_of_bounded_size() -> None:
    decoder = LetterDecoder(CATALOGS, EVERYTHING)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    bad, tables = found([_Row(row) for batch in decoder.found(batches(1)) for row in batch.to_pylist()])
    letters: Counter[str] = Counter()
    for batch in decoder.letters(batches(1)):
        for letter in batch.to_pylist():
            headers = {header["key"]: header["value"] for header in letter["headers"]}
            letters[headers["firnline.reason"].decode()] += 1
            assert len(letter["value"] or b"") + sum(map(len, headers.values())) < LETTER_BYTES
    assert letters == bad
    assert set(bad) <= {reason.value for reason in BadEventReason}
    assert BadEventReason.DECODER_FAILED.value not in bad, "a decoder raised an error of its own"
    assert sum(bad.values()) + sum(tables.values()) <= EVENTS
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    assert grown < MEMORY_BYTES
    print(f"\ndead letters by reason: {dict(bad)}; memory grew by {grown / 1e6:.0f} MB")


class _Row(dict[str, object]):
    """Spark's rows are read by key, like a dictionary."""
