"""Whose topic it is, by its records: those of Iceberg's own classes, our own, other systems' and rubbish."""

from __future__ import annotations

from pathlib import Path

import pytest

from streaming.commit_events import canonical
from streaming.commit_events.decoder import RawEvent, TableChanged
from streaming.kafka.commit_topic import ForeignTopicError, RecordKind, kind_of, refusal

CONNECT = Path(__file__).parents[2] / "contracts" / "fixtures" / "kafka_connect"
OWN = canonical.encode(TableChanged("test", "1", "lake", ("db",), "t", 5))[1]
OF_A_WRITER = b'{"event-id": "1", "identifier": {"namespace": ["db"], "name": "t"}}'
RUBBISH = (b"", b"\x00\xff", b"an event", b'{"before": null, "after": {"id": 1}}', None, b"\xc2\x01", b'{"event-id"')


def raw(value: bytes | None) -> RawEvent:
    return RawEvent(b"a key", value, (), 0)


def refused(*values: bytes | None) -> str | None:
    found = refusal([kind_of(raw(value)) for value in values])
    return None if found is None else str(ForeignTopicError("commits", found))


@pytest.mark.parametrize("file", sorted(CONNECT.glob("*.bin")), ids=lambda file: file.stem)
def test_every_event_of_a_sink_refuses_its_topic_whatever_else_is_there(file: Path) -> None:
    event = file.read_bytes()
    assert kind_of(raw(event)) is RecordKind.SINK_CONTROL
    for values in ((event,), (event, OWN), (*RUBBISH, OWN, OF_A_WRITER, event)):
        said = refused(*values)
        assert said is not None
        assert "kafka.commit_topic: topic commits holds control events of a Kafka Connect sink" in said
        assert "list this topic in kafka.commit_topics, and give kafka.commit_topic a topic of its own" in said


@pytest.mark.parametrize("junk", RUBBISH)
def test_one_unusable_record_refuses_nothing(junk: bytes | None) -> None:
    assert kind_of(raw(junk)) is RecordKind.UNUSABLE
    assert refused(junk) is None
    assert refused(junk, OWN) is None
    assert refused(*RUBBISH, OF_A_WRITER) is None


def test_records_none_of_which_is_a_commit_event_refuse_a_topic() -> None:
    assert refused() is None
    assert refused(OWN, OF_A_WRITER) is None
    said = refused(*RUBBISH)
    assert said == (
        f"kafka.commit_topic: topic commits holds records of another system: none of the {len(RUBBISH)} that were read "
        "is a commit event; give kafka.commit_topic a topic of its own"
    )
