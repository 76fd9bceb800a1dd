"""A table whose metadata location is known costs one question to its catalog, and nothing of its store."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from botocore.exceptions import ClientError
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from sqlalchemy import event

from compactor.errors import FirnlineError, RetryError
from compactor.iceberg import open_catalog, rest_catalog
from compactor.iceberg.conditional_load import NoAnswerError, Same, TableLoader
from compactor.iceberg.tables import (
    ETAG_TRUST_SECONDS,
    Catalogs,
    KnownVersion,
    TableMissingError,
    TableView,
    Unchanged,
)
from compactor.table_names import TableName
from tests.unit.failing import fails

THREADS = 8
NOW = 1_000_000.0
TABLE = TableName("lake", ("db",), "t0")


class CountedIO(PyArrowFileIO):
    """Notes the metadata files that are read."""

    read: list[str] = []  # noqa: RUF012 - PyIceberg makes the objects

    def new_input(self, location: str) -> PyArrowFile:
        if location.endswith(".metadata.json"):
            CountedIO.read.append(location)
        return super().new_input(location)


class Lake:
    """A SQLite catalog with tables `db.t0`, `db.t1`, …; its store's reads and its queries are counted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        properties = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"}
        self.catalogs = Catalogs({"lake": {**properties, "py-io-impl": f"{__name__}.CountedIO"}})
        catalog: Any = self.catalogs.catalog("lake")
        self.catalog = catalog
        self.catalog.create_namespace("db")
        self.queries: list[str] = []
        event.listen(catalog.engine, "before_cursor_execute", self._note)

    def _note(self, _connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        self.queries.append(statement)

    def create(self, table: str = "t0") -> KnownVersion:
        self.catalog.create_table(f"db.{table}", pa.schema([("a", pa.int64())]))
        return self.append(table)

    def append(self, table: str = "t0") -> KnownVersion:
        loaded = self.catalog.load_table(f"db.{table}")
        loaded.append(pa.table({"a": [1]}))
        return KnownVersion(loaded.metadata_location)

    def look(self, known: KnownVersion | None, table: TableName = TABLE) -> TableView | Unchanged:
        CountedIO.read.clear()
        self.queries.clear()
        return self.catalogs.load_if_changed(table, known, NOW)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_an_unchanged_table_is_one_query_and_no_read(lake: Lake) -> None:
    known = lake.create()
    assert lake.look(known) == Unchanged(KnownVersion(known.metadata_location, None, NOW))
    assert (len(lake.queries), CountedIO.read) == (1, [])


def test_a_changed_table_is_one_query_and_one_read(lake: Lake) -> None:
    known = lake.create()
    newer = lake.append()
    view = lake.look(known)
    assert isinstance(view, TableView)
    assert view.metadata_location == newer.metadata_location != known.metadata_location
    assert (len(lake.queries), CountedIO.read) == (1, [newer.metadata_location])


def test_a_table_that_was_never_seen_is_loaded(lake: Lake) -> None:
    known = lake.create()
    view = lake.look(None)
    assert isinstance(view, TableView)
    assert (view.metadata_location, view.etag) == (known.metadata_location, None)


def test_a_full_load_reads_whatever_was_asked_before(lake: Lake) -> None:
    known = lake.create()
    lake.look(known)
    loaded = lake.catalog.load_table("db.t0")  # a question ends with its call
    assert loaded.metadata_location == known.metadata_location
    assert isinstance(lake.catalogs.load(TABLE), TableView)


def test_a_dropped_table_is_missing(lake: Lake) -> None:
    known = lake.create()
    lake.catalog.drop_table("db.t0")
    with pytest.raises(TableMissingError):
        lake.look(known)


def test_threads_that_share_a_catalog_ask_each_about_its_own_table(lake: Lake) -> None:
    old = {name: lake.create(name) for name in (f"t{number}" for number in range(THREADS))}
    changed = {name for number, name in enumerate(old) if number % 2}
    for name in changed:
        lake.append(name)
    lake.queries.clear()
    CountedIO.read.clear()

    def look(name: str) -> list[bool]:
        table = TableName("lake", ("db",), name)
        return [isinstance(lake.catalogs.load_if_changed(table, old[name], NOW), TableView) for _ in range(20)]

    with ThreadPoolExecutor(THREADS) as pool:
        found = dict(zip(old, pool.map(look, old), strict=True))
    assert found == {name: [name in changed] * 20 for name in old}
    assert len(lake.queries) == THREADS * 20
    assert len(CountedIO.read) == len(changed) * 20


def test_an_error_names_what_failed_the_catalog_or_the_table(lake: Lake) -> None:
    known = lake.create()
    Path(known.metadata_location.removeprefix("file://")).unlink()
    with fails("table_unreadable", RetryError):
        lake.look(KnownVersion("another"))
    assert isinstance(lake.look(known), Unchanged)  # nobody reads the file
    lake.catalog.engine.dispose()
    (lake.folder / "c.db").write_bytes(b"no database" * 1000)
    with fails("catalog_unavailable", RetryError):
        lake.look(known)


class _GlueClient:
    """Glue's answer about one table."""

    def get_table(self, **_: object) -> dict[str, Any]:
        parameters = {"table_type": "ICEBERG", "metadata_location": "s3://nowhere/1.metadata.json"}
        return {"Table": {"DatabaseName": "db", "Name": "t0", "Parameters": parameters}}


def test_glue_ends_at_the_catalogs_answer() -> None:
    loader = TableLoader(GlueCatalog("glue", client=_GlueClient()))
    found = loader.load_if_changed(("db", "t0"), "s3://nowhere/1.metadata.json", None)
    assert found == Same(None, by_tag=False)


class _RefusingClient:
    """Glue's error for a table."""

    class exceptions:  # noqa: N801 - as boto3 spells it
        EntityNotFoundException = KeyError

    def __init__(self, code: str) -> None:
        self.code = code

    def get_table(self, **_: object) -> dict[str, Any]:
        raise ClientError({"Error": {"Code": self.code, "Message": "of db.t0"}}, "GetTable")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("AccessDeniedException", "table_unreadable"),
        ("InvalidInputException", "table_unreadable"),
        ("ValidationException", "table_unreadable"),
        ("ThrottlingException", "catalog_unavailable"),
        ("InternalServiceException", "catalog_unavailable"),
        ("ExpiredTokenException", "catalog_unavailable"),
    ],
)
def test_a_table_that_glue_refuses_says_nothing_about_the_catalog(
    code: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lake Formation refuses single tables: three of them must not stop the work on all others."""
    opened = GlueCatalog("lake", client=_RefusingClient(code))
    monkeypatch.setattr("compactor.iceberg.tables.open_catalog", lambda *_: opened)
    assert caught(Catalogs({"lake": {"type": "glue"}}), "lake").reason == reason


def test_a_refusal_of_dynamodb_is_one_of_the_catalog() -> None:
    """It is about the one table of DynamoDB that holds the whole catalog."""
    opened = GlueCatalog("lake", client=_RefusingClient("never asked"))
    error = ClientError({"Error": {"Code": "AccessDeniedException"}}, "GetItem")

    def load_table(_: object) -> None:
        raise error

    opened.load_table = load_table  # type: ignore[assignment,method-assign]
    with pytest.raises(NoAnswerError):
        TableLoader(opened).load(("db", "t0"))


class MetaException(Exception):  # noqa: N818 - as Hive spells it
    """Of a metastore: one class for all its errors."""


@pytest.mark.parametrize(
    ("message", "is_refusal"),
    [
        ("Permission denied: user [firnline] does not have [SELECT] privilege on [db/t0]", True),
        ("java.security.AccessControlException: Permission denied: user=firnline, access=READ, inode=/w", True),
        ("User firnline does not have privileges for GETTABLE", True),
        ("javax.jdo.JDODataStoreException: permission denied for table TBLS", False),
        ("Access denied for user 'hive'@'db' (using password: YES)", False),
        ("Unable to open a test connection to the given database", False),
    ],
)
def test_hive_says_by_its_message_what_an_error_concerns(
    message: str, is_refusal: bool, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_table(_: object) -> None:
        raise MetaException(message)

    monkeypatch.setattr(lake.catalog, "load_table", load_table)
    reason = "table_unreadable" if is_refusal else "catalog_unavailable"
    assert caught(lake.catalogs, "lake").reason == reason


def test_a_tag_is_trusted_for_an_hour_at_most_and_each_tables_hour_is_its_own() -> None:
    known = [KnownVersion(f"s3://lake/t/{number}.metadata.json", "tag", NOW) for number in range(1000)]
    assert all(each.trusted_etag(NOW + ETAG_TRUST_SECONDS / 2 - 1) == "tag" for each in known)
    assert all(each.trusted_etag(NOW + ETAG_TRUST_SECONDS) is None for each in known)
    assert all(each.trusted_etag(NOW - 1) is None for each in known)  # the clock went back
    in_between = [each.trusted_etag(NOW + ETAG_TRUST_SECONDS * 0.75) for each in known]
    assert 400 < in_between.count("tag") < 600


@pytest.mark.parametrize(
    ("answer", "location"),
    [
        (b'{"metadata-location":"s3://a/b","metadata":{"never": read', "s3://a/b"),
        (b' { "metadata-location" : "s3://a/\\u00e4\\"" }', 's3://a/ä"'),
        (b'{"config":{"metadata-location":"other"},"metadata-location":"s3://a/b"}', "s3://a/b"),
        (b'{"config":{"metadata-location":"other"}}', None),
        (b'{"metadata-location":null}', None),
        (b"[]", None),
        (b"<html>", None),
        (b"", None),
    ],
)
def test_the_location_is_found_in_any_answer(answer: bytes, location: str | None) -> None:
    assert rest_catalog.metadata_location(answer) == location


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a catalog that accepts connections and never answers."""
    monkeypatch.setattr(rest_catalog, "ANSWER_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def caught(catalogs: Catalogs, catalog: str) -> FirnlineError:
    with pytest.raises(FirnlineError) as found:
        catalogs.load(TableName(catalog, ("db",), "t0"))
    return found.value


def test_threads_that_wait_for_a_silent_catalog_wait_for_one_attempt(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []
    opened = open_catalog.open_catalog

    def open_noted(name: str, values: dict[str, str]) -> Catalog:
        attempts.append(name)
        return opened(name, values)

    monkeypatch.setattr("compactor.iceberg.tables.open_catalog", open_noted)
    catalogs = Catalogs({"silent": {"type": "rest", "uri": silent}})
    together = threading.Barrier(THREADS)

    def load(_: int) -> FirnlineError:
        together.wait()
        return caught(catalogs, "silent")

    with ThreadPoolExecutor(THREADS) as pool:
        errors = list(pool.map(load, range(THREADS)))
    assert {error.reason for error in errors} == {"catalog_unavailable"}
    assert attempts == ["silent"]
    caught(catalogs, "silent")
    assert attempts == ["silent"] * 2  # who comes later tries again


def test_a_catalog_that_hangs_while_it_opens_delays_no_other(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    known = lake.create()
    opened, opening, go_on = open_catalog.open_catalog, threading.Event(), threading.Event()

    def open_slowly(name: str, values: dict[str, str]) -> Any:
        if name == "slow":
            opening.set()
            go_on.wait()
        return opened(name, values)

    monkeypatch.setattr("compactor.iceberg.tables.open_catalog", open_slowly)
    sql = lake.catalogs.properties("lake")
    catalogs = Catalogs({"slow": sql, "lake": sql})
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(catalogs.catalog, "slow")
        opening.wait()
        try:
            other = pool.submit(catalogs.load_if_changed, TABLE, known, NOW)
            assert isinstance(other.result(timeout=60), Unchanged)
            assert not slow.done()
        finally:
            go_on.set()
        slow.result()
