"""A real S3 server in its own process: s3proxy over a folder. For the demo and for tests."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from compactor.spark.java import S3PROXY_JARS, fetch_jars, java_home
from deploy.demo.local_process import free_port, local_process

BUCKET = "lake"
REGION = "us-east-1"


@dataclass(frozen=True)
class ObjectStore:
    """Address and credentials of the server, and an existing bucket."""

    endpoint: str
    access_key: str
    secret_key: str
    bucket: str

    @property
    def properties(self) -> dict[str, str]:
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret_key,
            "s3.region": REGION,
        }


@contextmanager
def s3proxy(
    folder: Path,
    secret_key: str = "test-secret",  # noqa: S107 - of a test server
    options: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[ObjectStore]:
    """Run s3proxy over a folder. It checks signatures, preconditions, ranges and part sizes as S3 does.

    `options`: more settings of s3proxy.

    Raises:
        GiveUpError: the process did not start; the message contains the end of its log.
    """
    store = ObjectStore(f"http://127.0.0.1:{free_port()}", "test-key", secret_key, BUCKET)
    (folder / "objects" / BUCKET).mkdir(parents=True, exist_ok=True)
    (folder / "s3proxy.conf").write_text(
        f"s3proxy.endpoint={store.endpoint}\n"
        "s3proxy.authorization=aws-v2-or-v4\n"
        f"s3proxy.identity={store.access_key}\n"
        f"s3proxy.credential={store.secret_key}\n"
        "jclouds.provider=filesystem-nio2\n"
        "jclouds.identity=unused\n"
        "jclouds.credential=unused\n"
        f"jclouds.filesystem.basedir={folder / 'objects'}\n"
        + "".join(f"{name}={value}\n" for name, value in options.items())
    )
    java, jar = java_home() / "bin" / "java", fetch_jars(S3PROXY_JARS)[0]
    command = [str(java), "-Xmx512m", "-jar", str(jar), "--properties", str(folder / "s3proxy.conf")]
    with local_process("s3proxy", command, folder, lambda: answers(store.endpoint)):
        yield store


def answers(endpoint: str) -> bool:
    """Whether an S3 server listens; a running server refuses an unsigned request with an HTTP error."""
    try:
        urllib.request.urlopen(endpoint, timeout=5)  # noqa: S310 - http
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
