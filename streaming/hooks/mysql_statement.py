"""Refresh hook that runs a statement over the MySQL protocol (StarRocks, Doris). Needs the extra `firnline[mysql]`."""

from __future__ import annotations

from urllib.parse import urlsplit

from compactor.errors import InputError
from compactor.events import RunCommitted
from compactor.reasons import Reason
from compactor.settings.hooks import HookSettings
from streaming.hooks.hook import Hook, password, statement

DEFAULT_PORT = 9030  # of StarRocks and Doris front ends


def mysql_hook(settings: HookSettings) -> Hook:
    """Open a connection for each statement, because commits are rare.

    Raises:
        InputError: the client is not installed.
    """
    try:
        import pymysql  # type: ignore[import-untyped]  # noqa: PLC0415 - an optional dependency
    except ImportError:
        message = f"hooks: {settings.kind} needs a MySQL client: pip install 'firnline[mysql]'"
        raise InputError(message, reason=Reason.BAD_SETTING) from None
    parts = urlsplit(settings.uri)

    def run(committed: RunCommitted) -> None:
        connection = pymysql.connect(
            host=parts.hostname or "",
            port=parts.port or DEFAULT_PORT,
            user=settings.user,
            password=password(settings),
            connect_timeout=max(1, int(settings.timeout_seconds)),
            read_timeout=settings.timeout_seconds,
            write_timeout=settings.timeout_seconds,
        )
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement(settings, committed, "`"))
        finally:
            connection.close()

    return run
