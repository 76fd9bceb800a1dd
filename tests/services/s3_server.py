"""A real S3 server: an address from TEST_S3, else s3proxy in a container, else s3proxy as a local process.

TEST_S3 is `http(s)://ACCESS_KEY:SECRET_KEY@HOST:PORT/BUCKET`, the keys percent-encoded; the bucket must exist.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from compactor.storage.s3_client import S3Connections
from deploy.demo.local_process import free_port
from deploy.demo.object_store import BUCKET, ObjectStore, answers, s3proxy
from tests.services.containers import container, image_is_here
from tests.services.quick_java import quick_java

IMAGE = os.environ.get("TEST_S3_IMAGE", "andrewgaul/s3proxy:latest")


@dataclass(frozen=True)
class S3Server(ObjectStore):
    """Where it listens and who may use it, with what tests arrange and check there."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.endpoint)
        return str(parts.hostname), int(parts.port or 80)

    def behind(self, endpoint: str) -> S3Server:
        """The same server as seen through another address."""
        return replace(self, endpoint=endpoint)

    @cached_property
    def client(self) -> Any:
        """For what a test arranges and checks."""
        return S3Connections().client(self.properties)

    def folder(self) -> str:
        """A location nobody else uses, without a slash at its end."""
        return f"s3://{self.bucket}/{uuid.uuid4().hex[:12]}"

    def keys(self, folder: str) -> list[str]:
        """Locations of all objects below a folder."""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=f"{folder.split('/', 3)[3]}/"
        )
        return sorted(f"s3://{self.bucket}/{found['Key']}" for page in pages for found in page.get("Contents", []))

    def put(self, location: str, data: bytes) -> str:
        self.client.put_object(Bucket=self.bucket, Key=location.split("/", 3)[3], Body=data)
        return location

    def get(self, location: str) -> bytes:
        data: bytes = self.client.get_object(Bucket=self.bucket, Key=location.split("/", 3)[3])["Body"].read()
        return data


def s3_source() -> str:
    """Where `s3_server` takes the server from, in words."""
    given = os.environ.get("TEST_S3")
    if given:
        return f"address from TEST_S3 ({urlsplit(given).hostname})"
    return f"testcontainers ({IMAGE})" if image_is_here(IMAGE) else "local process (s3proxy)"


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """The server; a local one keeps its objects in `folder`."""
    given = os.environ.get("TEST_S3")
    if given:
        parts = urlsplit(given)
        endpoint = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
        yield S3Server(
            endpoint, unquote(parts.username or ""), unquote(parts.password or ""), parts.path.strip("/") or BUCKET
        )
    elif image_is_here(IMAGE):
        with _container_server() as server:
            yield server
    else:
        with quick_java(s3proxy(folder)) as store:
            yield S3Server(**asdict(store))


@contextmanager
def _container_server() -> Iterator[S3Server]:
    port = free_port()
    server = S3Server(f"http://127.0.0.1:{port}", "test-key", "test-secret", BUCKET)
    environment = {
        "S3PROXY_ENDPOINT": "http://0.0.0.0:80",
        "S3PROXY_AUTHORIZATION": "aws-v2-or-v4",
        "S3PROXY_IDENTITY": server.access_key,
        "S3PROXY_CREDENTIAL": server.secret_key,
        "JCLOUDS_PROVIDER": "filesystem-nio2",
        "JCLOUDS_FILESYSTEM_BASEDIR": "/data",
    }
    with container(IMAGE, {80: port}, environment, lambda: answers(server.endpoint)):
        server.client.create_bucket(Bucket=server.bucket)
        yield server
