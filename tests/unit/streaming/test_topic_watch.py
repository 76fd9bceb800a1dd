"""What the watch of the topics says while no broker answers, and of topics that cannot be used."""

from __future__ import annotations

from typing import Any, cast

import pytest
from kafka.admin import KafkaAdminClient

from compactor.errors import InputError, RetryError
from compactor.settings.kafka import KafkaSettings
from streaming.kafka.topic_watch import TopicWatch, described_topics
from tests.integration.service_process import wait_for

KAFKA = KafkaSettings(bootstrap_servers="127.0.0.1:1", commit_topic="commits")


def watch(*errors: Exception) -> TopicWatch:
    """Each look asks the broker first whether the topics can be used; it answers with the next of `errors`."""
    answers = iter(errors)

    def prepare() -> None:
        raise next(answers)

    return TopicWatch(KAFKA, lambda _topics: None, prepare=prepare, seconds=0.01)


def test_a_broker_that_does_not_answer_is_said_once_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    silent = watch(*[RetryError("no Kafka broker answers at 127.0.0.1:1")] * 3)
    for _ in range(3):
        silent.look()
        assert "no Kafka broker answers" in silent.trouble
        assert "every table is looked at every 20 s" in silent.trouble
        assert not silent.prepared
    assert caplog.text.count("no Kafka broker answers") == 1


def test_topics_that_turn_out_to_be_of_another_system_end_the_service(caplog: pytest.LogCaptureFixture) -> None:
    late = watch(RetryError("no Kafka broker answers"), InputError("kafka.commit_topic: topic commits is a sink's"))
    late.look()
    late.check()
    late.start()

    def refused() -> bool:
        try:
            late.check()
        except InputError as error:
            return "kafka.commit_topic" in str(error)
        return False

    wait_for("the refusal", refused)
    late.stop()
    assert "answers again" not in caplog.text
    with pytest.raises(InputError):
        watch(InputError("kafka.commit_topic: topic commits is a sink's")).look()


def test_a_partition_without_a_leader_is_named() -> None:
    """Spark waits for it as for a broker that is gone."""

    class Admin:
        def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
            leaders = {0: 1, 1: -1}
            partitions = [{"partition_index": number, "leader_id": leader} for number, leader in leaders.items()]
            known = {"name": "commits", "topic_id": "x", "error_code": 0, "partitions": partitions}
            return [known, *({"name": name, "topic_id": None, "error_code": 3, "partitions": []} for name in names[1:])]

    found = described_topics(KAFKA, cast("KafkaAdminClient", Admin()))
    assert (found.ids, found.partitions, found.leaderless) == ({"commits": "x"}, {"commits": 2}, ("commits-1",))
