"""The contract of a byte store: read a range, write a new file once, copy a range without decoding it.

A location is the URI or path that Iceberg metadata holds. Three stores implement the contract: `LocalByteStore` lets
the kernel copy, `S3ByteStore` lets S3 copy, `FileIOByteStore` streams through PyIceberg's FileIO. They pickle, so that
Spark tasks can carry them. `opening.byte_store_for` chooses one.

Errors a caller sees: GiveUpError with reason `input_missing` (no such file), `input_truncated` (the file ends before
the range does), `output_exists`, `output_closed`, `access_denied`, `unsupported_location`; RetryError with reason
`no_space`, or `unavailable` for every other failure of the store. S3 adds GiveUpError `store_refuses` (a request that
it never accepts), `unsupported_encryption`, `too_many_parts`, and RetryError `input_changed` (a file was replaced).
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from compactor.errors import FirnlineError, GiveUpError, RetryError
from compactor.reasons import Reason

BUFFER_BYTES: Final = 8 * 1024 * 1024

_READ_GAP: Final = 64 * 1024  # cheaper to read through than to ask twice
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


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
    """A file being written, front to back, once. Nothing is promised to exist before `finish` returns."""

    @property
    def position(self) -> int:
        """Bytes written so far."""
        ...

    def write(self, data: bytes) -> None:
        """Append these bytes."""
        ...

    def copy_range(self, source_location: str, offset: int, length: int) -> None:
        """Append `length` bytes of another file; GiveUpError `input_truncated` when it has fewer."""
        ...

    def finish(self) -> int:
        """Make the file durable under its name and return its size in bytes."""
        ...

    def abort(self) -> None:
        """Remove what was written, also after a `finish` that failed. Calling it twice is fine."""
        ...


class ByteStore(Protocol):
    """Where files are. Every method may raise the errors named on top of this module."""

    def size(self, location: str) -> int:
        """Bytes in the file."""
        ...

    def read(self, location: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`."""
        ...

    def create(self, location: str) -> OutputFile:
        """A new file, its parent directories made where the store has any; it must not exist yet."""
        ...

    def delete(self, location: str) -> None:
        """Remove the file; a missing one is no error."""
        ...

    def exists(self, location: str) -> bool:
        """Whether the file is there."""
        ...


def read_ranges(store: ByteStore, location: str, wanted: Iterable[ByteRange]) -> dict[ByteRange, bytes]:
    """The bytes of many small ranges of one file; neighbours (up to 64 KiB apart, 8 MiB in all) come in one read."""
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


def translated(error: Exception, location: str, action: str) -> FirnlineError:
    """The error to raise when `action` ("reading", "writing", ...) failed at `location`."""
    number = getattr(error, "errno", None)
    if isinstance(error, FileNotFoundError) or number == errno.ENOENT:
        return GiveUpError(f"{location} does not exist any more ({action} it).", reason=Reason.INPUT_MISSING)
    if isinstance(error, FileExistsError):
        return GiveUpError(
            f"{location} exists already; a rewrite never overwrites a file.", reason=Reason.OUTPUT_EXISTS
        )
    if number in _NO_SPACE:
        return RetryError(
            f"No space left while {action} {location}: free some, it is tried again.", reason=Reason.NO_SPACE
        )
    if isinstance(error, PermissionError) or number in _DENIED:
        return GiveUpError(f"Access denied while {action} {location}: {error}", reason=Reason.ACCESS_DENIED)
    return RetryError(f"Storage failed while {action} {location}: {type(error).__name__}: {error}")


@contextmanager
def errors_named(location: str, action: str) -> Iterator[None]:
    """Raise what the operating system or a FileIO raises as an error of this project."""
    try:
        yield
    except FirnlineError:
        raise
    except Exception as error:  # object-store clients raise classes of their own, not only OSError
        raise translated(error, location, action) from error


def truncated(location: str, offset: int, length: int, got: int) -> GiveUpError:
    """What to raise when a file gave `got` of `length` bytes from `offset` and then ended."""
    return GiveUpError(
        f"{location} ends {length - got} bytes before offset {offset + length}: it is shorter than its metadata says.",
        reason=Reason.INPUT_TRUNCATED,
    )


def check_range(location: str, offset: int, length: int) -> None:
    """GiveUpError `input_truncated` for a range that no file can have."""
    if offset < 0 or length < 0:
        raise GiveUpError(f"Impossible byte range {offset}+{length} of {location}.", reason=Reason.INPUT_TRUNCATED)
