"""Refresh hook that publishes a `compacted` event on a Kafka topic."""

from __future__ import annotations

import json
from typing import Any

from compactor.events import RunCommitted
from compactor.settings.hooks import HookSettings
from streaming.hooks.hook import Hook


def kafka_hook(settings: HookSettings, producer: Any) -> Hook:
    """Send the event and wait for the broker's acknowledgement. `producer`: the service's producer."""

    def send(committed: RunCommitted) -> None:
        key, value = compacted_event(committed)
        producer.send(settings.topic, key=key, value=value).get(timeout=settings.timeout_seconds)

    return send


def compacted_event(committed: RunCommitted) -> tuple[bytes, bytes]:
    """Key (the table) and value (JSON) of the record. Sizes in bytes."""
    table = committed.table
    body = {
        "type": "compacted",
        "catalog": table.catalog,
        "namespace": list(table.namespace),
        "name": table.name,
        "snapshot-id": committed.snapshot_id,
        "run-id": committed.run_id,
        "files-in": committed.files_in,
        "files-out": committed.files_out,
        "bytes-in": committed.bytes_in,
        "bytes-out": committed.bytes_out,
        "delete-files-removed": committed.delete_files_removed,
    }
    return str(table).encode(), json.dumps(body, ensure_ascii=False).encode()
