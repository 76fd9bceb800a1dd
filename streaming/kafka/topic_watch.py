"""Watch the topics of commit events: a silent broker, a topic that was created again, a transaction that stays open.

Spark tells none of these: its query waits for minutes for a broker, and for ever for offsets that will not come; it
takes the first record of an open transaction, whoever wrote it, for the end of the partition. Kafka gives each topic an
id (KIP-516), and a new one to a topic that is created again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from kafka import TopicPartition
from kafka.admin import KafkaAdminClient, OffsetSpec
from kafka.errors import KafkaError

from compactor.errors import FirnlineError, InputError
from compactor.settings.kafka import KafkaSettings
from streaming.kafka.clients import admin_client, isolation_of, no_broker
from streaming.logs.events import LOG

LOOK_SECONDS = 10.0
LOOKS_APART = 3
"""Looks between two at transactions: usual ones are shorter."""
ALL = "read_uncommitted"
QUICK = {"request_timeout_ms": 5_000, "bootstrap_timeout_ms": 5_000}
"""A silent broker is seen within 25 s: the pause, a request on the old connection, a new one and its first request."""
WITHOUT = "every table is looked at every 20 s meanwhile"
Places = Mapping[TopicPartition, int]
"""An offset of each partition."""


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


def ends(client: KafkaAdminClient, places: Iterable[TopicPartition], isolation: str) -> Places:
    """The end of each partition: of `ALL` records, or as the stream reads it, before the first open transaction.

    Raises:
        KafkaError: the broker does not answer, or a partition has no leader.
    """
    found = client.list_partition_offsets(dict.fromkeys(places, OffsetSpec.LATEST), isolation)
    return {place: each.offset for place, each in found.items()}


def hidden(then: Places, readable: Places) -> Places:
    """Numbers of offsets that partitions had `then` and that cannot be read yet, where there are any. Pure."""
    return {place: then[place] - end for place, end in readable.items() if then.get(place, end) > end}


def waits_for_transaction(kafka: KafkaSettings, place: TopicPartition, offset: int) -> bool:
    """Whether a record that was written cannot be read yet. False if the broker does not tell.

    A record in an open transaction, or behind one, waits for its end.
    """
    try:
        with closing(admin_client(kafka)) as client:
            return ends(client, [place], isolation_of(kafka))[place] <= offset
    except KafkaError as error:
        LOG.debug("the end of %s is not known: %s", place, error)
        return False


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
    """Looks at the topics every 10 s, in a thread of its own. One look costs some milliseconds.

    `prepare`: creates and checks topics; called before the first look, until it has succeeded. `recreated`: called with
    the topics that were created again. `waiting`: called with the number of offsets that were there half a minute ago
    and wait behind an open transaction. `trouble`: why no events can be read now, with the remedy; empty if they can.
    `prepared`: whether `prepare` has succeeded.
    """

    kafka: KafkaSettings
    recreated: Callable[[frozenset[str]], None]
    waiting: Callable[[int], None] = lambda _offsets: None
    prepare: Callable[[], None] = lambda: None
    seconds: float = LOOK_SECONDS
    apart: int = LOOKS_APART
    trouble: str = field(default="", init=False)
    prepared: bool = field(default=False, init=False)
    _refused: InputError | None = field(default=None, init=False)
    _known: Topics = field(default_factory=Topics, init=False)
    _ends: Places = field(default_factory=dict, init=False)
    _hidden: Places = field(default_factory=dict, init=False)
    _looks: int = field(default=0, init=False)
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
            if self._looks % self.apart == 0 and not now.leaderless and self._client is not None:
                self._look_for_transactions(self._client)
            self._looks += 1
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a client raises: events cannot be read
            self._note(str(error if isinstance(error, FirnlineError) else no_broker(self.kafka, error)))
            self.close()
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

    def _look_for_transactions(self, client: KafkaAdminClient) -> None:
        topics = self._known.partitions.items()
        places = [TopicPartition(topic, number) for topic, count in topics for number in range(count)]
        found = hidden(self._ends, ends(client, places, isolation_of(self.kafka)))
        self._ends = ends(client, places, ALL)
        for place in found.keys() - self._hidden.keys():
            LOG.warning(
                "topic %s, partition %d: events wait behind a transaction that stays open; they are read when its "
                "producer ends it or its transaction.timeout.ms has passed, until then looks find their commits. If it "
                "never ends: kafka-transactions.sh --bootstrap-server %s find-hanging, then abort",
                place.topic, place.partition, self.kafka.bootstrap_servers,
            )  # fmt: skip
        for place in self._hidden.keys() - found.keys():
            LOG.info("topic %s, partition %d: the open transaction has ended", place.topic, place.partition)
        self._hidden = found
        self.waiting(sum(found.values()))

    def _serve(self) -> None:
        while not self._stop.wait(self.seconds):
            try:
                self.look()
            except InputError as error:
                self._refused = error
                return
            except Exception as error:  # noqa: BLE001 - of the client that is closed; the next look opens another
                LOG.debug("a connection to Kafka could not be closed: %s", error)
