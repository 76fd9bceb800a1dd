"""Session-wide services, started by the first test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services import rest_catalog as rest_catalogs
from tests.services import s3_server as s3_servers
from tests.services.kafka_broker import kafka_broker
from tests.services.rest_catalog import RestCatalog
from tests.services.s3_server import S3Server


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bootstrap address; see kafka_broker.py for where it comes from."""
    with kafka_broker(tmp_path_factory.mktemp("kafka")) as address:
        yield address


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server with a bucket; see s3_server.py for where it comes from."""
    with s3_servers.s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def rest_catalog(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[RestCatalog]:
    """Iceberg's REST catalog over that server; see rest_catalog.py for where it comes from."""
    with rest_catalogs.shared_rest_catalog(tmp_path_factory.mktemp("rest-catalog"), s3_server) as catalog:
        yield catalog
