"""Clients that reach no broker: each attempt of an outage that lasts for hours must leave nothing behind."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compactor.errors import FirnlineError
from compactor.settings.kafka import KafkaSettings
from deploy.demo.local_process import free_port
from streaming.kafka.access import KafkaAccess
from streaming.kafka.clients import admin_client, consumer_client, ensure_topics, producer
from streaming.kafka.commit_topic import sample_topic

MAKERS: dict[str, Callable[[KafkaSettings], Any]] = {
    "admin": admin_client,
    "consumer": lambda kafka: consumer_client(kafka, "commits", group_id="g"),
    "producer": producer,
    "check-config": KafkaAccess,
    "topics": lambda kafka: ensure_topics(kafka, create=False),
    "sample": lambda kafka: sample_topic(kafka, "commits"),
}


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    """pytest keeps the records of a test, and they name the sockets."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("made", MAKERS.values(), ids=MAKERS.keys())
def test_a_client_that_reaches_no_broker_leaves_no_thread_and_no_descriptor(made: Callable[..., Any]) -> None:
    kafka = KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port()}", options={"bootstrap.timeout.ms": "100"})
    threads, files = _threads(), _open_files()
    for _ in range(3):
        _fails(made, kafka)
    assert not _threads() - threads  # a thread of another test may end in between
    assert _open_files() <= files


def _fails(made: Callable[..., Any], kafka: KafkaSettings) -> None:
    with pytest.raises(Exception) as error:
        made(kafka)
    assert isinstance(error.value, FirnlineError) or type(error.value).__module__.startswith("kafka.")


def _threads() -> set[threading.Thread]:
    return set(threading.enumerate())


def _open_files() -> int:
    gc.collect()  # which closes sockets that kafka-python failed to connect
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0
