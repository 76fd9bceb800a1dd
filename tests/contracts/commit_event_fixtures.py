"""Commit events of every format with the expected result, and what all tests of decoders share.

The folders of `fixtures/` hold one file for each event, its expected result in `expected.json`, and in `README.md`
where it comes from.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from streaming.commit_events.decoder import (
    BadEvent,
    BadEventReason,
    Decoded,
    LocationChanged,
    NotACommit,
    RawEvent,
    Several,
    TableChanged,
    changes_of,
    decode,
)
from streaming.commit_events.formats import DECODERS

ARRIVED_MS = 1_700_000_000_123
UUID = "7ab1e000-5555-4666-8777-888888888888"
FOLDER = Path(__file__).parent / "fixtures"
FORMATS = ("commit_report", "glue", "lakekeeper", "nessie", "openlineage", "polaris", "s3")  # those in JSON files

FULL = {
    "event-id": "e-1",
    "source": "a writer",
    "timestamp-ms": 1_700_000_000_000,
    "operation-type": "update-table",
    "catalog": "lake",
    "identifier": {"namespace": ["db", "über"], "name": "orders"},
    "table-uuid": UUID,
    "ref-name": "main",
    "snapshot-id": 8744736658442914487,
    "sequence-number": 7,
    "operation": "append",
    "metadata-location": "s3://lake/db/orders/metadata/7.metadata.json",
    "summary": {"firnline.request": "day = 1", "added-files": "3"},
    "of-a-later-version": [{"x": None}],
}
LEAST = {"event-id": "e-2", "identifier": {"namespace": ["db"], "name": "orders"}}
LOCATED = {"event-id": "e-4", "metadata-location": "s3://lake/db/orders/metadata/7.metadata.json"}


@dataclass(frozen=True)
class Fixture:
    """An event and its result. `answer` of a bad event: only its reason counts."""

    name: str
    source: str
    event: RawEvent
    answer: Decoded

    @property
    def value(self) -> bytes:
        assert self.event.value is not None
        return self.event.value

    def with_value(self, value: bytes) -> RawEvent:
        return replace(self.event, value=value)


def raw(value: bytes | None) -> RawEvent:
    return RawEvent(None, value, (), ARRIVED_MS)


def written(event: Any) -> RawEvent:
    return raw(json.dumps(event).encode())


def changed(**fields: Any) -> TableChanged:
    least = TableChanged("canonical", "e-2", None, ("db",), "orders", ARRIVED_MS)
    return replace(least, **fields)


def kafka_connect_answer(read: dict[str, Any]) -> Decoded:
    """The answer that what Iceberg's own decoder read asks for."""
    if read["type"] != "COMMIT_TO_TABLE":
        return NotACommit("kafka_connect", read["type"])
    if not read["namespace"]:
        return BadEvent(BadEventReason.NO_NAMESPACE, "")
    return TableChanged(
        source="kafka_connect",
        namespace=tuple(read["namespace"]),
        **{name: read[name] for name in ("event_id", "catalog", "name", "timestamp_ms", "table_uuid", "snapshot_id")},
    )


def kafka_connect_fixtures() -> list[Fixture]:
    folder = FOLDER / "kafka_connect"
    read = json.loads((folder / "expected.json").read_text("utf-8"))
    return [
        Fixture(name, "kafka_connect", raw((folder / f"{name}.bin").read_bytes()), kafka_connect_answer(event))
        for name, event in read.items()
    ]


def json_fixtures(source: str) -> list[Fixture]:
    folder = FOLDER / source
    cases = json.loads((folder / "expected.json").read_text("utf-8"))
    assert {path.stem for path in folder.glob("*.json")} == {*cases, "expected"}
    return [_json_fixture(source, name, (folder / f"{name}.json").read_bytes(), case) for name, case in cases.items()]


def _json_fixture(source: str, name: str, value: bytes, case: dict[str, Any]) -> Fixture:
    headers = tuple((header, text.encode()) for header, text in case.get("headers", {}).items())
    key = None if "key" not in case else case["key"].encode()
    return Fixture(
        f"{source}_{name}", source, RawEvent(key, value, headers, ARRIVED_MS), _answer(source, case["answer"])
    )


def _answer(source: str, answer: dict[str, Any]) -> Decoded:
    if "bad" in answer:
        return BadEvent(BadEventReason(answer["bad"]), "")
    if "ignored" in answer:
        return NotACommit(source, answer["ignored"])
    changes = tuple(
        TableChanged(source=source, **{**change, "namespace": tuple(change["namespace"])})
        if "name" in change
        else LocationChanged(source=source, **change)
        for change in answer["changes"]
    )
    return changes[0] if len(changes) == 1 else Several(source, changes)


def canonical_fixtures() -> list[Fixture]:
    full = TableChanged(
        "canonical", "e-1", "lake", ("db", "über"), "orders", 1_700_000_000_000, UUID, 8744736658442914487,
        "main", "append", "s3://lake/db/orders/metadata/7.metadata.json", request="day = 1",
    )  # fmt: skip
    located = LocationChanged("canonical", "e-4", LOCATED["metadata-location"], ARRIVED_MS)
    drop = {"event-id": "e-3", "operation-type": "drop-table"}
    return [
        Fixture("canonical_full", "canonical", written(FULL), full),
        Fixture("canonical_least", "canonical", written(LEAST), changed()),
        Fixture("canonical_located", "canonical", written(LOCATED), located),
        Fixture("canonical_drop", "canonical", written(drop), NotACommit("canonical", "'drop-table'")),
    ]


FIXTURES = [
    *kafka_connect_fixtures(),
    *(fixture for source in FORMATS for fixture in json_fixtures(source)),
    *canonical_fixtures(),
]
BY_NAME = {fixture.name: fixture for fixture in FIXTURES}
each_fixture = pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.name)


def assert_usable(answer: Decoded) -> None:
    """The answer is a result, and every value in it can become a Spark row and a metric label."""
    assert isinstance(answer, TableChanged | LocationChanged | Several | NotACommit | BadEvent)
    if isinstance(answer, Several):
        assert len(answer.changes) > (answer.bad is None)
        assert_usable(answer.bad or answer.changes[0])
    for part in changes_of(answer) or (answer,):
        for value in dataclasses.astuple(part):
            for each in value if isinstance(value, tuple) else (value,):
                assert_storable(each)
    for change in changes_of(answer):
        assert change.source == answer.source
        assert isinstance(change, LocationChanged) or change.namespace
    if isinstance(answer, BadEvent):
        assert answer.reason in set(BadEventReason) - {BadEventReason.DECODER_FAILED}
        assert len(answer.detail) < 1000


def assert_storable(value: object) -> None:
    assert value is None or isinstance(value, str | int)
    if isinstance(value, str):
        assert 0 < len(value.encode("utf-8")) < 4 * 4096 + 1
    elif value is not None:
        assert -(2**63) <= value < 2**63


def reason_of(answer: Decoded) -> str:
    assert isinstance(answer, BadEvent), answer
    return answer.reason


def ask(event: RawEvent) -> Decoded:
    """Ask each decoder, whether it recognises the event or not, and return the answer of them all."""
    for decoder in DECODERS:
        assert decoder.recognises(event) in {True, False}
        assert_usable(decoder.decode(event))
    answer = decode(event, DECODERS)
    assert_usable(answer)
    return answer


def same(answer: Decoded, expected: Decoded) -> bool:
    """Whether the answer is the expected one; of bad events only the reasons are compared."""
    if isinstance(expected, BadEvent):
        return isinstance(answer, BadEvent) and answer.reason == expected.reason
    return answer == expected
