"""Events of Apache Polaris' Kafka listener.

Source: `EventToJsonMapper` in Polaris' `extensions/events/kafka`, and the attributes that
`IcebergRestCatalogEventServiceDelegator` gives to each event. A transaction sends one `AFTER_UPDATE_TABLE` per table.
"""

from __future__ import annotations

from streaming.commit_events.decoder import Decoded, NotACommit, TableChanged, shown
from streaming.commit_events.strict_json import Fields, JsonDecoder, mark

SOURCE = "polaris"
RENAME = "AFTER_RENAME_TABLE"

# Events named BEFORE_… precede a change that can still fail. AFTER_REFRESH_TABLE follows a load, not a commit;
# AFTER_COMMIT_TRANSACTION names no table. AFTER_SEND_NOTIFICATION is about tables that another catalog commits to.
_BRINGS_FILES = frozenset({"AFTER_CREATE_TABLE", "AFTER_REGISTER_TABLE", "AFTER_UPDATE_TABLE"})


def _read(event: Fields, _arrived_ms: int) -> Decoded:
    event_type, realm = event.text("event_type"), event.text("realm_id")
    if event_type == RENAME:
        namespace, name = event.identifier("destination")
    elif event_type in _BRINGS_FILES:
        namespace, name = event.namespace("namespace"), event.text("table_name")
    else:
        return NotACommit(SOURCE, shown(event_type))
    return TableChanged(
        source=SOURCE,
        event_id=event.text("event_id"),
        catalog=event.text("catalog_name"),
        namespace=namespace,
        name=name,
        timestamp_ms=event.instant_ms("timestamp"),
        realm=realm,
    )


DECODER = JsonDecoder(SOURCE, ((mark("event_type"), mark("realm_id")),), _read)
