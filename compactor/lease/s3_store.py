"""The lease document as one object of S3, written with `If-Match` and `If-None-Match`."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import unquote, urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from compactor.lease.decisions import RENEW_SECONDS
from compactor.lease.store import Stored, Version
from compactor.storage.s3_client import PROCESS_CONNECTIONS
from compactor.storage.s3_errors import NOT_FOUND, error_code

NAME = "lease.json"
_CONFLICT, _FAILED = 409, 412
_NOT_WRITTEN = {NOT_FOUND, _CONFLICT, _FAILED}
_UNKNOWN_HEADER = {400, 405, 501}


class S3LeaseStore:
    """See `LeaseStore`. Versions are ETags: no two documents have the same content."""

    def __init__(self, client: Any, bucket: str, folder: str) -> None:
        """`folder`: the key of the document without its last part."""
        self._client = client
        self._place = {"Bucket": bucket, "Key": f"{folder}/{NAME}"}
        self._conditional: bool | None = None

    @property
    def location(self) -> str:
        """The object."""
        return f"s3://{self._place['Bucket']}/{self._place['Key']}"

    @property
    def conditional(self) -> bool:
        """Whether the store honours preconditions. The first call tries it with another object."""
        if self._conditional is None:
            with self._errors():
                self._conditional = self._honours_conditions()
        return self._conditional

    def read(self) -> Stored | None:
        """See `LeaseStore`."""
        with self._errors():
            try:
                answer = self._client.get_object(**self._place)
            except ClientError as error:
                status, code = error_code(error)
                if status == NOT_FOUND and code != "NoSuchBucket":
                    return None
                raise
            with closing(answer["Body"]) as body:  # `with` would give the stream below it, and its errors
                return Stored(body.read(), str(answer["ETag"]))

    def replace(self, content: bytes, expected: Version | None) -> Version | None:
        """See `LeaseStore`."""
        with self._errors():
            return self._put(self._place, content, expected)

    def _put(self, place: dict[str, str], content: bytes, expected: Version | None) -> str | None:
        condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": str(expected)}
        try:
            return str(self._client.put_object(**place, Body=content, **condition)["ETag"])
        except ClientError as error:
            status, code = error_code(error)
            if status in _NOT_WRITTEN and code != "NoSuchBucket":
                return None
            raise

    def _honours_conditions(self) -> bool:
        """Stores that know no conditional writes refuse the header, or write all the same."""
        place = {**self._place, "Key": f"{self._place['Key']}.probe-{uuid.uuid4().hex}"}
        try:
            first, again = self._put(place, b"1", None), self._put(place, b"2", None)
            return first is not None and again is None and self._put(place, b"3", '"of-another"') is None
        except ClientError as error:
            if error_code(error)[0] in _UNKNOWN_HEADER:
                return False
            raise
        finally:
            with suppress(BotoCoreError, ClientError):
                self._client.delete_object(**place)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise OSError(f"{self.location}: {error}") from error


def s3_lease_store(uri: str, environment: Callable[[str], str | None] = os.environ.get) -> S3LeaseStore:
    """The store of a folder `s3://[key:secret@]bucket/path`, with the credentials that Arrow would use for it.

    Arrow and boto read the same files and variables, with two differences that are evened out here: the region, and
    the addresses that a custom endpoint understands.
    """
    parts = urlsplit(uri)
    found = {
        "s3.endpoint": environment("AWS_ENDPOINT_URL_S3") or environment("AWS_ENDPOINT_URL"),
        "s3.region": environment("AWS_REGION") or environment("AWS_DEFAULT_REGION"),
        "s3.access-key-id": unquote(parts.username or ""),
        "s3.secret-access-key": unquote(parts.password or ""),
        "s3.connect-timeout": f"{RENEW_SECONDS / 2:.0f}",  # with one repetition far below VALID_SECONDS
        "s3.request-timeout": f"{RENEW_SECONDS / 2:.0f}",
        "s3.retry.num-retries": "1",
    }
    client = PROCESS_CONNECTIONS.client({key: value for key, value in found.items() if value})
    return S3LeaseStore(client, parts.netloc.rpartition("@")[2], parts.path.strip("/"))
