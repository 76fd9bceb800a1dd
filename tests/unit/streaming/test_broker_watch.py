"""What the watch of the brokers says while none answers, and of topics that cannot be read."""

from __future__ import annotations

from typing import Any, cast

import pytest
from kafka.admin import KafkaAdminClient

from compactor.errors import InputError, RetryError
from compactor.settings.kafka import CommitTopic, KafkaSettings
from streaming.kafka.broker_watch import BrokerWatch, topics_trouble

KAFKA = KafkaSettings(
    bootstrap_servers="127.0.0.1:1", commit_topic="commits", commit_topics=(CommitTopic(topic="control"),)
)


def watch(*errors: Exception) -> BrokerWatch:
    """Each look asks the broker first whether the topics can be used; it answers with the next of `errors`."""
    answers = iter(errors)

    def prepare() -> None:
        raise next(answers)

    return BrokerWatch(KAFKA, prepare)


def test_a_broker_that_does_not_answer_is_said_once_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    silent = watch(*[RetryError("no Kafka broker answers at 127.0.0.1:1")] * 3)
    for _ in range(3):
        silent.look()
        assert "no Kafka broker answers" in silent.trouble
        assert "every table is looked at every 20 s" in silent.trouble
        assert not silent.prepared
    assert caplog.text.count("no Kafka broker answers") == 1


def test_topics_that_turn_out_to_be_of_another_system_end_the_service() -> None:
    late = watch(RetryError("no Kafka broker answers"), InputError("kafka.commit_topic: topic commits is a sink's"))
    late.look()
    late.check()
    with pytest.raises(InputError, match="is a sink's"):
        late.look()


class Admin:
    """Answers with these facts of the topic `commits`; `control` does not exist yet."""

    def __init__(self, **facts: Any) -> None:
        self.commits = {"name": "commits", "error_code": 0, "partitions": [], **facts}

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        return [self.commits, *({"name": name, "error_code": 3, "partitions": []} for name in names[1:])]


def partition(number: int, leader: int) -> dict[str, int]:
    return {"partition_index": number, "leader_id": leader}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"partitions": [partition(0, 1)], "authorized_operations": {"READ", "WRITE"}}, ""),
        ({"partitions": [partition(0, 1)], "authorized_operations": None}, ""),
        ({"partitions": [partition(0, 1), partition(1, -1)]}, "no Kafka broker leads partition 1 of topic commits"),
        ({"error_code": 3}, "topic commits is missing (error 3); create it again"),
        ({"error_code": 29}, "Kafka does not allow this principal to READ topic commits"),
        ({"authorized_operations": {"DESCRIBE"}}, "Kafka does not allow this principal to READ topic commits"),
    ],
)
def test_a_topic_that_cannot_be_read_is_said(facts: dict[str, Any], expected: str) -> None:
    found = topics_trouble(KAFKA, cast("KafkaAdminClient", Admin(**facts)))
    assert found.startswith(expected)
    assert bool(found) == bool(expected)
