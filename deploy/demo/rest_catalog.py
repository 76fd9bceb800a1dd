"""Iceberg's own REST catalog server in its own process. For the demo and for tests."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from compactor.spark.java import REST_CATALOG_JARS, fetch_jars, java_home, pyspark_jars
from deploy.demo.local_process import free_port, local_process
from deploy.demo.object_store import REGION, ObjectStore

SERVER = "org.apache.iceberg.rest.RESTCatalogServer"


@contextmanager
def rest_catalog(folder: Path, warehouse: str, files: Mapping[str, str]) -> Iterator[str]:
    """Run the server over `warehouse`; yield its URI. `files`: see `files_on`.

    Raises:
        GiveUpError: the process did not start; the message contains the end of its log.
    """
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    hadoop = [*pyspark_jars().glob("hadoop-client-api-*.jar"), *pyspark_jars().glob("hadoop-client-runtime-*.jar")]
    jars = ":".join(map(str, [*fetch_jars(REST_CATALOG_JARS), *hadoop]))
    environment = server_environment(f"jdbc:sqlite:{folder}/rest.db", warehouse, files, port)
    command = [str(java_home() / "bin" / "java"), "-Xmx512m", "-cp", jars, SERVER]
    with local_process("rest-catalog", command, folder, lambda: answers(uri), environment):
        yield uri


def server_environment(uri: str, warehouse: str, files: Mapping[str, str], port: int) -> dict[str, str]:
    """Environment of the server: catalog properties, with `_` for a dot and `__` for a dash."""
    properties = {"uri": uri, "warehouse": warehouse, "rest.port": str(port), **files}
    return {f"CATALOG_{name.upper().replace('-', '__').replace('.', '_')}": value for name, value in properties.items()}


def files_on(store: ObjectStore) -> dict[str, str]:
    """Properties of Iceberg's Java FileIO for tables on an S3 server."""
    keys = {name: value for name, value in store.properties.items() if name != "s3.region"}
    return {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.path-style-access": "true",
        "client.region": REGION,
        **keys,
    }


def answers(uri: str) -> bool:
    try:
        with urllib.request.urlopen(f"{uri}/v1/config", timeout=5):  # noqa: S310 - http
            return True
    except OSError:
        return False
