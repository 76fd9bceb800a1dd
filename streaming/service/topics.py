"""Records that the service writes to Kafka: commit events and dead letters."""

from __future__ import annotations

from typing import Any

from compactor.errors import RetryError
from compactor.reasons import Reason
from compactor.settings.tree import KafkaSettings
from streaming.kafka.clients import producer
from streaming.ledger.dead_letters import DeadLetter
from streaming.logs.events import LOG

CLOSE_SECONDS = 3


class TopicWriter:
    """Sends without waiting; the broker's later refusals are logged. Before `open` it drops every record."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self.producer: Any = None

    def open(self) -> None:
        """Connect.

        Raises:
            RetryError: no broker answers.
        """
        self.producer = producer(self._kafka)

    def close(self) -> None:
        """Send what is queued, for at most `CLOSE_SECONDS`."""
        if self.producer is not None:
            self.producer.close(timeout=CLOSE_SECONDS)

    def publish(self, key: bytes, value: bytes) -> None:
        """Publish a commit event.

        Raises:
            RetryError: the client cannot take the record.
        """
        self._send(self._kafka.commit_topic, key, value)

    def send_dead_letter(self, letter: DeadLetter) -> bool:
        """False: the dead letter cannot be sent, and others cannot be sent now."""
        try:
            self._send(self._kafka.dead_letter_topic, letter.key, letter.value, letter.headers)
        except RetryError as error:  # called within a batch, which must not fail with the dead-letter topic
            LOG.warning("a dead letter is lost, and the later ones of its batch: %s", error)
            return False
        return True

    def _send(
        self, topic: str, key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes], ...] = ()
    ) -> None:
        if self.producer is None:
            return
        try:
            sent = self.producer.send(topic, key=key, value=value, headers=list(headers))
        except Exception as error:  # no error of the client may end a stream or a rewrite
            raise RetryError(f"topic {topic} takes no record: {error}", reason=Reason.KAFKA_UNAVAILABLE) from error
        sent.add_errback(lambda error: LOG.warning("topic %s took no record: %s", topic, error))
