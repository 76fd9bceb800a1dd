"""Iceberg's own REST catalog server as a local process, its tables on an S3 server."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from compactor.java import REST_CATALOG_JARS, fetch_jars, java_home, pyspark_jars
from tests.services.local_process import free_port, local_process
from tests.services.s3_server import REGION, S3Server


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
    catalog = RestCatalog(f"http://127.0.0.1:{free_port()}", s3, f"{s3.folder()}/warehouse")
    environment = {
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
        "CATALOG_WAREHOUSE": catalog.warehouse,
        "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
        "CATALOG_S3_ENDPOINT": s3.endpoint,
        "CATALOG_S3_PATH__STYLE__ACCESS": "true",
        "CATALOG_S3_ACCESS__KEY__ID": s3.access_key,
        "CATALOG_S3_SECRET__ACCESS__KEY": s3.secret_key,
        "CATALOG_CLIENT_REGION": REGION,
        "CATALOG_REST_PORT": catalog.uri.rpartition(":")[2],
        **({"CATALOG_INCLUDE__CREDENTIALS": "true"} if vends else {}),
    }
    hadoop = [*pyspark_jars().glob("hadoop-client-api-*.jar"), *pyspark_jars().glob("hadoop-client-runtime-*.jar")]
    command = [
        str(java_home() / "bin" / "java"), "-Xmx512m",
        "-cp", ":".join(map(str, [*fetch_jars(REST_CATALOG_JARS), *hadoop])),
        "org.apache.iceberg.rest.RESTCatalogServer",
    ]  # fmt: skip
    with local_process("rest-catalog", command, folder, lambda: _answers(catalog.uri), environment):
        yield catalog


def _answers(uri: str) -> bool:
    try:
        with urllib.request.urlopen(f"{uri}/v1/config", timeout=5):  # noqa: S310 - http
            return True
    except OSError:
        return False
