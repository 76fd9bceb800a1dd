"""Objects of S3: requests, reads, and the known state of each object.

The first request for an object remembers its ETag. If the object is replaced between the read of its footer and of its
data, the later read is an error, never a mixture of both.
"""

from __future__ import annotations

import threading
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError

from compactor.credentials.vended import VendedCredential
from compactor.errors import GiveUpError, RetryError
from compactor.reasons import Reason
from compactor.storage.byte_store import check_range, truncated
from compactor.storage.s3_client import (
    PROCESS_CONNECTIONS,
    S3Connections,
    S3Object,
    customer_key,
    request_payer,
    s3_object,
)
from compactor.storage.s3_errors import (
    NOT_FOUND,
    error_code,
    errors_named,
    is_expired,
    may_be_expired,
    translated,
)

_READ_ATTEMPTS: Final = 3  # boto repeats requests, but not bodies that end early


@dataclass(frozen=True, slots=True)
class ObjectState:
    """Size in bytes and ETag of an object at the first request; the ETag is empty where the store sends none."""

    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class OpenUpload:
    """A multipart upload that is neither completed nor aborted."""

    location: str
    upload_id: str


class S3Objects:
    """Objects of S3 and of S3-compatible stores.

    Pickling keeps the properties and the credential only. An unpickled store uses the connections of its process.

    `vended`: the credential, if a catalog vends it.
    """

    def __init__(
        self,
        properties: dict[str, str],
        connections: S3Connections = PROCESS_CONNECTIONS,
        vended: VendedCredential | None = None,
    ) -> None:
        self.properties = properties
        self.vended = vended
        self._connections = connections
        self._known: dict[str, ObjectState] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"properties": self.properties, "vended": self.vended}

    def __setstate__(self, state: dict[str, Any]) -> None:
        S3Objects.__init__(self, state["properties"], vended=state["vended"])

    @property
    def client(self) -> Any:
        """The boto3 client."""
        return self._connections.client(self.properties, self.vended)

    @property
    def can_copy(self) -> bool | None:
        """Whether this store can copy ranges; None before the first attempt of this process."""
        return self._connections.can_copy(self.properties)

    def note_copying(self, *, possible: bool) -> None:
        """Remember for the life of the process whether this store can copy ranges."""
        self._connections.note_copying(self.properties, possible=possible)

    def object(self, location: str) -> S3Object:
        """Bucket and key of a location."""
        return s3_object(location, self.properties)

    def request(self, location: str, action: str, operation: str, **parameters: Any) -> Any:
        """Send one request for the object at `location`; boto repeats it where that may help."""
        with errors_named(location, action):
            return self.raw_request(location, operation, **parameters)

    def raw_request(self, location: str, operation: str, **parameters: Any) -> Any:
        """Send one request; raises boto's own errors."""
        place = self.object(location)
        payer = request_payer(self.properties)
        return self.send(operation, Bucket=place.bucket, Key=place.key, **payer, **parameters)

    def send(self, operation: str, **parameters: Any) -> Any:
        """Send one request; one that the store refuses is sent once more with another credential, if one is vended."""
        request = getattr(self.client, operation)
        used = self.vended.current() if self.vended else None
        try:
            return request(**parameters)
        except ClientError as error:
            if self.vended is None or used is None or not may_be_expired(error):
                raise
            try:
                self.vended.replaced(used)
            except RetryError as none_other:
                if is_expired(error):
                    raise
                raise error from none_other  # more likely, the permission is missing
        return request(**parameters)

    def state(self, location: str) -> ObjectState:
        """Size and ETag at the first request; S3 is asked only once."""
        known = self._known.get(location)
        return known if known is not None else self._look(location)

    def size(self, location: str) -> int:
        return self._look(location).size

    def exists(self, location: str) -> bool:
        try:
            self.request(location, "looking at", "head_object", **customer_key(self.properties))
        except GiveUpError as error:
            if error.reason == Reason.INPUT_MISSING:
                return False
            raise
        return True

    def delete(self, location: str) -> None:
        with suppress(KeyError):
            del self._known[location]
        try:
            self.request(location, "deleting", "delete_object")
        except GiveUpError as error:
            if error.reason != Reason.INPUT_MISSING:  # some stores say so, S3 does not
                raise

    def read(self, location: str, offset: int, length: int) -> bytes:
        check_range(location, offset, length)
        known = self._known.get(location)
        if known is not None and offset + length > known.size:
            raise truncated(location, offset, length, max(0, known.size - offset))
        data = bytearray()
        failures: list[Exception] = []
        while len(data) < length:
            try:
                data += self._read_on(location, offset + len(data), length - len(data))
            except (HTTPClientError, IncompleteReadError, OSError) as error:
                failures.append(error)
                if len(failures) == _READ_ATTEMPTS:
                    raise translated(error, location, "reading") from error
        return bytes(data)

    def abort_upload(self, upload: OpenUpload) -> bool:
        """Abort one upload; False when it was completed or aborted before."""
        try:
            self.raw_request(upload.location, "abort_multipart_upload", UploadId=upload.upload_id)
        except (BotoCoreError, ClientError) as error:
            if error_code(error)[1] == "NoSuchUpload" or error_code(error)[0] == NOT_FOUND:
                return False
            raise translated(error, upload.location, "aborting an upload to") from error
        return True

    def _look(self, location: str) -> ObjectState:
        answer = self.request(location, "looking at", "head_object", **customer_key(self.properties))
        return self._remember(location, ObjectState(int(answer["ContentLength"]), answer.get("ETag", "")))

    def _remember(self, location: str, state: ObjectState) -> ObjectState:
        """Keep the first state, which copies and reads must match; return the current state."""
        with self._lock:
            self._known.setdefault(location, state)
        return state

    def _read_on(self, location: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`."""
        known = self._known.get(location)
        parameters = customer_key(self.properties) | ({"IfMatch": known.etag} if known and known.etag else {})
        try:
            answer = self.raw_request(
                location, "get_object", Range=f"bytes={offset}-{offset + length - 1}", **parameters
            )
        except (BotoCoreError, ClientError) as error:
            raise translated(error, location, "reading") from error
        with closing(answer["Body"]) as body:  # `with` would give the stream below it, and its errors
            given = int(answer["ContentLength"])
            total = str(answer.get("ContentRange", "")).rpartition("/")[2]
            if not total.isdigit():
                raise GiveUpError(
                    f"S3 returned the whole object for a range of {location}.", reason=Reason.STORE_REFUSES
                )
            self._remember(location, ObjectState(int(total), answer.get("ETag", "")))
            if given < length:  # check before the body is read: a wrong length must not fetch the whole object
                raise truncated(location, offset, length, given)
            data: bytes = body.read(length)
            if len(data) < length:
                raise IncompleteReadError(actual_bytes=len(data), expected_bytes=length)
        return data
