"""Conditional loads from Iceberg's own REST catalog; a proxy counts the calls and their status."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compactor.errors import FirnlineError, RetryError
from compactor.iceberg.tables import (
    ETAG_TRUST_SECONDS,
    Catalogs,
    KnownVersion,
    TableMissingError,
    TableView,
    Unchanged,
)
from compactor.table_names import TableName
from tests.benchmarks.fleet.catalog_calls import LOADS, Call, CallLog, catalog_proxy
from tests.services.counting_proxy import Wire, counting_proxy
from tests.services.http_proxy import Answer, Proxy, proxy
from tests.services.rest_catalog import RestCatalog
from tests.services.waiting import wait_for

NOW = 1_000_000.0


class Site:
    """The catalog behind the proxy, its store behind another, and a namespace of its own."""

    def __init__(self, catalog: RestCatalog, log: CallLog, store: Wire) -> None:
        self.log, self.store = log, store
        self.namespace = f"conditional_{uuid.uuid4().hex[:8]}"
        properties = {**catalog.properties, "uri": log.uri, "s3.endpoint": store.endpoint}
        self.catalogs = Catalogs({"rest": properties})
        self.catalog = self.catalogs.catalog("rest")
        self.catalog.create_namespace(self.namespace)

    def name(self, table: str) -> TableName:
        return TableName("rest", (self.namespace,), table)

    def create(self, table: str) -> KnownVersion:
        self.catalog.create_table((self.namespace, table), pa.schema([("a", pa.int64())]))
        return self.append(table)

    def append(self, table: str) -> KnownVersion:
        self.catalog.load_table((self.namespace, table)).append(pa.table({"a": [1]}))
        view = self.catalogs.load(self.name(table))
        assert view.etag
        return KnownVersion(view.metadata_location, view.etag, NOW)

    def look(self, table: str, known: KnownVersion | None, later: float = 1.0) -> TableView | Unchanged:
        return self.catalogs.load_if_changed(self.name(table), known, NOW + later)

    @contextmanager
    def calls(self) -> Iterator[list[Call]]:
        """All calls of the block, once it is over."""
        before, found = self._noted(), list[Call]()
        yield found
        found.extend(self.log.all()[before : self._noted() - 1])

    def _noted(self) -> int:
        """How many calls the proxy has noted. The last one is made here, so all others stand before it."""
        mark = f"mark{uuid.uuid4().hex}"
        with suppress(urllib.error.HTTPError):
            urllib.request.urlopen(f"{self.log.uri}/v1/namespaces/db/tables/{mark}")  # noqa: S310
        wait_for("the proxy's notes", lambda: any(mark in call.table for call in self.log.all()), every=0.02)
        return len(self.log.all())


def seen(calls: list[Call]) -> list[tuple[str, int]]:
    return [(call.kind, call.status) for call in calls]


@pytest.fixture(scope="module")
def site(rest_catalog: RestCatalog, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    host, port = rest_catalog.s3.endpoint.removeprefix("http://").rsplit(":", 1)
    with (
        catalog_proxy(tmp_path_factory.mktemp("proxy"), rest_catalog.uri, 0.0) as log,
        counting_proxy(host, int(port)) as store,
    ):
        yield Site(rest_catalog, log, store)


def test_an_unchanged_table_is_one_call_that_is_not_modified_and_no_byte_of_the_store(site: Site) -> None:
    known = site.create("same")
    bytes_before = site.store.total
    with site.calls() as calls:
        assert site.look("same", known) == Unchanged(known)  # the time of the last full answer stays
    assert seen(calls) == [(LOADS, 304)]
    assert site.store.total == bytes_before


def test_the_catalog_must_name_the_location_without_a_tag_and_after_an_hour(site: Site) -> None:
    known = site.create("untagged")
    with site.calls() as calls:
        found = site.look("untagged", KnownVersion(known.metadata_location))
        assert found == Unchanged(KnownVersion(known.metadata_location, known.etag, NOW + 1.0))
        later = site.look("untagged", known, later=ETAG_TRUST_SECONDS)
        assert isinstance(later, Unchanged)
        assert later.known.checked_at == NOW + ETAG_TRUST_SECONDS
        assert site.look("untagged", later.known, later=ETAG_TRUST_SECONDS + 1) == later
    assert seen(calls) == [(LOADS, 200), (LOADS, 200), (LOADS, 304)]


def test_a_changed_table_is_one_call(site: Site) -> None:
    known = site.create("changed")
    newer = site.append("changed")
    with site.calls() as calls:
        view = site.look("changed", known)
    assert seen(calls) == [(LOADS, 200)]
    assert isinstance(view, TableView)
    assert (view.metadata_location, view.etag) == (newer.metadata_location, newer.etag)
    assert len(view.manifests()) == 2


def test_a_tag_of_another_version_is_no_proof_forever(site: Site) -> None:
    """Two versions with one tag: a tag of 32 bits allows it. The table is found changed within the hour."""
    old, new = site.create("collision"), site.append("collision")
    both = KnownVersion(old.metadata_location, new.etag, NOW)
    assert site.look("collision", both) == Unchanged(both)
    assert isinstance(site.look("collision", both, later=ETAG_TRUST_SECONDS), TableView)


def test_a_dropped_table_is_missing(site: Site) -> None:
    known = site.create("dropped")
    site.catalog.drop_table((site.namespace, "dropped"))
    with site.calls() as calls, pytest.raises(TableMissingError):
        site.look("dropped", known)
    assert seen(calls) == [(LOADS, 404)]


def test_listing_takes_two_calls_a_namespace_and_one_more(site: Site) -> None:
    site.catalog.create_namespace((site.namespace, "nested"))
    site.catalog.create_table((site.namespace, "nested", "deep"), pa.schema([("a", pa.int64())]))
    with site.calls() as calls:
        tables = set(site.catalogs.list_tables("rest"))
    assert TableName("rest", (site.namespace, "nested"), "deep") in tables
    kinds = Counter(call.kind for call in calls)
    assert kinds["list namespaces"] == kinds["list tables"] + 1
    assert sum(kinds.values()) == 2 * kinds["list tables"] + 1


class Failing(Proxy):
    """A catalog that answers all questions about tables with the status of the test."""

    def answer_to(self, _body: bytes) -> Answer:
        self.state["connections"].add(self.client_address)
        time.sleep(self.state.get("seconds", 0.0))
        if self.path.startswith("/v1/config"):
            return Answer.of(200, {})
        status = self.state["status"]
        return Answer.of(status, {}) if status == 200 else Answer.error(status, "T", "no")


@pytest.fixture
def failing() -> Iterator[tuple[Catalogs, dict[str, Any]]]:
    state: dict[str, Any] = {"status": 500, "connections": set()}
    with proxy(Failing, state) as address:
        yield Catalogs({"rest": {"type": "rest", "uri": address}}), state


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (500, "catalog_unavailable"),
        (502, "catalog_unavailable"),
        (503, "catalog_unavailable"),
        (429, "catalog_unavailable"),
        (401, "catalog_unavailable"),
        (400, "table_unreadable"),
        (403, "table_unreadable"),
        (200, "table_unreadable"),  # no table in it
    ],
)
def test_the_status_says_whether_the_catalog_or_the_table_failed(
    failing: tuple[Catalogs, dict[str, Any]], status: int, reason: str
) -> None:
    catalogs, answer = failing
    answer["status"] = status
    with pytest.raises(RetryError) as error:
        catalogs.load_if_changed(TableName("rest", ("db",), "t"), KnownVersion("x", "tag", NOW), NOW)
    assert error.value.reason == reason


def test_sixteen_threads_keep_their_connections(failing: tuple[Catalogs, dict[str, Any]]) -> None:
    catalogs, answer = failing

    together = threading.Barrier(16)  # in bursts: between two of them all connections wait

    def load(number: int) -> None:
        for _ in range(10):
            together.wait()
            with pytest.raises(FirnlineError):
                catalogs.load(TableName("rest", ("db",), f"t{number}"))

    catalogs.catalog("rest")
    answer["connections"].clear()
    answer["seconds"] = 0.05  # so that all threads call at once
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(load, range(16)))
    assert len(answer["connections"]) <= 16


def test_a_refused_connection_is_one_of_the_catalog(site: Site, tmp_path: Path) -> None:
    with catalog_proxy(tmp_path, f"http://127.0.0.1:{site.log.uri.rsplit(':', 1)[1]}", 0.0) as log:
        catalogs = Catalogs({"rest": {"type": "rest", "uri": log.uri}})
        catalogs.catalog("rest")
    with pytest.raises(RetryError) as error:
        catalogs.load(TableName("rest", ("db",), "t"))
    assert error.value.reason == "catalog_unavailable"
