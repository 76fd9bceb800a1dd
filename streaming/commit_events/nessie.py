"""Events of Nessie as its reference implementation writes them to Kafka in JSON.

Source: `events/api` (the events, with examples) and `events/ri` (`KafkaJsonEventSubscriber`, which writes them as they
are). A commit sends COMMIT, then one CONTENT_STORED for each table. A merge or transplant sends both for every commit
that it creates, and MERGE or TRANSPLANT itself.
"""

from __future__ import annotations

from streaming.commit_events.decoder import Decoded, NotACommit, TableChanged, shown
from streaming.commit_events.strict_json import Fields, JsonDecoder, mark

SOURCE = "nessie"
CONTENT_STORED, ICEBERG_TABLE = "CONTENT_STORED", "ICEBERG_TABLE"
NO_SNAPSHOT = -1


def _read(event: Fields, _arrived_ms: int) -> Decoded:
    kind, created_ms = event.text("type"), event.instant_ms("eventCreationTimestamp")
    # The repository of a server has no name by default.
    repository = None if event.values.get("repositoryId") == "" else event.text("repositoryId")
    if kind != CONTENT_STORED:
        return NotACommit(SOURCE, shown(kind))
    content = event.record("content")
    content_type = content.text("type")
    if content_type != ICEBERG_TABLE:
        return NotACommit(SOURCE, shown(content_type))
    namespace, name = event.record("contentKey").identifier("elements")
    snapshot_id = content.optional_integer("snapshotId")
    return TableChanged(
        source=SOURCE,
        event_id=event.text("id"),
        catalog=repository,
        namespace=namespace,
        name=name,
        timestamp_ms=created_ms,
        snapshot_id=None if snapshot_id == NO_SNAPSHOT else snapshot_id,
        ref_name=event.record("reference").text("name"),
        metadata_location=content.optional_text("metadataLocation"),
    )


DECODER = JsonDecoder(SOURCE, ((mark("repositoryId"), mark("eventCreationTimestamp")),), _read)
