"""Open a catalog with PyIceberg: with timeouts, and with credentials that are renewed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables, SqlCatalog
from sqlalchemy import make_url, select

from compactor.iceberg import opaque_types  # noqa: F401 - before any metadata is parsed
from compactor.iceberg.hive_catalog import open_hive_catalog
from compactor.iceberg.proxies import with_store_proxy
from compactor.iceberg.rest_catalog import ANSWER_SECONDS, CONNECT_SECONDS
from compactor.iceberg.vending_catalog import VendingRestCatalog
from compactor.settings.catalogs import catalog_type
from compactor.storage.s3_client import checksum_environment

_CONNECT: Final = {"connect_timeout": str(CONNECT_SECONDS)}
_ANSWER: Final = str(ANSWER_SECONDS)
_LIBPQ: Final = {
    **_CONNECT,
    "tcp_user_timeout": str(ANSWER_SECONDS * 1000),
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "4",
}
"""PostgreSQL's library has no timeout for an answer: it notices a dead connection, not a database that stands still."""
_MYSQL: Final = {**_CONNECT, "read_timeout": _ANSWER, "write_timeout": _ANSWER}
_TIMEOUTS: Final[Mapping[str, Mapping[str, str]]] = {
    "postgresql": _LIBPQ,
    "postgresql+psycopg2": _LIBPQ,
    "postgresql+psycopg": _LIBPQ,
    "mysql+pymysql": _MYSQL,
    "mysql+mysqldb": _MYSQL,
    "mysql": _MYSQL,
    "mariadb+pymysql": _MYSQL,
}
"""Parameters of an address by dialect and driver of SQLAlchemy; the drivers' defaults are to wait forever."""


def with_timeouts(uri: str) -> str:
    """The address of a database with timeouts, where its driver is known; timeouts that are set there stay."""
    url = make_url(uri)
    missing = {name: value for name, value in _TIMEOUTS.get(url.drivername, {}).items() if name not in url.query}
    return url.update_query_dict(missing).render_as_string(hide_password=False) if missing else uri


def other_names(catalog: Catalog) -> list[str]:
    """The names under which others keep tables or namespaces in a catalog's database; none for other kinds of catalogs.

    A database serves several catalogs, each by its name: under a wrong one it looks empty.
    """
    if not isinstance(catalog, SqlCatalog):
        return []
    tables = IcebergTables.catalog_name, IcebergNamespaceProperties.catalog_name
    with catalog.engine.connect() as connection:
        found = {name for column in tables for name in connection.scalars(select(column).distinct())}
    return sorted(found - {catalog.name})


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """The catalog that the properties describe; raises the errors of PyIceberg's `load_catalog`."""
    checksum_environment()
    properties = with_store_proxy(properties)
    kind = "" if "py-catalog-impl" in properties else catalog_type(properties)
    # PyIceberg refuses `type` beside `py-catalog-impl`.
    others = {key: value for key, value in properties.items() if key != "type"}
    if kind == "rest":
        rest = f"{VendingRestCatalog.__module__}.{VendingRestCatalog.__name__}"
        return load_catalog(name, **others, **{"py-catalog-impl": rest})
    if kind == "hive" and find_spec("thrift") is not None:
        return open_hive_catalog(name, others)
    if kind == "sql" and properties.get("uri"):
        # A database, or what stands before it, may have closed a connection of the pool meanwhile: ask before each use.
        return load_catalog(name, **{"pool_pre_ping": "true", **properties, "uri": with_timeouts(properties["uri"])})
    return load_catalog(name, **properties)  # without `thrift`, PyIceberg says what to install
