"""Hive's metastore protocol over real sockets. Skipped without `thrift` (the extra `hive`)."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from compactor.errors import RetryError
from compactor.iceberg.tables import Catalogs, KnownVersion, TableMissingError, Unchanged
from compactor.table_names import TableName
from tests.unit.failing import fails

pytest.importorskip("thrift")

from hive_metastore import ThriftHiveMetastore, ttypes
from thrift.protocol import TBinaryProtocol
from thrift.transport import TTransport

from compactor.iceberg import hive_catalog

NOW = 1_000_000.0
THREADS = 8


def location(table: str) -> str:
    return f"file:///nowhere/{table}/1.metadata.json"


class Metastore:
    """Answers about every table but `gone`, `forbidden` and `down`; counts questions."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def get_table(self, dbname: str, tbl_name: str) -> Any:
        self.asked[tbl_name] += 1
        if tbl_name == "gone":
            raise ttypes.NoSuchObjectException("gone")
        if tbl_name == "forbidden":
            raise ttypes.MetaException("Permission denied: user [me] does not have [SELECT] privilege on [db/t]")
        if tbl_name == "down":
            raise ttypes.MetaException("javax.jdo.JDODataStoreException: the database does not answer")
        parameters = {"table_type": "ICEBERG", "metadata_location": location(tbl_name)}
        return ttypes.Table(dbName=dbname, tableName=tbl_name, parameters=parameters)


class _Stream(TTransport.TTransportBase):  # type: ignore[misc]
    """A connected socket as thrift's transport."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def read(self, size: int) -> bytes:
        return self.connection.recv(size)

    def write(self, data: bytes) -> None:
        self.connection.sendall(data)

    def flush(self) -> None:
        """Nothing is kept back."""


@contextmanager
def served(metastore: Metastore) -> Iterator[str]:
    processor = ThriftHiveMetastore.Processor(metastore)

    def talk(connection: socket.socket) -> None:
        protocol = TBinaryProtocol.TBinaryProtocol(TTransport.TBufferedTransport(_Stream(connection)))
        try:
            while True:
                processor.process(protocol, protocol)
        except (EOFError, OSError):
            connection.close()

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield f"thrift://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def hive(uri: str) -> Catalogs:
    return Catalogs({"hive": {"type": "hive", "uri": uri}})


def table(name: str) -> TableName:
    return TableName("hive", ("db",), name)


def test_an_unchanged_table_is_one_question() -> None:
    metastore = Metastore()
    with served(metastore) as uri:
        found = hive(uri).load_if_changed(table("t"), KnownVersion(location("t")), NOW)
    assert found == Unchanged(KnownVersion(location("t"), None, NOW))
    assert metastore.asked == {"t": 1}


def test_threads_do_not_read_each_others_answers() -> None:
    metastore = Metastore()
    with served(metastore) as uri:
        catalogs = hive(uri)

        def look(number: int) -> bool:
            name = f"t{number}"
            known = KnownVersion(location(name))
            return all(isinstance(catalogs.load_if_changed(table(name), known, NOW), Unchanged) for _ in range(50))

        with ThreadPoolExecutor(THREADS) as pool:
            assert all(pool.map(look, range(THREADS)))
    assert metastore.asked == {f"t{number}": 50 for number in range(THREADS)}


@pytest.mark.parametrize(("name", "reason"), [("forbidden", "table_unreadable"), ("down", "catalog_unavailable")])
def test_a_metastore_that_refuses_one_table_answers(name: str, reason: str) -> None:
    """Its errors are of one class, also when its own database fails."""
    with served(Metastore()) as uri, fails(reason, RetryError):
        hive(uri).load(table(name))


def test_errors_name_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(Metastore()) as uri:
        catalogs = hive(uri)
        with pytest.raises(TableMissingError):
            catalogs.load(table("gone"))
        with fails("table_unreadable", RetryError):
            catalogs.load(table("t"))  # its metadata file does not exist
    with fails("catalog_unavailable", RetryError):
        catalogs.load(table("t"))
    monkeypatch.setattr(hive_catalog, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, fails("catalog_unavailable", RetryError):
        hive(f"thrift://127.0.0.1:{silent.getsockname()[1]}").load(table("t"))
