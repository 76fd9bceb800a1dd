"""Choose the byte store for a location: local files, S3, or PyIceberg's FileIO."""

from __future__ import annotations

from collections.abc import Mapping

from compactor.credentials.vended import VendedCredential
from compactor.locations import is_local
from compactor.storage.byte_store import ByteStore
from compactor.storage.file_io_store import FileIOByteStore
from compactor.storage.local_store import LocalByteStore
from compactor.storage.s3_client import S3_SCHEMES, needs_file_io
from compactor.storage.s3_store import S3ByteStore


def byte_store_for(location: str, properties: Mapping[str, str], vended: VendedCredential | None = None) -> ByteStore:
    """The store for `location`: local files, S3, else PyIceberg's FileIO with these properties.

    `vended`: the credential, if a catalog vends it; it takes precedence over the one in the properties.
    """
    if is_local(location):
        return LocalByteStore()
    if location.startswith(S3_SCHEMES) and needs_file_io(properties) is None:
        return S3ByteStore(dict(properties), vended=vended)
    return FileIOByteStore(dict(properties), vended)


def abort_uploads(location: str, properties: Mapping[str, str], vended: VendedCredential | None = None) -> int:
    """Abort all unfinished uploads to `location`, or below it if it ends in `/`; returns their number.

    A dead writer leaves unfinished uploads. They are not visible as objects, but they are stored and billed. Only S3
    has them; other stores return 0.

    Raises:
        FirnlineError: the store does not answer, or denies access.
    """
    store = byte_store_for(location, properties, vended)
    return store.abort_uploads(location) if isinstance(store, S3ByteStore) else 0
