"""Locks of Flink's table maintenance, in a database and in a real ZooKeeper: nothing is written while one is held."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compactor.commit.decisions import WAIT_SECONDS
from compactor.errors import InputError, LaterError, RetryError
from compactor.events import RunSkipped
from compactor.locks.flink_locks import Locks
from compactor.settings.locks import LockSettings
from compactor.settings.tree import Settings, load_settings
from compactor.spark.java import REST_CATALOG_JARS, fetch_jars
from compactor.table_names import TableName
from streaming.commands.connection_checks import Status, check_connections
from streaming.ledger.table_record import Lane
from tests.conftest import Lake
from tests.integration.replayed_table import FollowedTable
from tests.integration.table_kit import create
from tests.services.java_process import java_process
from tests.services.writer_jars import FLINK_JARS, writer_jars
from tests.services.zookeeper import zookeeper_server

TABLE = TableName("lake", ("db",), "t")
CREATED_BY_FLINK = (
    "CREATE TABLE flink_maintenance_lock (LOCK_TYPE CHAR(1) NOT NULL, LOCK_ID VARCHAR(100) NOT NULL, "
    "INSTANCE_ID CHAR(36) NOT NULL, PRIMARY KEY (LOCK_TYPE, LOCK_ID))"
)


class FlinkDatabase:
    """The database of a `JdbcLockFactory`, as Flink writes it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        with sqlite3.connect(file) as database:
            database.execute(CREATED_BY_FLINK)

    def lock(self, lock_id: str, kind: str = "m") -> None:
        with sqlite3.connect(self.file) as database:
            database.execute("INSERT INTO flink_maintenance_lock VALUES (?, ?, 'x')", (kind, lock_id))

    def unlock(self) -> None:
        with sqlite3.connect(self.file) as database:
            database.execute("DELETE FROM flink_maintenance_lock")

    def settings(self, lock_id: str = "job-1", tables: str = "*") -> LockSettings:
        return LockSettings(tables=(tables,), lock_id=lock_id, database=f"sqlite:///{self.file}")


@pytest.fixture
def database(tmp_path: Path) -> FlinkDatabase:
    return FlinkDatabase(tmp_path / "locks.db")


@pytest.mark.parametrize("kind", ["m", "r"])
def test_a_row_is_a_lock_that_is_held(database: FlinkDatabase, kind: str) -> None:
    locks = Locks([database.settings("job-1", "db.u"), database.settings("job-2", "db.t")])
    assert locks.holder(TABLE) is None
    database.lock("job-1", kind)
    assert locks.holder(TABLE) is None
    database.lock("job-2", kind)
    assert locks.holder(TABLE) == "job-2"
    assert locks.holder(TableName("lake", ("db",), "u")) == "job-1"
    database.unlock()
    assert locks.holder(TABLE) is None


def test_a_database_without_the_table_of_locks_is_named(tmp_path: Path) -> None:
    locks = Locks([LockSettings(tables=("*",), lock_id="job-1", database=f"sqlite:///{tmp_path}/empty.db")])
    with pytest.raises(RetryError, match=r"job-1.*flink_maintenance_lock") as caught:
        locks.holder(TABLE)
    assert caught.value.reason == "lock_unreadable"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "set database or zookeeper"),
        ({"database": "sqlite:///x", "zookeeper": "z:2181"}, "set database or zookeeper"),
        ({"database": "jdbc:postgresql://h/d"}, "it is a JDBC address"),
        ({"database": "postgresql+psycopg2://u:secret@h/d"}, "password_env"),
    ],
)
def test_a_lock_in_no_place_or_in_two_is_refused(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    lines = [f"    {key}: {value!r}" for key, value in given.items()]
    file = tmp_path / "firnline.yaml"
    file.write_text("\n".join(["catalogs: {lake: {type: rest, uri: 'http://c'}}", "locks:",
                               "  - tables: ['db.*']", "    lock_id: job", *lines, ""]))  # fmt: skip
    with pytest.raises(InputError, match=message) as caught:
        load_settings(file, {})
    assert "secret" not in str(caught.value)


def test_check_config_tries_the_locks(tmp_path: Path, database: FlinkDatabase) -> None:
    database.lock("job-2")
    away = LockSettings(tables=("*",), lock_id="job-3", database=f"sqlite:///{tmp_path}/empty.db")
    locks = (database.settings("job-1"), database.settings("job-2"), away)
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    settings = Settings(catalogs={"lake": catalog}, state={"checkpoint": str(tmp_path)}, locks=locks)
    found = {check.name: check for check in check_connections(settings)}
    assert found["Flink's lock job-1"].detail == "it can be read; nobody holds it"
    assert "it is held" in found["Flink's lock job-2"].detail
    assert found["Flink's lock job-3"].status is Status.FAILED


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as address:
        yield address


@pytest.fixture
def curator(lake: Lake, zookeeper: str) -> Iterator[Callable[[str, int], None]]:
    """Sets a shared count with Apache Curator, as Flink's `ZkLockFactory` does."""
    jvm: Any = lake.session.sparkContext._jvm
    retry = jvm.org.apache.curator.retry.RetryOneTime(100)
    client = jvm.org.apache.curator.framework.CuratorFrameworkFactory.newClient(zookeeper, retry)
    client.start()

    def count(path: str, value: int) -> None:
        shared = jvm.org.apache.curator.framework.recipes.shared.SharedCount(client, path, 0)
        shared.start()
        shared.setCount(value)
        shared.close()

    yield count
    client.close()


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["task", "recovery"])
def test_a_shared_count_of_one_is_a_lock_that_is_held(
    curator: Callable[[str, int], None], zookeeper: str, kind: str
) -> None:
    lock_id = f"job-{kind}"
    locks = Locks([LockSettings(tables=("db.*",), lock_id=lock_id, zookeeper=zookeeper)])
    path = f"/iceberg/flink/maintenance/locks/{lock_id}/{kind}"
    assert locks.holder(TABLE) is None
    curator(path, 1)
    assert locks.holder(TABLE) == lock_id
    curator(path, 0)
    assert locks.holder(TABLE) is None


