"""Watch the topics of commit events: whether a broker answers, and whether one was deleted and created again.

Spark tells neither: its query waits for minutes for a broker, and for ever for offsets that will not come. Kafka gives
each topic an id (KIP-516), and a new one to a topic that is created again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from kafka.admin import KafkaAdminClient

from compactor.errors import FirnlineError, InputError
from compactor.settings.kafka import KafkaSettings
from streaming.kafka.clients import admin_client, no_broker
from streaming.logs.events import LOG

LOOK_SECONDS = 10.0
QUICK = {"request_timeout_ms": 5_000, "bootstrap_timeout_ms": 5_000}
"""A silent broker is seen within 25 s: the pause, a request on the old connection, a new one and its first request."""
WITHOUT = "every table is looked at every 20 s meanwhile"


@dataclass(frozen=True)
class Topics:
    """Ids of topics, also of deleted ones, and numbers of partitions of those that exist, by name.

    `leaderless`: partitions that no broker serves now.
    """

    ids: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)
    leaderless: tuple[str, ...] = ()

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
            return described_topics(kafka, client)
    except Exception as error:
        raise no_broker(kafka, error) from error


def described_topics(kafka: KafkaSettings, client: KafkaAdminClient) -> Topics:
    """As `existing_topics`, through this client. Raises the client's errors."""
    names = list(kafka.named_topics)
    if kafka.patterns:
        names = list(dict.fromkeys([*names, *filter(kafka.reads, client.list_topics())]))
    described = [each for each in client.describe_topics(names) if not each["error_code"]]
    return Topics(
        {each["name"]: str(each["topic_id"]) for each in described},
        {each["name"]: len(each["partitions"]) for each in described},
        tuple(
            f"{each['name']}-{partition['partition_index']}"
            for each in described
            for partition in each["partitions"]
            if partition["leader_id"] < 0
        ),
    )


@dataclass(eq=False)
class TopicWatch:
    """Looks at the topics every 10 s, in a thread of its own. One look costs a millisecond.

    `prepare`: creates and checks topics; called before the first look, until it has succeeded. `recreated`: called with
    the topics that were created again. `trouble`: why no events can be read now, with the remedy; empty if they can.
    `prepared`: whether `prepare` has succeeded.
    """

    kafka: KafkaSettings
    recreated: Callable[[frozenset[str]], None]
    prepare: Callable[[], None] = lambda: None
    seconds: float = LOOK_SECONDS
    trouble: str = field(default="", init=False)
    prepared: bool = field(default=False, init=False)
    _refused: InputError | None = field(default=None, init=False)
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

    def check(self) -> None:
        """Raise what the thread has found wrong with the topics.

        Raises:
            InputError: as `look`.
        """
        if self._refused is not None:
            raise self._refused

    def look(self) -> None:
        """Look once.

        Raises:
            InputError: a topic is missing, another system's, or may not be used, as `prepare` has found.
        """
        try:
            if not self.prepared:
                self.prepare()
                self.prepared = True
            now = self._now()
            self._known, anew = self._known.seen(now)
            if anew:
                self.recreated(anew)
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a client raises: events cannot be read
            self.close()
            self._note(str(error if isinstance(error, FirnlineError) else no_broker(self.kafka, error)))
        else:
            without = ", ".join(now.leaderless)
            self._note(f"no Kafka broker leads {without}; check the brokers" if without else "")

    def _now(self) -> Topics:
        """A connection may have ended unnoticed, or be to a broker that has: another one is tried."""
        if self._client is not None:
            try:
                return described_topics(self.kafka, self._client)
            except Exception as error:  # noqa: BLE001 - as in `look`
                LOG.debug("topics could not be looked at, next try at once: %s", error)
                self.close()
        self._client = admin_client(self.kafka, **QUICK)
        return described_topics(self.kafka, self._client)

    def _note(self, trouble: str) -> None:
        """Keep why no events can be read. Log when that begins, and its end."""
        if trouble and not self.trouble:
            LOG.warning("%s; %s", trouble, WITHOUT)
        if self.trouble and not trouble:
            LOG.info("a Kafka broker answers again; commit events are read")
        self.trouble = f"{trouble}; {WITHOUT}" if trouble else ""

    def _serve(self) -> None:
        while not self._stop.wait(self.seconds):
            try:
                self.look()
            except InputError as error:
                self._refused = error
                return
