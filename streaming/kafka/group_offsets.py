"""Commit the offsets that the stream has read to a consumer group, so that standard lag monitors see the stream.

Spark keeps its offsets in the checkpoint and joins no group. The group has no members; nothing reads its offsets back.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import NoError, RetriableError
from kafka.structs import OffsetAndMetadata

from compactor.settings.kafka import KafkaSettings
from streaming.kafka.clients import admin_client
from streaming.logs.events import LOG

SECONDS = 5.0
Offsets = Mapping[str, Mapping[str, int]]
"""The next offset to read, by topic and partition."""


@dataclass(eq=False)
class GroupOffsets:
    """Commits in a thread of its own: a broker that does not answer delays nothing. A refusal is logged once."""

    kafka: KafkaSettings
    seconds: float = SECONDS
    _newest: Offsets = field(default_factory=dict, init=False)
    _committed: Offsets = field(default_factory=dict, init=False)
    _client: KafkaAdminClient | None = field(default=None, init=False)
    _refused: bool = field(default=False, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread = field(init=False)

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._serve, name="group-offsets", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a broker that does not answer is not waited for."""
        self._stop.set()
        self._thread.join(timeout=1.0)

    def read(self, offsets: Offsets) -> None:
        """The stream has read up to these offsets. Does not block."""
        self._newest = offsets

    def commit(self) -> bool:
        """Commit the newest offsets if they are not committed; whether there was something to commit.

        Raises:
            KafkaError: the broker does not answer or refuses.
        """
        newest = self._newest
        if not newest or newest == self._committed:
            return False
        if self._client is None:
            self._client = admin_client(self.kafka)
        wanted = {
            TopicPartition(topic, int(number)): OffsetAndMetadata(offset, "", -1)
            for topic, partitions in newest.items()
            for number, offset in partitions.items()
        }
        answered = self._client.alter_group_offsets(self.kafka.offsets_group, wanted)
        failed = next((error for error in answered.values() if error is not NoError), None)
        if failed is not None:
            raise failed
        self._committed = newest
        return True

    def _serve(self) -> None:
        while not self._stop.wait(self.seconds):
            try:
                if self.commit() and self._refused:
                    self._refused = False
            except RetriableError as error:  # the first use of any group in a cluster takes the broker seconds
                LOG.debug("offsets cannot be committed yet: %s", error)
            except Exception as error:  # noqa: BLE001 - lag monitors miss an update; the stream is not concerned
                log = LOG.debug if self._refused else LOG.warning
                log(
                    "offsets cannot be committed to group %s: %s; lag monitors will not see this stream. Allow this "
                    "principal to READ the group, or set kafka.consumer_group", self.kafka.offsets_group, error,
                )  # fmt: skip
                self._refused = True
                self._close()
        self._close()

    def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