@pytest.mark.slow
def test_locks_that_flinks_own_factories_take(tmp_path: Path, zookeeper: str) -> None:
    """`JdbcLockFactory` and `ZkLockFactory` of Iceberg's Flink runtime, in a JVM of their own."""
    drivers = [jar for jar in fetch_jars(REST_CATALOG_JARS) if jar.name.startswith("sqlite-jdbc")]
    with java_process(tmp_path / "flink", [*writer_jars(FLINK_JARS), *drivers]) as flink:
        api = flink.java.org.apache.iceberg.flink.maintenance.api
        properties = flink.map({"flink-maintenance.lock.jdbc.init-lock-tables": "true"})
        uri = tmp_path / "flink.db"
        by_database = api.JdbcLockFactory(f"jdbc:sqlite:{uri}", "job-1", properties)
        by_zookeeper = api.ZkLockFactory(zookeeper, "job-2", 10_000, 10_000, 100, 3, None, 1_000)
        settings = (
            LockSettings(tables=("*",), lock_id="job-1", database=f"sqlite:///{uri}"),
            LockSettings(tables=("*",), lock_id="job-2", zookeeper=zookeeper),
        )
        for factory, given in zip((by_database, by_zookeeper), settings, strict=True):
            factory.open()
            locks, lock = Locks([given]), factory.createLock()
            assert locks.holder(TABLE) is None
            assert lock.tryLock()
            assert locks.holder(TABLE) == given.lock_id
            lock.unlock()
            assert locks.holder(TABLE) is None
            assert factory.createRecoveryLock().tryLock()
            assert locks.holder(TABLE) == given.lock_id
            factory.close()


def test_a_zookeeper_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compactor.locks.flink_locks.CONNECT_SECONDS", 0.5)
    locks = Locks([LockSettings(tables=("*",), lock_id="job-1", zookeeper="127.0.0.1:1")])
    with pytest.raises(RetryError, match="ZooKeeper does not answer about Flink's lock job-1"):
        locks.holder(TABLE)


@pytest.mark.spark
def test_the_service_waits_while_a_lock_is_held(lake: Lake, table_name: str, database: FlinkDatabase) -> None:
    create(lake, table_name, commits=12)
    settings = Settings.model_validate({"catalogs": {"lake": {}}, "tables": {"include": ["*"]}})
    service = FollowedTable(lake, table_name, settings, time.time(), locks=Locks([database.settings()]))
    database.lock("job-1")
    with pytest.raises(LaterError, match="Flink's maintenance holds its lock job-1"):
        service.look(Lane.EVENT)
    assert [event.reason for event in service.events if isinstance(event, RunSkipped)] == ["flink_lock"]
    assert len(lake.live_files(table_name)) == 12
    database.unlock()
    service.look(Lane.EVENT)
    assert len(lake.live_files(table_name)) < 12


@pytest.mark.spark
def test_a_finished_rewrite_waits_for_the_lock(lake: Lake, table_name: str, database: FlinkDatabase) -> None:
    """It is taken while the rewrite is under way, and held longer than a rewrite waits: nothing is committed."""
    create(lake, table_name, commits=12)
    settings = Settings.model_validate({"catalogs": {"lake": {}}, "tables": {"include": ["*"]}})
    asked: list[bool] = []

    class TakenMeanwhile(Locks):
        """Free for the plan, held at the commit."""

        def holder(self, table: TableName) -> str | None:
            asked.append(True)
            if len(asked) == 2:
                database.lock("job-1")
                service.now += WAIT_SECONDS + 2 * settings.commit.hold_seconds
            return super().holder(table)

    service = FollowedTable(lake, table_name, settings, time.time(), locks=TakenMeanwhile([database.settings()]))
    with pytest.raises(LaterError, match="the rewrite was not committed"):
        service.look(Lane.EVENT)
    assert len(lake.live_files(table_name)) == 12
