"""Iceberg's own REST catalog server, its tables on an S3 server.

The shared one: an address from TEST_REST_CATALOG, else a container, else a local process. `TEST_REST_CATALOG` is the
catalog's URI; it must reach the S3 server of TEST_S3. A container reaches S3 only where that is another machine, or a
container too: a server that listens on 127.0.0.1 gets a local catalog.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from deploy.demo import rest_catalog as server
from deploy.demo.local_process import free_port
from tests.services.containers import HOST, container, image_is_here
from tests.services.quick_java import quick_java
from tests.services.s3_server import S3Server, s3_source

IMAGE = os.environ.get("TEST_REST_CATALOG_IMAGE", "apache/iceberg-rest-fixture:latest")
PORT = 8181


@dataclass(frozen=True)
class RestCatalog:
    """Its address, the S3 server that its tables are on, and their warehouse."""

    uri: str
    s3: S3Server
    warehouse: str

    @property
    def properties(self) -> dict[str, str]:
        """PyIceberg properties, as a settings file would hold them."""
        return {"type": "rest", "uri": self.uri, "warehouse": self.warehouse, **self.s3.properties}


def rest_catalog_source() -> str:
    """Where `shared_rest_catalog` takes the catalog from, in words."""
    if os.environ.get("TEST_REST_CATALOG"):
        return f"address from TEST_REST_CATALOG ({os.environ['TEST_REST_CATALOG']})"
    return f"testcontainers ({IMAGE})" if _container_can_reach_s3() else "local process (Maven jars)"


def _container_can_reach_s3() -> bool:
    elsewhere = urlsplit(os.environ.get("TEST_S3", "")).hostname not in {None, "127.0.0.1", "localhost"}
    return image_is_here(IMAGE) and (elsewhere or s3_source().startswith("testcontainers"))


@contextmanager
def shared_rest_catalog(folder: Path, s3: S3Server) -> Iterator[RestCatalog]:
    """The catalog; a local one keeps its database in `folder`."""
    if os.environ.get("TEST_REST_CATALOG"):
        yield RestCatalog(os.environ["TEST_REST_CATALOG"], s3, f"{s3.folder()}/warehouse")
    elif _container_can_reach_s3():
        warehouse, port = f"{s3.folder()}/warehouse", free_port()
        files = server.files_on(s3.behind(s3.endpoint.replace("127.0.0.1", HOST)))
        environment = server.server_environment("jdbc:sqlite:/tmp/rest.db", warehouse, files, PORT)
        uri = f"http://127.0.0.1:{port}"
        with container(IMAGE, {PORT: port}, environment, lambda: server.answers(uri)):
            yield RestCatalog(uri, s3, warehouse)
    else:
        with rest_catalog(folder, s3) as catalog:
            yield catalog


@contextmanager
def rest_catalog(folder: Path, s3: S3Server, *, vends: bool = False) -> Iterator[RestCatalog]:
    """A local one; with `vends` it hands its S3 properties, keys included, to those who load a table."""
    warehouse = f"{s3.folder()}/warehouse"
    files = server.files_on(s3) | ({"include-credentials": "true"} if vends else {})
    with quick_java(server.rest_catalog(folder, warehouse, files)) as uri:
        yield RestCatalog(uri, s3, warehouse)
