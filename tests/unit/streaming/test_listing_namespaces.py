"""A namespace that cannot be listed: the service starts all the same; commands say so, unless it is excluded."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.exceptions import ForbiddenError

from compactor.errors import RetryError
from compactor.settings.tree import Settings
from streaming.ledger.watched_tables import watched_tables
from streaming.service.service import check_catalogs
from tests.properties.table_history import NAME
from tests.unit.streaming.ledger.scene import CountedCatalogs, Scene


@pytest.fixture
def catalogs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountedCatalogs:
    """`lake` has the table `db.t` and the namespace `secret`, which cannot be listed."""
    scene = Scene(tmp_path)
    scene.catalog.create_namespace("secret")
    catalog = scene.catalogs.catalog("lake")
    list_tables = catalog.list_tables

    def refuses(namespace: tuple[str, ...]) -> list[tuple[str, ...]]:
        if namespace == ("secret",):
            raise ForbiddenError("not for you")
        return list_tables(namespace)

    monkeypatch.setattr(catalog, "list_namespaces", lambda *parent: [] if parent else [("db",), ("secret",)])
    monkeypatch.setattr(catalog, "list_tables", refuses)
    return scene.catalogs


def settings(*exclude: str) -> Settings:
    catalogs = {"lake": {"type": "sql", "uri": "sqlite:///x.db"}}
    return Settings.model_validate({"catalogs": catalogs, "tables": {"include": ["*"], "exclude": exclude}})


def test_the_service_starts(catalogs: CountedCatalogs) -> None:
    check_catalogs(catalogs)


def test_a_list_for_people_is_complete_or_an_error(catalogs: CountedCatalogs) -> None:
    with pytest.raises(RetryError, match=r"namespace lake\.secret cannot be listed"):
        watched_tables(settings("lake.secret.t*"), catalogs)
    assert watched_tables(settings("lake.secret.*"), catalogs) == [NAME]
