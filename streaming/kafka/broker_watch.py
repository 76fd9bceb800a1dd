"""Watch the brokers beside the stream: whether its topics can be read, and where standard lag monitors see it.

Spark tells neither: its query waits for minutes for a broker, and keeps its offsets in the checkpoint. What the stream
has read is committed to a consumer group without members; nothing reads it back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import NoError, RetriableError
from kafka.structs import OffsetAndMetadata

from compactor.errors import FirnlineError, InputError
from compactor.settings.kafka import KafkaSettings
from streaming.kafka.clients import NOT_ALLOWED, admin_client, no_broker
from streaming.logs.events import LOG

LOOK_SECONDS = 10.0
QUICK = {"request_timeout_ms": 5_000, "bootstrap_timeout_ms": 5_000}
"""A silent broker is seen within 25 s: the pause, a request on the old connection, a new one and its first request."""
WITHOUT = "until then every table is looked at every 20 s"
Offsets = Mapping[str, Mapping[str, int]]
"""The next offset to read, by topic and partition."""


def topics_trouble(kafka: KafkaSettings, client: KafkaAdminClient) -> str:
    """Why events cannot be read from the topics that settings name, with the remedy; empty if they can.

    Topics of other systems may be missing. Raises the client's errors.
    """
    found = {each["name"]: each for each in client.describe_topics([*kafka.named_topics])}
    troubles = (_trouble(found[name], waits=name != kafka.commit_topic) for name in kafka.named_topics if name in found)
    return "; ".join(trouble for trouble in troubles if trouble)


def _trouble(topic: Mapping[str, Any], *, waits: bool) -> str:
    name, code, allowed = topic["name"], topic["error_code"], topic.get("authorized_operations")
    if code == NOT_ALLOWED or (not code and allowed and "READ" not in allowed):
        return f"Kafka does not allow this principal to READ topic {name}; allow it"
    if code:
        return "" if waits else f"topic {name} is missing (error {code}); create it again, or restart firnline"
    without = [str(each["partition_index"]) for each in topic["partitions"] if each["leader_id"] < 0]
    return f"no Kafka broker leads partition {', '.join(without)} of topic {name}; check the brokers" if without else ""


class BrokerWatch:
    """Looks every 10 s, in a thread of its own; a look costs some milliseconds.

    `prepare`: creates and checks topics; called before the first look, until it has succeeded (`prepared`). `trouble`:
    why no events can be read, with the remedy; empty if they can. `commits`: whether to commit what was read.
    """

    def __init__(
        self, kafka: KafkaSettings, prepare: Callable[[], None] = lambda: None, *, commits: bool = True
    ) -> None:
        self.trouble = ""
        self.prepared = False
        self._kafka = kafka
        self._prepare = prepare
        self._lag = GroupOffsets(kafka.offsets_group, commits)
        self._refused: InputError | None = None
        self._client: KafkaAdminClient | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="broker-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
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

    def read(self, offsets: Offsets) -> None:
        """The stream has read up to these offsets. Does not block."""
        self._lag.newest = offsets

    def ask(self) -> str:
        """Why no events can be read, asked now, from any thread."""
        try:
            with closing(admin_client(self._kafka, **QUICK)) as client:
                return topics_trouble(self._kafka, client)
        except Exception as error:  # noqa: BLE001 - after any error of a client, events cannot be read
            return str(no_broker(self._kafka, error))

    def look(self) -> None:
        """Look once, and commit what was read.

        Raises:
            InputError: a topic is missing, another system's, or may not be used, as `prepare` has found.
        """
        try:
            if not self.prepared:
                self._prepare()
                self.prepared = True
            self._note(self._look())
            if self._client is not None:
                self._lag.commit(self._client)
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - as in `ask`
            self._note(str(error if isinstance(error, FirnlineError) else no_broker(self._kafka, error)))
            self.close()

    def _look(self) -> str:
        """A connection may have ended unnoticed, or be to a broker that has: another one is tried."""
        if self._client is not None:
            try:
                return topics_trouble(self._kafka, self._client)
            except Exception as error:  # noqa: BLE001 - as in `look`
                LOG.debug("topics could not be looked at, next try at once: %s", error)
                self.close()
        self._client = admin_client(self._kafka, **QUICK)
        return topics_trouble(self._kafka, self._client)

    def _note(self, trouble: str) -> None:
        """Keep why no events can be read. Log when that begins, and its end."""
        if trouble and not self.trouble:
            LOG.warning("%s; %s", trouble, WITHOUT)
        if self.trouble and not trouble:
            LOG.info("a Kafka broker answers again; commit events are read")
        self.trouble = f"{trouble}; {WITHOUT}" if trouble else ""

    def _serve(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            try:
                self.look()
            except InputError as error:
                self._refused = error
                return
            except Exception as error:  # noqa: BLE001 - of the client that is closed; the next look opens another
                LOG.debug("a connection to Kafka could not be closed: %s", error)


@dataclass
class GroupOffsets:
    """What lag monitors see: the offsets of a group without members. `enabled`: until the broker refuses them."""

    group: str
    enabled: bool
    newest: Offsets = field(default_factory=dict)
    _committed: Offsets = field(default_factory=dict)

    def commit(self, client: KafkaAdminClient) -> None:
        """Commit the newest offsets if they are not committed."""
        newest = self.newest
        if not self.enabled or newest == self._committed:
            return
        wanted = {
            TopicPartition(topic, int(number)): OffsetAndMetadata(offset, "", -1)
            for topic, partitions in newest.items()
            for number, offset in partitions.items()
        }
        try:
            answered = client.alter_group_offsets(self.group, wanted)
            for error in {*answered.values()} - {NoError}:
                raise error  # noqa: TRY301 - as if the client had raised it
            self._committed = newest
        except RetriableError as error:  # the first use of any group in a cluster takes the broker seconds
            LOG.debug("offsets cannot be committed yet: %s", error)
        except Exception as error:  # noqa: BLE001 - the stream is not concerned
            self.enabled = False
            LOG.warning(
                "offsets cannot be committed to group %s: %s; lag monitors will not see this stream. Allow this "
                "principal to READ the group, and restart firnline", self.group, error,
            )  # fmt: skip
