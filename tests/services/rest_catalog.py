"""Iceberg's own REST catalog server as a local process, its tables on an S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from streaming.demo import rest_catalog as server
from tests.services.s3_server import S3Server


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


@contextmanager
def rest_catalog(folder: Path, s3: S3Server, *, vends: bool = False) -> Iterator[RestCatalog]:
    """Start it; with `vends` it hands its S3 properties, keys included, to those who load a table."""
    warehouse = f"{s3.folder()}/warehouse"
    files = server.files_on(s3) | ({"include-credentials": "true"} if vends else {})
    with server.rest_catalog(folder, warehouse, files) as uri:
        yield RestCatalog(uri, s3, warehouse)
