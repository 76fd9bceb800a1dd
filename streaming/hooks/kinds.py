"""The kinds of refresh hooks. A hook is a function of a commit that raises if it fails."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

from compactor.errors import InputError
from compactor.events import RunCommitted
from compactor.reasons import Reason
from compactor.settings.hooks import HookSettings
from compactor.settings.kafka import KafkaSettings
from streaming.kafka.clients import producer

Hook = Callable[[RunCommitted], None]
USER = "firnline"  # of statements, if the address names none
TRINO_PORTS = {"http": 8080, "https": 443}


def make_hook(settings: HookSettings, kafka: KafkaSettings) -> Hook:
    """Make the hook that the settings describe.

    Raises:
        InputError: the hook's client is not installed.
    """
    return kafka_hook(settings, kafka) if settings.kind == "kafka" else trino_hook(settings)


def kafka_hook(settings: HookSettings, kafka: KafkaSettings) -> Hook:
    """Publish a `compacted` event on a Kafka topic and wait for the broker's acknowledgement.

    It connects with the first event: the service starts without a broker.
    """
    connected = cache(producer)

    def send(committed: RunCommitted) -> None:
        key, value = compacted_event(committed)
        connected(kafka).send(settings.topic, key=key, value=value).get(timeout=settings.timeout_seconds)

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


def trino_hook(settings: HookSettings) -> Hook:
    """Run a statement over Trino's HTTP protocol. Needs the extra `firnline[trino]`.

    Opens a connection for each statement, because commits are rare. A statement that takes too long is cancelled: Trino
    answers each request in time, also while it leaves the statement in a queue.

    Raises:
        InputError: Trino's client is not installed.
    """
    try:
        from trino.auth import BasicAuthentication  # noqa: PLC0415 - an optional dependency
        from trino.dbapi import connect  # noqa: PLC0415
        from trino.exceptions import TrinoConnectionError  # noqa: PLC0415
    except ImportError:
        message = "hooks: trino needs its client: pip install 'firnline[trino]'"
        raise InputError(message, reason=Reason.BAD_SETTING) from None
    parts = urlsplit(settings.uri)
    user = unquote(parts.username or USER)

    def run(committed: RunCommitted) -> None:
        secret = password(settings)
        connection = connect(  # type: ignore[no-untyped-call]
            host=parts.hostname,
            port=parts.port or TRINO_PORTS.get(parts.scheme, TRINO_PORTS["http"]),
            user=user,
            http_scheme=parts.scheme,
            auth=BasicAuthentication(user, secret) if secret else None,
            request_timeout=settings.timeout_seconds,
            max_attempts=1,
        )
        with closing(connection):
            cursor = connection.cursor(stats_callback=_time_limit(settings.timeout_seconds))
            try:
                cursor.execute(statement(settings, committed))
                cursor.fetchall()
            except (TimeoutError, TrinoConnectionError):
                with suppress(Exception):  # the error of the statement says more
                    cursor.cancel()
                raise

    return run


def _time_limit(seconds: float) -> Callable[[Any], None]:
    """What a client calls after each answer. Raises TimeoutError after so many seconds from now."""
    deadline = time.monotonic() + seconds

    def check(_stats: Any) -> None:
        if time.monotonic() >= deadline:
            raise TimeoutError(f"the statement took longer than {seconds:g} s")

    return check


def statement(settings: HookSettings, committed: RunCommitted) -> str:
    """The statement for one table, its names quoted as Trino does."""
    table = committed.table
    parts = (table.catalog, *table.namespace, table.name)
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in parts)
    text = {"catalog": table.catalog, "namespace": ".".join(table.namespace), "name": table.name}
    literals = {key: value.replace("'", "''") for key, value in text.items()}  # statements use them in literals
    return settings.statement.format(**literals, table=quoted)


def password(settings: HookSettings) -> str:
    """The password from the environment, so that settings files do not contain it."""
    return os.environ.get(settings.password_env, "") if settings.password_env else ""
