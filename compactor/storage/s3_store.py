"""The byte store of S3: S3 copies ranges itself wherever that is possible, so their bytes do not leave the store.

A new object is a multipart upload. It becomes visible when the upload is completed, and completing never overwrites an
object. Another process can find an open upload (`S3ByteStore.open_uploads`) and abort it.
"""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from compactor.errors import GiveUpError, RetryError
from compactor.reasons import Reason
from compactor.storage.byte_store import OutputFile, check_range, exists_already, truncated
from compactor.storage.s3_client import (
    attribute_parameters,
    checks_content,
    customer_key,
    request_payer,
    takes_equal_parts_only,
    upload_threads,
)
from compactor.storage.s3_errors import error_code, errors_named, is_not_implemented, translated
from compactor.storage.s3_objects import OpenUpload, S3Objects
from compactor.storage.s3_parts import (
    MAXIMUM_PARTS,
    CopiedRange,
    CopyPart,
    Part,
    PartPlanner,
    PartSizes,
    SentPart,
    sent_instead,
)

PART_SIZES: Final = PartSizes()
_SENT_AT_ONCE: Final = 2  # parts in memory, each less than twice PART_SIZES.sent
_OPENING_BYTES: Final = 16  # longer than the magic number of any file format
_PRECONDITION: Final = 412


