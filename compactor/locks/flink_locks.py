"""Locks of Flink's table maintenance: whether a Flink job maintains a table now. Read only, never taken.

Flink's JDBC lock is a row of the table `flink_maintenance_lock`; its ZooKeeper lock is a node with a shared count of 1.
Each has a second one, for the recovery of a job, which counts too. A lock that cannot be read counts as an error:
nothing is written to the table until it can.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Final, Protocol

from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError

from compactor.errors import InputError, RetryError
from compactor.iceberg.open_catalog import with_timeouts
from compactor.iceberg.rest_catalog import CONNECT_SECONDS
from compactor.reasons import Reason
from compactor.settings.locks import LockSettings
from compactor.table_names import TableName

HELD: Final = text("SELECT LOCK_TYPE FROM flink_maintenance_lock WHERE LOCK_ID = :lock_id")
ZOOKEEPER_PATHS: Final = ("/iceberg/flink/maintenance/locks/{}/task", "/iceberg/flink/maintenance/locks/{}/recovery")
LOCKED: Final = 1
"""The shared count of a lock that is held; Curator writes it as four bytes, the most significant first."""


class FlinkLock(Protocol):
    """One lock. `held` raises RetryError if nobody answers."""

    def held(self) -> bool: ...


class DatabaseLock:
    """Flink's `JdbcLockFactory`."""

    def __init__(self, uri: str, lock_id: str, password: str = "") -> None:
        self._url = make_url(with_timeouts(uri)).set(password=password or None)
        self._lock_id = lock_id

    def held(self) -> bool:
        """Whether the lock or its recovery lock is held.

        Raises:
            RetryError: the database does not answer, or has no table of locks.
        """
        try:
            with self._engine.connect() as connection:
                return connection.execute(HELD, {"lock_id": self._lock_id}).first() is not None
        except (SQLAlchemyError, OSError) as error:
            raise RetryError(
                f"the database of Flink's lock {self._lock_id} does not answer: {error}; check locks[].database",
                reason=Reason.LOCK_UNREADABLE,
            ) from error

    @cached_property
    def _engine(self) -> Engine:
        return create_engine(self._url, pool_pre_ping=True, pool_size=1)


class ZooKeeperLock:
    """Flink's `ZkLockFactory`. A session for each look: a lock is looked at before a run and before its commit only."""

    def __init__(self, servers: str, lock_id: str) -> None:
        self._servers = servers
        self._lock_id = lock_id

    def held(self) -> bool:
        """Whether the lock or its recovery lock is held.

        Raises:
            InputError: the package kazoo is not installed.
            RetryError: no server answers.
        """
        try:
            from kazoo.client import KazooClient  # noqa: PLC0415 - optional
            from kazoo.exceptions import KazooException, NoNodeError  # noqa: PLC0415
            from kazoo.handlers.threading import KazooTimeoutError  # noqa: PLC0415
        except ImportError as error:
            raise InputError("locks in ZooKeeper need the package kazoo: pip install 'firnline[zookeeper]'") from error
        client = KazooClient(hosts=self._servers, timeout=CONNECT_SECONDS, read_only=True)
        try:
            client.start(timeout=CONNECT_SECONDS)
            for path in ZOOKEEPER_PATHS:
                try:
                    value, _ = client.get(path.format(self._lock_id))
                except NoNodeError:
                    continue
                if int.from_bytes(value[:4], "big") == LOCKED:
                    return True
        except (KazooException, KazooTimeoutError, OSError) as error:
            raise RetryError(
                f"ZooKeeper does not answer about Flink's lock {self._lock_id}: {error}; check locks[].zookeeper",
                reason=Reason.LOCK_UNREADABLE,
            ) from error
        finally:
            client.stop()
            client.close()
        return False


class Locks:
    """The locks of all tables."""

    def __init__(self, settings: Sequence[LockSettings] = ()) -> None:
        self._locks = [(each.tables, each.lock_id, opened(each)) for each in settings]

    def holder(self, table: TableName) -> str | None:
        """The id of a lock that is held on the table; None: there is none.

        Raises:
            RetryError: a lock cannot be read.
            InputError: a package is missing.
        """
        for globs, lock_id, lock in self._locks:
            if any(table.matches(glob) for glob in globs) and lock.held():
                return lock_id
        return None


def opened(settings: LockSettings) -> FlinkLock:
    """The lock that settings name; nothing is connected yet."""
    if settings.database:
        password = os.environ.get(settings.password_env, "") if settings.password_env else ""
        return DatabaseLock(settings.database, settings.lock_id, password)
    return ZooKeeperLock(settings.zookeeper, settings.lock_id)


NO_LOCKS: Final = Locks()
