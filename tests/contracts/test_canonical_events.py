"""The canonical event: what it must contain, what it may contain, and that writing and reading it agree."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.commit_events import canonical
from streaming.commit_events.decoder import LocationChanged, TableChanged, decode
from streaming.commit_events.formats import DECODERS
from tests.contracts.commit_event_fixtures import (
    ARRIVED_MS,
    FULL,
    LEAST,
    LOCATED,
    UUID,
    ask,
    changed,
    raw,
    reason_of,
    written,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(alphabet=st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["namespace", "name", "x"]), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(FULL)), json_values))
def test_no_json_object_raises(damage):
    ask(written(FULL | damage))


NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=30)
INT64 = st.integers(-(2**63), 2**63 - 1)


@given(
    st.builds(
        TableChanged,
        source=st.just("canonical"),
        event_id=NAMES,
        catalog=st.none() | NAMES,
        namespace=st.lists(NAMES, min_size=1, max_size=3).map(tuple),
        name=NAMES,
        timestamp_ms=st.integers(0, 253_402_300_799_999),
        table_uuid=st.none() | st.uuids().map(str),
        snapshot_id=st.none() | INT64,
        ref_name=st.none() | NAMES,
        operation=st.none() | NAMES,
        metadata_location=st.none() | NAMES,
        request=st.none() | st.just("") | NAMES.filter(lambda text: text != canonical.EVERYTHING),
    )
)
def test_what_is_encoded_is_decoded(announced):
    key, value = canonical.encode(announced, sender="watcher")
    assert decode(raw(value), DECODERS) == announced
    parts = [part for part in (announced.catalog, *announced.namespace, announced.name) if part is not None]
    assert key.decode() == ".".join(parts)


def test_an_encoded_event_has_the_documented_fields():
    value = json.loads(canonical.encode(changed(request=""), sender="someone")[1])
    assert value == {
        "event-id": "e-2",
        "source": "someone",
        "timestamp-ms": ARRIVED_MS,
        "operation-type": "update-table",
        "identifier": {"namespace": ["db"], "name": "orders"},
        "summary": {"firnline.request": "*"},
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"event-id": None}, "missing_field"),
        ({"identifier": None}, "missing_field"),
        ({"identifier": None, "metadata-location": ""}, "invalid_text"),
        ({"identifier": {"name": "orders"}}, "missing_field"),
        ({"identifier": {"namespace": [], "name": "orders"}}, "no_namespace"),
        ({"identifier": {"namespace": "db", "name": "orders"}}, "wrong_type"),
        ({"identifier": {"namespace": ["db", 1], "name": "orders"}}, "wrong_type"),
        ({"identifier": {"namespace": ["db", ""], "name": "orders"}}, "invalid_text"),
        ({"identifier": {"namespace": ["db"], "name": "a\nb"}}, "invalid_text"),
        ({"identifier": {"namespace": ["db"], "name": "\ud800"}}, "invalid_text"),
        ({"identifier": {"namespace": ["db"], "name": "n" * 4097}}, "invalid_text"),
        ({"identifier": "db.orders"}, "wrong_type"),
        ({"event-id": 7}, "wrong_type"),
        ({"catalog": ["x" * 5000]}, "wrong_type"),
        ({"timestamp-ms": "1700000000000"}, "wrong_type"),
        ({"timestamp-ms": -1}, "out_of_range"),
        ({"timestamp-ms": 253_402_300_800_000}, "out_of_range"),
        ({"snapshot-id": True}, "wrong_type"),
        ({"snapshot-id": 1.0}, "wrong_type"),
        ({"snapshot-id": 2**63}, "out_of_range"),
        ({"snapshot-id": float("nan")}, "invalid_json"),
        ({"of-a-later-version": float("inf")}, "invalid_json"),
        ({"table-uuid": "orders"}, "invalid_text"),
        ({"table-uuid": "{" + UUID + "}"}, "invalid_text"),
        ({"summary": "firnline.request"}, "wrong_type"),
        ({"summary": {"firnline.request": True}}, "wrong_type"),
    ],
)
def test_the_canonical_decoder_is_strict(change, reason):
    assert reason_of(ask(written(LEAST | change))) == reason


@pytest.mark.parametrize(
    "value",
    [
        b'{"event-id": "a", "event-id": "b", "identifier": {"namespace": ["db"], "name": "t"}}',
        b'{"event-id": "a", "identifier": {"namespace": ["db"], "name": "t", "name": "u"}}',
        b'{"event-id": "\xff"}',
        b'{"event-id": "a", "snapshot-id": ' + b"9" * 5000 + b"}",
        b'{"event-id": "a"} {}',
        b'{"event-id": "a", }',
    ],
)
def test_loose_json_is_refused(value):
    assert reason_of(ask(raw(value))) == "invalid_json"


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"catalog": None, "snapshot-id": None, "summary": None}, changed()),
        ({"table-uuid": UUID.upper()}, changed(table_uuid=UUID)),
        ({"summary": {"x": 1}}, changed()),
        ({"summary": {"firnline.request": "id = 1"}}, changed(request="id = 1")),
        ({"operation-type": "register-table"}, changed()),
        ({"timestamp-ms": 0}, changed(timestamp_ms=0)),
    ],
)
def test_what_the_canonical_decoder_tolerates(change, answer):
    assert ask(written(LEAST | change)) == answer


def test_an_event_with_a_location_and_no_table_announces_the_location():
    where = LOCATED["metadata-location"]
    assert ask(written(LOCATED)) == LocationChanged("canonical", "e-4", where, ARRIVED_MS)
    assert ask(written(LOCATED | {"timestamp-ms": 5})) == LocationChanged("canonical", "e-4", where, 5)
    assert ask(written(LEAST | {"metadata-location": where})) == changed(metadata_location=where)
