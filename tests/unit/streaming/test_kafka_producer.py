"""What firnline's producers are made with. None connects."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from kafka import KafkaProducer
from kafka.errors import InvalidRecordError, KafkaError, MessageSizeTooLargeError, TopicAuthorizationFailedError
from kafka.producer.transaction_manager import TransactionManager

from compactor.settings.kafka import KafkaSettings
from streaming.kafka import clients

HEADERS_BYTES = 16 * 1024
"""Of a request by HTTP."""


class Made:
    """Keeps its arguments, where a producer would connect."""

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = KafkaProducer.DEFAULT_CONFIG

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments


def arguments(monkeypatch: pytest.MonkeyPatch, **options: str) -> dict[str, Any]:
    monkeypatch.setattr(clients, "KafkaProducer", Made)
    return clients.producer(KafkaSettings(bootstrap_servers="b:9092", options=options)).arguments  # type: ignore[no-any-return]


def test_options_override_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = arguments(monkeypatch, **{"linger.ms": "50", "max.request.size": "5000000", "acks": "1"})
    assert (made["linger_ms"], made["max_request_size"], made["acks"]) == (50, 5_000_000, "all")


@pytest.mark.parametrize("options", [{}, {"enable.idempotence": "true"}], ids=str)
def test_no_option_makes_a_producer_idempotent(monkeypatch: pytest.MonkeyPatch, options: dict[str, str]) -> None:
    """After one record that the broker refuses, an idempotent producer gives that error for all later ones."""
    assert arguments(monkeypatch, **options)["enable_idempotence"] is False


@pytest.mark.parametrize("error", [MessageSizeTooLargeError, TopicAuthorizationFailedError, InvalidRecordError])
def test_a_refused_record_would_end_an_idempotent_producer(error: type[KafkaError]) -> None:
    """Why ours are none. If this fails, kafka-python goes on after a refusal, and ours may be idempotent again."""
    manager = TransactionManager(api_version=(3, 0))
    assert manager.classify_batch_error(error, None) == manager.ERROR_CLASS_FATAL
