"""The byte store of S3: S3 copies ranges itself, so their bytes do not pass through this process."""

from __future__ import annotations

from contextlib import suppress

from compactor.errors import GiveUpError
from compactor.reasons import Reason
from compactor.storage.byte_store import OutputFile
from compactor.storage.s3_client import request_payer
from compactor.storage.s3_errors import errors_named
from compactor.storage.s3_objects import OpenUpload, S3Objects
from compactor.storage.s3_upload import S3Upload


class S3ByteStore(S3Objects):
    """Files in S3, each written once by a multipart upload, and the unfinished uploads of dead writers."""

    def create(self, location: str) -> OutputFile:
        if self.exists(location):
            raise GiveUpError(
                f"{location} already exists; a rewrite never overwrites a file.", reason=Reason.OUTPUT_EXISTS
            )
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
                    answer = self.client.list_multipart_uploads(Bucket=place.bucket, Prefix=place.key, **markers)
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
