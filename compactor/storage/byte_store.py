"""The contract of a byte store: read a range, write a new file once, copy a range without decoding it.

A location is the URI or path in Iceberg metadata. Three stores implement the contract: in `LocalByteStore` the kernel
copies, in `S3ByteStore` S3 copies, and `FileIOByteStore` streams through PyIceberg's FileIO. Stores can be pickled for
Spark tasks. `opening.byte_store_for` chooses a store.

Errors: GiveUpError with reason `input_missing` (no such file), `input_truncated` (the file ends before
the range does), `output_exists`, `output_closed`, `access_denied`, `unsupported_location`; RetryError with reason
`no_space`, `credentials_expired`, `out_of_memory`, or `unavailable` for every other failure of the store. S3 adds
GiveUpError `store_refuses` (it never accepts the request), `unsupported_encryption`, `too_many_parts`, and RetryError
`input_changed` (a file was replaced).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from compactor.credentials.credential import means_expired
from compactor.errors import FirnlineError, GiveUpError, RetryError
from compactor.reasons import Reason

BUFFER_BYTES: Final = 8 * 1024 * 1024
RENEWING: Final = (
    "a credential that is written in the settings ends with its lifetime: let the catalog vend credentials, or leave "
    "them out of the settings, so that the environment's are used (IRSA, instance profile), which are renewed"
)
"""The remedy where a credential has expired."""
PERMIT: Final = "check the permissions: firnline reads, writes and deletes files below the location of its tables"
"""The remedy where a store or a file system denies access."""
_CHECKSUMS_REFUSED: Final = re.compile(
    "MissingContentLength|must provide the Content-Length|header you provided implies functionality|"
    "aws-chunked|STREAMING-UNSIGNED-PAYLOAD|x-amz-(?:trailer|checksum|sdk-checksum)"
)

_READ_GAP: Final = 64 * 1024  # reading this many bytes is cheaper than a second request
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_IMPOSSIBLE: Final = frozenset({errno.ENAMETOOLONG, errno.EISDIR})


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`length` bytes from `offset` of one file."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.offset + self.length


class OutputFile(Protocol):
    """A new file, written once from front to back. It may not exist before `finish` returns."""

    @property
    def position(self) -> int:
        """Bytes written so far."""
        ...

    def write(self, data: bytes) -> None:
        """Append `data`."""
        ...

    def copy_range(self, source_location: str, offset: int, length: int) -> None:
        """Append `length` bytes of another file; GiveUpError `input_truncated` if it is too short."""
        ...

    def finish(self) -> int:
        """Make the file durable under its name; returns its size in bytes."""
        ...

    def abort(self) -> None:
        """Remove the file, also after a failed `finish`. Can be called twice."""
        ...


class ByteStore(Protocol):
    """Reads, writes and removes files. Every method may raise the errors listed at the top of this module."""

    def size(self, location: str) -> int:
        """Bytes in the file."""
        ...

    def read(self, location: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`."""
        ...

    def create(self, location: str) -> OutputFile:
        """Create a new file, with its parent directories where the store has any; the file must not exist."""
        ...

    def delete(self, location: str) -> None:
        """Remove the file; no error if it is missing."""
        ...

    def exists(self, location: str) -> bool:
        """Whether the file exists."""
        ...


def read_ranges(store: ByteStore, location: str, wanted: Iterable[ByteRange]) -> dict[ByteRange, bytes]:
    """The bytes of many small ranges of one file; one read for ranges up to 64 KiB apart, at most 8 MiB together."""
    data: dict[ByteRange, bytes] = {}
    batch: list[ByteRange] = []
    for part in [*sorted(wanted, key=lambda part: part.offset), None]:
        if part and (
            not batch or (part.offset <= batch[-1].end + _READ_GAP and part.end <= batch[0].offset + BUFFER_BYTES)
        ):
            batch.append(part)
            continue
        if batch:
            start = batch[0].offset
            read = store.read(location, start, max(done.end for done in batch) - start)
            data |= {done: read[done.offset - start : done.end - start] for done in batch}
        batch = [part] if part else []
    return data


def read_exactly(read: Callable[[int, int], bytes], location: str, offset: int, length: int) -> bytes:
    """Exactly `length` bytes from `offset`, by calls of `read` with an offset and the most bytes to return."""
    pieces: list[bytes] = []
    got = 0
    while got < length:
        piece = read(offset + got, min(length - got, BUFFER_BYTES))
        if not piece:
            raise truncated(location, offset, length, got)
        pieces.append(piece)
        got += len(piece)
    return b"".join(pieces)


def translated(error: Exception, location: str, action: str) -> FirnlineError:  # noqa: PLR0911 - one for each kind
    """The error to raise when `action` ("reading", "writing", ...) failed at `location`."""
    number = getattr(error, "errno", None)
    if isinstance(error, FileNotFoundError) or number == errno.ENOENT:
        return GiveUpError(f"{location} does not exist any more ({action} it).", reason=Reason.INPUT_MISSING)
    if isinstance(error, FileExistsError):
        return exists_already(location)
    if number in _IMPOSSIBLE:
        return GiveUpError(f"No file can be at {location} ({action} it): {error}", reason=Reason.UNSUPPORTED_LOCATION)
    if number in _NO_SPACE:
        return RetryError(
            f"No space left while {action} {location}: free some space; the run is tried again.", reason=Reason.NO_SPACE
        )
    if means_expired(str(error), vended=False):
        return RetryError(
            f"The store refuses the credential while {action} {location}: {error}; {RENEWING}",
            reason=Reason.CREDENTIALS_EXPIRED,
        )
    if isinstance(error, PermissionError) or number in _DENIED:
        return GiveUpError(f"Access denied while {action} {location}: {error}; {PERMIT}", reason=Reason.ACCESS_DENIED)
    remedy = checksum_remedy(str(error))
    return RetryError(f"Storage failed while {action} {location}: {type(error).__name__}: {error}{remedy}")


def checksum_remedy(error: str) -> str:
    """The end of a sentence that repeats the error of a store: what to set if it refuses checksums; else empty."""
    if _CHECKSUMS_REFUSED.search(error) is None:
        return ""
    return "; for a store without checksums in trailers, AWS_REQUEST_CHECKSUM_CALCULATION must be when_required"


@contextmanager
def errors_named(location: str, action: str) -> Iterator[None]:
    """Translate errors of the operating system or a FileIO into errors of this project."""
    try:
        yield
    except FirnlineError:
        raise
    except MemoryError as error:
        raise RetryError(
            f"Not enough memory while {action} {location}: {error}", reason=Reason.OUT_OF_MEMORY
        ) from error
    except Exception as error:  # object-store clients raise classes of their own, not only OSError
        raise translated(error, location, action) from error


def exists_already(location: str) -> GiveUpError:
    """The error for an output whose location is taken."""
    return GiveUpError(f"{location} already exists; a rewrite never overwrites a file.", reason=Reason.OUTPUT_EXISTS)


def truncated(location: str, offset: int, length: int, got: int) -> GiveUpError:
    """The error for a file that ended after `got` of `length` bytes from `offset`."""
    return GiveUpError(
        f"{location} ends {length - got} bytes before offset {offset + length}: it is shorter than its metadata says.",
        reason=Reason.INPUT_TRUNCATED,
    )


def check_range(location: str, offset: int, length: int) -> None:
    """Raise GiveUpError `input_truncated` for a negative offset or length."""
    if offset < 0 or length < 0:
        raise GiveUpError(
            f"Impossible byte range of {location}: {length} bytes from offset {offset}.", reason=Reason.INPUT_TRUNCATED
        )
