"""Catalogs in databases get timeouts by their address: PyIceberg passes nothing else to the driver."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from compactor.errors import RetryError
from compactor.iceberg import open_catalog
from compactor.iceberg.open_catalog import with_timeouts
from compactor.iceberg.tables import Catalogs


def test_addresses_of_databases() -> None:
    postgres = with_timeouts("postgresql+psycopg2://me:p%40ss@host:5432/catalog?sslmode=require")
    assert postgres.startswith("postgresql+psycopg2://me:p%40ss@host:5432/catalog?")
    assert "sslmode=require" in postgres
    assert "connect_timeout=10" in postgres
    assert "tcp_user_timeout=60000" in postgres
    mysql = with_timeouts("mysql+pymysql://me@host/catalog?read_timeout=5")
    assert "read_timeout=5&" in mysql
    assert "read_timeout=60" not in mysql
    assert "write_timeout=60" in mysql


@pytest.mark.parametrize("uri", ["sqlite:////folder/catalog.db", "postgresql+pg8000://me@host/catalog"])
def test_other_drivers_keep_their_address(uri: str) -> None:
    assert with_timeouts(uri) == uri


def test_a_silent_database_is_a_catalog_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pymysql")
    monkeypatch.setitem(open_catalog._TIMEOUTS, "mysql+pymysql", {"connect_timeout": "1", "read_timeout": "1"})  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"mysql+pymysql://me:secret@127.0.0.1:{silent.getsockname()[1]}/catalog"
        with pytest.raises(RetryError, match=r"timed out|Lost connection") as error:
            Catalogs({"quiet": {"type": "sql", "uri": uri, "warehouse": "file:///w"}}).catalog("quiet")
    assert error.value.reason == "catalog_unavailable"


def test_a_catalog_under_another_name_is_told_the_names_of_its_database(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    for name in ("prod", "dev"):
        open_catalog.open_catalog(name, properties).create_namespace("db")
    assert open_catalog.other_names(open_catalog.open_catalog("lake", properties)) == ["dev", "prod"]
    assert open_catalog.other_names(open_catalog.open_catalog("dev", properties)) == ["prod"]
