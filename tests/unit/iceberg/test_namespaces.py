"""Which failures of a namespace are skipped, and which end the listing of the catalog."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from pyiceberg.exceptions import ForbiddenError, ServerError, UnauthorizedError
from requests import ConnectionError as NoConnection

from compactor.errors import RetryError
from compactor.iceberg.namespaces import MOST_FAILURES, Namespace
from compactor.iceberg.tables import Catalogs
from compactor.reasons import Reason
from compactor.table_names import TableName
from tests.properties.table_history import NAME, TableHistory


class Listing:
    """A catalog with the table `db.t` and empty namespaces; listing some of them fails."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        history = TableHistory(folder, 2)
        for number in range(MOST_FAILURES):
            history.catalog.create_namespace(f"n{number}")
        self.catalogs = Catalogs({"lake": {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}})
        self.failures: dict[Namespace, Exception] = {}
        self.skipped: dict[Namespace, RetryError] = {}
        catalog = self.catalogs.catalog("lake")
        list_namespaces, list_tables = catalog.list_namespaces, catalog.list_tables

        def fails(namespace: Namespace) -> list[tuple[str, ...]]:
            if namespace in self.failures:
                raise self.failures[namespace]
            return list_tables(namespace)

        monkeypatch.setattr(catalog, "list_namespaces", lambda *parent: sorted(list_namespaces(*parent)))
        monkeypatch.setattr(catalog, "list_tables", fails)

    def fail(self, error: Exception, namespaces: int) -> None:
        self.failures = {(f"n{number}",): error for number in range(namespaces)}

    @property
    def tables(self) -> list[TableName]:
        return list(self.catalogs.list_tables("lake", self.skipped.__setitem__))


@pytest.fixture
def listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Listing:
    return Listing(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("error", "namespaces"),
    [
        (ForbiddenError("no"), MOST_FAILURES),
        (ClientError({"Error": {"Code": "AccessDeniedException"}}, "GetTables"), MOST_FAILURES),
        (ServerError("500"), MOST_FAILURES - 1),
        (OSError("a client's bug"), MOST_FAILURES - 1),
    ],
)
def test_an_error_of_a_namespace_hides_no_other(listing: Listing, error: Exception, namespaces: int) -> None:
    listing.fail(error, namespaces)
    assert listing.tables == [NAME]
    assert listing.skipped.keys() == listing.failures.keys()
    assert {each.reason for each in listing.skipped.values()} == {Reason.NAMESPACE_UNREADABLE}


@pytest.mark.parametrize(
    ("error", "namespaces"),
    [
        (UnauthorizedError("who are you"), 1),
        (NoConnection("nobody there"), 1),
        (ServerError("500"), MOST_FAILURES),
        (OSError("nobody there"), MOST_FAILURES),
        (ClientError({"Error": {"Code": "ThrottlingException"}}, "GetTables"), MOST_FAILURES),
    ],
)
def test_an_error_of_the_catalog_ends_the_listing(listing: Listing, error: Exception, namespaces: int) -> None:
    listing.fail(error, namespaces)
    with pytest.raises(RetryError, match="catalog lake cannot be listed") as failed:
        print(listing.tables)
    assert failed.value.reason is Reason.CATALOG_UNAVAILABLE


def test_who_takes_no_skipped_namespaces_gets_an_error_that_names_the_first(listing: Listing) -> None:
    listing.fail(ForbiddenError("no"), 1)
    with pytest.raises(RetryError, match=r"namespace lake\.n0 cannot be listed: no; allow") as failed:
        list(listing.catalogs.list_tables("lake"))
    assert failed.value.reason is Reason.NAMESPACE_UNREADABLE
