"""Notice that a topic was deleted and created again: Spark then waits for offsets that will not come, without a word.

Kafka gives each topic an id (KIP-516), and a new one to a topic that is created again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from kafka.admin import KafkaAdminClient

from compactor.settings.kafka import KafkaSettings
from streaming.kafka.clients import admin_client, no_broker
from streaming.logs.events import LOG

LOOK_SECONDS = 30.0


@dataclass(frozen=True)
class Topics:
    """Ids of topics, also of deleted ones, and numbers of partitions of those that exist, by name."""

    ids: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)

    def seen(self, now: Topics) -> tuple[Topics, frozenset[str]]:
        """After a look: what is known now, and the topics that are others than before. Pure.

        A topic that is missing may be created again: its old id stays known.
        """
        anew = frozenset(name for name, found in now.ids.items() if self.ids.get(name, found) != found)
        return Topics({**self.ids, **now.ids}, now.partitions), anew


def existing_topics(kafka: KafkaSettings) -> Topics:
    """The topics of commit events that exist.

    Raises:
        RetryError: no broker answers.
    """
    try:
        with closing(admin_client(kafka)) as client:
            return _described(kafka, client)
    except Exception as error:
        raise no_broker(kafka, error) from error


def _described(kafka: KafkaSettings, client: KafkaAdminClient) -> Topics:
    names = list(kafka.named_topics)
    if kafka.patterns:
        names = list(dict.fromkeys([*names, *filter(kafka.reads, client.list_topics())]))
    described = [each for each in client.describe_topics(names) if not each["error_code"]]
    return Topics(
        {each["name"]: str(each["topic_id"]) for each in described},
        {each["name"]: len(each["partitions"]) for each in described},
    )


@dataclass(eq=False)
class TopicWatch:
    """Looks at the topics every 30 s, in a thread of its own. One look costs a millisecond.

    `recreated`: called with the topics that were created again.
    """

    kafka: KafkaSettings
    recreated: Callable[[frozenset[str]], None]
    seconds: float = LOOK_SECONDS
    _known: Topics = field(default_factory=Topics, init=False)
    _client: KafkaAdminClient | None = field(default=None, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread = field(init=False)

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._serve, name="topic-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a broker that does not answer is not waited for."""
        self._stop.set()
        self._thread.join(timeout=1.0)
        self.close()

    def close(self) -> None:
        """Close the connection; the next look opens another."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def look(self) -> None:
        """Look once."""
        if self._client is None:
            self._client = admin_client(self.kafka)
        self._known, anew = self._known.seen(_described(self.kafka, self._client))
        if anew:
            self.recreated(anew)

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - the stream reports a broker that does not answer
                LOG.debug("topics could not be looked at: %s", error)
                self.close()
            self._stop.wait(self.seconds)
