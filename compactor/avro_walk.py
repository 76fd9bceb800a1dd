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
        return at + argument if 0 <= argument <= end - at else _WRONG
    return _past_array(content, at, end, argument, kind == ARRAY_ENDING_IN_BYTES)


@_compiled
def _branch(content: Bytes, at: int, end: int, null_branch: int) -> tuple[bool, int]:
    """Whether a field is null, and the position of its value."""
    if null_branch == NOT_NULLABLE:
        return False, at
    if at >= end or content[at] & 0xFD != 0:
        return True, _WRONG
    return content[at] == null_branch, at + 1


@_compiled
def _copy(content: Bytes, start: int, end: int, out: Bytes, to: int) -> None:
    if end - start > _SHORT:
        out[to : to + end - start] = content[start:end]
    else:  # what a slice costs is more than a few bytes do
        for place in range(end - start):
            out[to + place] = content[start + place]


@_compiled
def find_values(
    content: Bytes,
    kinds: Numbers,
    arguments: Numbers,
    null_branches: Numbers,
    rows: Numbers,
    found: Any,
    there: Any,
    records: tuple[int, int],
    values: Bytes,
    filled: int,
) -> int:
    """The wanted values of some records: numbers in `found`, others as they are encoded in `values`.

    `null_branches`: the byte by which a union of a type with null says that it is null, or `NOT_NULLABLE`. `rows`: of
    `found` and `there`, for each field, or `NOT_WANTED`. Both have a column for each record, of which those from the
    first of `records` to before the second are filled: a number, or where in `values` a value begins, 0 where there is
    none; and whether there is one. `values`: filled from `filled` on, with at least so much room as `content` has
    bytes. Returns up to where it is filled then, negative where the content is not so many records of these fields.
    """
    at = 0
    end = len(content)
    for record in range(records[0], records[1]):
        for field in range(len(kinds)):
            row = rows[field]
            is_null, at = _branch(content, at, end, null_branches[field])
            if row != NOT_WANTED:
                there[row, record] = not is_null
                found[row, record] = 0
            if is_null or at < 0:
                start = at
            elif row != NOT_WANTED and kinds[field] == VARINT:
                found[row, record], at = _long(content, at, end)
                start = at
            else:
                start, at = at, _past(content, at, end, kinds[field], arguments[field])
            if at < 0:
                return _WRONG
            if row != NOT_WANTED and at > start:
                found[row, record] = filled
                _copy(content, start, at, values, filled)
                filled += at - start
    return filled if at == end else _WRONG


@_compiled
def read_ends(content: Bytes, starts: Numbers, there: Any, ends: Numbers) -> None:
    """`ends`: where the values of `starts` would end if they lay behind each other. For texts and bytes."""
    total = 0
    for record in range(len(starts)):
        if there[record]:
            total += _long(content, starts[record], len(content))[0]
        ends[record] = total


@_compiled
def copy_values(content: Bytes, starts: Numbers, there: Any, ends: Numbers, out: Bytes, has_length: bool) -> None:
    """The values of `starts` to their `ends` in `out`."""
    filled = 0
    for record in range(len(starts)):
        if there[record]:
            at = starts[record]
            if has_length:
                _, at = _long(content, at, len(content))
            _copy(content, at, at + ends[record] - filled, out, filled)
        else:
            for place in range(filled, ends[record]):
                out[place] = 0
        filled = ends[record]


@_compiled
def drop_first(content: Bytes, ends: Any, count: int, out: Bytes, new_ends: Any) -> None:
    """Texts without their first bytes. `ends`: of all but the first it is where one ends, and the next begins."""
    filled = 0
    new_ends[0] = 0
    for text in range(len(ends) - 1):
        start = ends[text] + count
        _copy(content, start, ends[text + 1], out, filled)
        filled += ends[text + 1] - start
        new_ends[text + 1] = filled
