"""Refresh hook that runs a statement over Trino's HTTP protocol. Needs the extra `firnline[trino]`."""

from __future__ import annotations

from urllib.parse import urlsplit

from compactor.errors import InputError
from compactor.events import RunCommitted
from compactor.reasons import Reason
from compactor.settings.hooks import HookSettings
from streaming.hooks.hook import Hook, password, statement

DEFAULT_PORTS = {"http": 8080, "https": 443}


def trino_hook(settings: HookSettings) -> Hook:
    """Open a connection for each statement, because commits are rare.

    Raises:
        InputError: Trino's client is not installed.
    """
    try:
        from trino.auth import BasicAuthentication  # noqa: PLC0415 - an optional dependency
        from trino.dbapi import connect  # noqa: PLC0415
    except ImportError:
        raise InputError(
            "hooks: trino needs its client: pip install 'firnline[trino]'", reason=Reason.BAD_SETTING
        ) from None
    parts = urlsplit(settings.uri)

    def run(committed: RunCommitted) -> None:
        secret = password(settings)
        connection = connect(  # type: ignore[no-untyped-call]
            host=parts.hostname,
            port=parts.port or DEFAULT_PORTS.get(parts.scheme, DEFAULT_PORTS["http"]),
            user=settings.user,
            http_scheme=parts.scheme,
            auth=BasicAuthentication(settings.user, secret) if secret else None,
            request_timeout=settings.timeout_seconds,
            max_attempts=1,
        )
        try:
            cursor = connection.cursor()
            cursor.execute(statement(settings, committed, '"'))
            cursor.fetchall()
        finally:
            connection.close()

    return run
