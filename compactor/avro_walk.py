"""The walk over Avro records that `avro_columns.py` describes, compiled to machine code. Importing it loads Numba.

Bytes are not trusted: whatever a record says of its lengths, nothing beyond the end is read.
Source: Avro specification 1.12, "Binary encoding".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit

VARINT: Final = 0
"""int or long: a number of bytes, of which the last is below 128."""
BYTES: Final = 1
"""bytes or string: a length, then so many bytes."""
FIXED: Final = 2
"""`argument` bytes."""
ARRAY_OF_VARINTS: Final = 3
"""Items of `argument` varints each."""
ARRAY_ENDING_IN_BYTES: Final = 4
"""Items of `argument` varints each, then bytes."""

NOT_NULLABLE: Final = -1
NOT_WANTED: Final = -1
NULL: Final = -1
_WRONG: Final = -1
_LAST_SHIFT: Final = 63
_SHORT: Final = 16

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Function = TypeVar("Function", bound=Callable[..., Any])


def _compiled(function: Function) -> Function:
    try:
        made = njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no folder to keep machine code in: it is made again in each process
        made = njit(nogil=True)(function)
    return cast("Function", made)


@_compiled
def _long(content: Bytes, at: int, end: int) -> tuple[int, int]:
    """A number, and the position behind it; that is `_WRONG` where the number does not end."""
    if at < end and content[at] < 0x80:  # noqa: PLR2004 - one byte, as nearly always
        small: Any = np.int64(content[at])
        return (small >> 1) ^ -(small & 1), at + 1
    value: Any = np.uint64(0)
    shift = 0
    while at < end and shift <= _LAST_SHIFT:
        byte = np.uint64(content[at])
        at += 1
        if shift == _LAST_SHIFT and byte > 1:  # more than 64 bits
            return 0, _WRONG
        value |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        if byte < 0x80:  # noqa: PLR2004 - seven bits a byte
            number: Any = np.int64(value >> np.uint64(1))
            return number ^ -np.int64(value & np.uint64(1)), at
        shift += 7
    return 0, _WRONG


@_compiled
def _past_varints(content: Bytes, at: int, end: int, count: int) -> int:
    while count > 0:
        if at >= end:
            return _WRONG
        count -= content[at] < 0x80  # noqa: PLR2004 - without a branch, which would often be foretold wrongly
        at += 1
    return at


@_compiled
def _past_bytes(content: Bytes, at: int, end: int) -> int:
    length, at = _long(content, at, end)
    if at < 0 or length < 0 or length > end - at:
        return _WRONG
    return at + length


@_compiled
def _past_array(content: Bytes, at: int, end: int, varints: int, ends_in_bytes: bool) -> int:
    """Blocks of items, until an empty one; a negative count is followed by the length of its block in bytes."""
    while True:
        count, at = _long(content, at, end)
        if at < 0 or count == 0:
            return at
        if count < 0:
            at = _past_bytes(content, at, end)
        elif count > end - at:  # an item is a byte at least
            return _WRONG
        elif ends_in_bytes:
            for _ in range(count):
                at = _past_varints(content, at, end, varints)
                if at >= 0:
                    at = _past_bytes(content, at, end)
                if at < 0:
                    return _WRONG
        else:
            at = _past_varints(content, at, end, count * varints)
        if at < 0:
            return _WRONG


@_compiled
def _past(content: Bytes, at: int, end: int, kind: int, argument: int) -> int:
    if kind == VARINT:
        return _past_varints(content, at, end, 1)
    if kind == BYTES:
        return _past_bytes(content, at, end)
    if kind == FIXED:
        return at + argument if argument <= end - at else _WRONG
    return _past_array(content, at, end, argument, kind == ARRAY_ENDING_IN_BYTES)


@_compiled
def _value(
    content: Bytes, at: int, end: int, kind: int, argument: int, null_branch: int, wanted: bool
) -> tuple[int, int]:
    """Where a field's value begins, or `NULL`, and the position behind it. Of a number that is wanted, all is read."""
    if null_branch != NOT_NULLABLE:
        if at >= end or content[at] & 0xFD != 0:
            return NULL, _WRONG
        at += 1
        if content[at - 1] == null_branch:
            return NULL, at
    if wanted and kind == VARINT:
        return at, _long(content, at, end)[1]
    return at, _past(content, at, end, kind, argument)


@_compiled
def find_values(
    content: Bytes,
    blocks: Numbers,
    kinds: Numbers,
    arguments: Numbers,
    null_branches: Numbers,
    rows: Numbers,
    starts: Any,
) -> bool:
    """Where the wanted values of all records begin, or `NULL`, and that all are whole.

    `blocks`: of each the number of its records and where it ends. `null_branches`: the byte by which a union of a type
    with null says that it is null, or `NOT_NULLABLE`. `rows`: of `starts`, for each field, or `NOT_WANTED`. `starts`
    has a column for each record. False: the blocks are not so many records of these fields.
    """
    at = 0
    record = 0
    for block in range(len(blocks)):
        end = blocks[block, 1]
        for _ in range(blocks[block, 0]):
            for field in range(len(kinds)):
                wanted = rows[field] != NOT_WANTED
                start, at = _value(content, at, end, kinds[field], arguments[field], null_branches[field], wanted)
                if at < 0:
                    return False
                if wanted:
                    starts[rows[field], record] = start
            record += 1
        if at != end:
            return False
    return True


@_compiled
def read_numbers(content: Bytes, starts: Numbers, values: Numbers) -> None:
    """`values`: 0 where there is none."""
    for record in range(len(starts)):
        values[record] = 0
        if starts[record] != NULL:
            values[record] = _long(content, starts[record], len(content))[0]


@_compiled
def read_ends(content: Bytes, starts: Numbers, ends: Numbers) -> None:
    """`ends`: where the values of `starts` would end if they lay behind each other. For texts and bytes."""
    total = 0
    for record in range(len(starts)):
        if starts[record] != NULL:
            total += _long(content, starts[record], len(content))[0]
        ends[record] = total


@_compiled
def copy_values(content: Bytes, starts: Numbers, ends: Numbers, out: Bytes, has_length: bool) -> None:
    """The values of `starts` to their `ends` in `out`."""
    filled = 0
    for record in range(len(starts)):
        at = starts[record]
        if at == NULL:
            for place in range(filled, ends[record]):
                out[place] = 0
        else:
            if has_length:
                _, at = _long(content, at, len(content))
            length = ends[record] - filled
            if length > _SHORT:
                out[filled : filled + length] = content[at : at + length]
            else:  # what a slice costs is more than a few bytes do
                for place in range(length):
                    out[filled + place] = content[at + place]
        filled = ends[record]