class _Parts:
    """The parts of one multipart upload. Threads make them, a bounded number at a time; add them from one thread."""

    def __init__(self, store: S3Objects, location: str, planner: PartPlanner) -> None:
        self.upload_id = ""
        self.etags: list[Future[str]] = []
        self._location = location
        self._store = store
        self._planner = planner
        self._threads: ThreadPoolExecutor | None = None
        self._free = threading.BoundedSemaphore(upload_threads(store.properties))
        self._free_to_send = threading.BoundedSemaphore(_SENT_AT_ONCE)
        self._failures: list[BaseException] = []

    def add(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if self._failures:
                raise self._failures[0]
            if isinstance(part, CopyPart) and self._store.can_copy is None:
                self._try_copying(part)
            elif isinstance(part, CopyPart) and self._store.can_copy is False:
                self._send_instead(part)
            else:
                self._start(part)

    def stop(self) -> None:
        if self._threads is not None:
            threads, self._threads = self._threads, None
            threads.shutdown(wait=True, cancel_futures=True)

    def _try_copying(self, part: CopyPart) -> None:
        """Make the first copy of this process in this store and wait: it decides how all other parts are made."""
        number = self._next_number()
        try:
            etag = self._copy(number, part)
        except GiveUpError as error:
            if error.reason != Reason.STORE_REFUSES:
                raise
            self._store.note_copying(possible=False)
            self._send_instead(part)
            return
        self._store.note_copying(possible=True)
        done: Future[str] = Future()
        done.set_result(etag)
        self.etags.append(done)

    def _send_instead(self, part: CopyPart) -> None:
        self._planner.stop_copying()
        for sent in sent_instead(part, PART_SIZES):
            self._start(sent)

    def _start(self, part: Part) -> None:
        """Make a part in a thread, as soon as one is free."""
        number = self._next_number()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(upload_threads(self._store.properties), thread_name_prefix="s3-part")
        waiting = [self._free, self._free_to_send] if isinstance(part, SentPart) else [self._free]
        for semaphore in waiting:
            semaphore.acquire()

        def done(made: Future[str]) -> None:
            error = None if made.cancelled() else made.exception()
            if error is not None:
                self._failures.append(error)
            for semaphore in waiting:
                semaphore.release()

        future = self._threads.submit(self._make, number, part)
        future.add_done_callback(done)
        self.etags.append(future)

    def _next_number(self) -> int:
        if len(self.etags) >= MAXIMUM_PARTS:
            raise GiveUpError(
                f"{self._location} needs more than {MAXIMUM_PARTS} parts; lower the target file size.",
                reason=Reason.TOO_MANY_PARTS,
            )
        if not self.upload_id:
            answer = self._store.request(
                self._location, "creating", "create_multipart_upload", **attribute_parameters(self._store.properties)
            )
            self.upload_id = answer["UploadId"]
        return len(self.etags) + 1

    def _make(self, number: int, part: Part) -> str:
        return self._copy(number, part) if isinstance(part, CopyPart) else self._send(number, part)

    def _copy(self, number: int, part: CopyPart) -> str:
        """Have S3 copy a range; returns the part's ETag."""
        piece = part.range
        source, etag = self._store.object(piece.source), self._store.state(piece.source).etag
        try:
            answer = self._store.raw_request(
                self._location,
                "upload_part_copy",
                UploadId=self.upload_id,
                PartNumber=number,
                CopySource={"Bucket": source.bucket, "Key": source.key},
                CopySourceRange=f"bytes={piece.offset}-{piece.end - 1}",
                **({"CopySourceIfMatch": etag} if etag else {}),
                **customer_key(self._store.properties),
                **customer_key(self._store.properties, "CopySource"),
            )
        except (BotoCoreError, ClientError) as error:
            raise translated(error, piece.source, f"copying into {self._location} from") from error
        made: str = answer.get("CopyPartResult", {}).get("ETag", "")
        if not made:  # the store read the request as an empty upload
            raise GiveUpError(
                f"S3 did not confirm that it copied a range into {self._location}.", reason=Reason.STORE_REFUSES
            )
        return made

    def _send(self, number: int, part: SentPart) -> str:
        """Assemble a part and send it; returns its ETag."""
        data = _joined(self._store, part)
        answer = self._store.request(
            self._location,
            "writing",
            "upload_part",
            UploadId=self.upload_id,
            PartNumber=number,
            Body=data,
            **_digest(self._store, data),
            **customer_key(self._store.properties),
        )
        etag: str = answer["ETag"]
        return etag


class S3Upload:
    """An OutputFile, used from one thread."""

    def __init__(self, store: S3Objects, location: str) -> None:
        self.location = location
        self._store = store
        copying = store.can_copy is not False and not takes_equal_parts_only(store.properties)
        self._planner = PartPlanner(PART_SIZES, copying=copying)
        self._parts = _Parts(store, location, self._planner)
        self._opening = b""
        self._position = 0
        self._closed = False
        self._finishing = False  # a request to complete was sent: the object may exist
        self._foreign = False  # an object of another writer exists

    @property
    def position(self) -> int:
        return self._position

    def write(self, data: bytes) -> None:
        self._check_open()
        if not self._position and len(data) <= _OPENING_BYTES:
            self._opening = bytes(data)
        else:
            self._add_opening()
            self._parts.add(self._planner.add(bytes(data)))
        self._position += len(data)

    def copy_range(self, source_location: str, offset: int, length: int) -> None:
        self._check_open()
        check_range(source_location, offset, length)
        size = self._store.state(source_location).size
        if offset + length > size:
            raise truncated(source_location, offset, length, max(0, size - offset))
        if not length:
            return
        piece = CopiedRange(source_location, offset, length)
        if self._opening and self._stands_before(piece):
            before = len(self._opening)
            piece, self._opening = CopiedRange(source_location, offset - before, before + length), b""
        self._add_opening()
        self._parts.add(self._planner.add(piece))
        self._position += length

    def finish(self) -> int:
        self._check_open()
        self._add_opening()
        last = self._planner.finish()
        alone = [part for part in last if isinstance(part, SentPart)]
        if not self._parts.upload_id and len(last) == len(alone) <= 1:
            self._put(b"".join(_joined(self._store, part) for part in alone))
        else:
            self._parts.add(last)
            etags = [etag.result() for etag in self._parts.etags]
            self._parts.stop()
            self._complete(etags)
        self._closed = True
        stored = self._store.size(self.location)
        if stored != self._position:
            raise RetryError(f"{self.location} holds {stored} bytes after {self._position} were written.")
        return self._position

    def abort(self) -> None:
        self._closed = True
        self._parts.stop()
        ours = self._finishing and not self._foreign
        if self._parts.upload_id:
            aborted = self._store.abort_upload(OpenUpload(self.location, self._parts.upload_id))
            ours = ours and not aborted  # an upload that can be aborted was never completed
        if ours:
            self._store.delete(self.location)

    def _stands_before(self, piece: CopiedRange) -> bool:
        """Whether the bytes before the range equal the bytes written first: then they are copied together.

        All Parquet files begin with the same 4 bytes. Sent on their own they would need 5 MiB of data read and sent.
        """
        before = len(self._opening)
        return piece.offset >= before and self._store.read(piece.source, piece.offset - before, before) == self._opening

    def _add_opening(self) -> None:
        if self._opening:
            opening, self._opening = self._opening, b""
            self._parts.add(self._planner.add(opening))

    # --- the end ---

    def _complete(self, etags: list[str]) -> None:
        """Make the object from its parts, unless an object already exists.

        boto may repeat a request that S3 has carried out. So an error counts only if the upload still exists.
        """
        self._finishing = True
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        request = {"UploadId": self._parts.upload_id, "MultipartUpload": {"Parts": parts}}
        try:
            self._unless_it_exists("complete_multipart_upload", **request, **customer_key(self._store.properties))
        except (BotoCoreError, ClientError) as error:
            if self._is_consumed():
                return
            raise self._not_finished(error) from error

    def _put(self, data: bytes) -> None:
        """Write a small object in one request."""
        self._finishing = True
        try:
            self._unless_it_exists(
                "put_object", Body=data, **_digest(self._store, data), **attribute_parameters(self._store.properties)
            )
        except (BotoCoreError, ClientError) as error:
            retried = getattr(error, "response", {}).get("ResponseMetadata", {}).get("RetryAttempts", 0)
            if not (error_code(error)[0] == _PRECONDITION and retried and self._holds(data)):
                raise self._not_finished(error) from error

    def _unless_it_exists(self, operation: str, **parameters: Any) -> None:
        try:
            self._store.raw_request(self.location, operation, IfNoneMatch="*", **parameters)
        except ClientError as error:
            if not is_not_implemented(error):
                raise
            if self._store.exists(self.location):  # the store has no conditional writes: check before
                raise self._exists_already() from error
            self._store.raw_request(self.location, operation, **parameters)

    def _is_consumed(self) -> bool:
        """Whether the upload was completed: it no longer exists, or has no parts any more."""
        try:
            answer = self._store.raw_request(
                self.location,
                "list_parts",
                UploadId=self._parts.upload_id,
                MaxParts=1,
                **customer_key(self._store.properties),
            )
        except (BotoCoreError, ClientError) as error:
            gone = error_code(error)[1] == "NoSuchUpload"
        else:
            gone = not answer.get("Parts")
        return gone and self._store.exists(self.location)

    def _holds(self, data: bytes) -> bool:
        return self._store.size(self.location) == len(data) and self._store.read(self.location, 0, len(data)) == data

    def _not_finished(self, error: Exception) -> GiveUpError | RetryError:
        if error_code(error)[0] == _PRECONDITION:
            return self._exists_already()
        return translated(error, self.location, "finishing")

    def _exists_already(self) -> GiveUpError:
        self._foreign = True
        return exists_already(self.location)

    def _check_open(self) -> None:
        if self._closed:
            raise GiveUpError(f"{self.location} is already closed.", reason=Reason.OUTPUT_CLOSED)


def _joined(store: S3Objects, part: SentPart) -> bytes:
    """The bytes of a part that this process sends."""
    return b"".join(
        piece if isinstance(piece, bytes) else store.read(piece.source, piece.offset, piece.length)
        for piece in part.pieces
    )


def _digest(store: S3Objects, data: bytes) -> dict[str, str]:
    if not checks_content(store.properties):
        return {}
    return {"ContentMD5": base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()}


class S3ByteStore(S3Objects):
    """Files in S3, each written once by a multipart upload, and the unfinished uploads of dead writers."""

    def create(self, location: str) -> OutputFile:
        if self.exists(location):
            raise exists_already(location)
        with suppress(KeyError):
            del self._known[location]
        return S3Upload(self, location)

    def open_uploads(self, prefix: str) -> list[OpenUpload]:
        """Unfinished uploads whose location begins with `prefix`; none where the store cannot list them.

        Some stores (MinIO) list uploads of one whole key only.
        """
        place = self.object(prefix)
        scheme = prefix.partition("://")[0]
        bucket = prefix.removeprefix(f"{scheme}://").partition("/")[0]
        found: list[OpenUpload] = []
        markers = request_payer(self.properties)
        while True:
            try:
                with errors_named(prefix, "listing uploads of"):
                    answer = self.send("list_multipart_uploads", Bucket=place.bucket, Prefix=place.key, **markers)
            except GiveUpError as error:
                if error.reason in {Reason.STORE_REFUSES, Reason.INPUT_MISSING}:
                    return found
                raise
            found += [
                OpenUpload(f"{scheme}://{bucket}/{upload['Key']}", upload["UploadId"])
                for upload in answer.get("Uploads", [])
            ]
            if not answer.get("IsTruncated"):
                return found
            markers |= {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}

    def abort_uploads(self, location: str) -> int:
        """Abort all unfinished uploads to this location (below it, when it ends in `/`); returns their number."""
        count = 0
        for upload in self.open_uploads(location):
            if upload.location == location or location.endswith("/"):
                count += self.abort_upload(upload)
        return count
