"""Plan the parts of a multipart upload so that as few bytes as possible leave the store. Pure.

S3's rules: each part but the last has at least 5 MiB, no part has more than 5 GiB, and a part is either sent, or a
range of one object larger than 5 MiB that S3 copies. So a short piece between two large ranges (a magic number, a small
file) borrows the bytes that it lacks of 5 MiB from its neighbours. Only these bytes are read and sent.

Source: Amazon S3 User Guide, "Amazon S3 multipart upload limits".
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

MINIMUM_PART_BYTES: Final = 5 * 1024 * 1024
MAXIMUM_PART_BYTES: Final = 5 * 1024 * 1024 * 1024
MAXIMUM_PARTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class CopiedRange:
    """`length` bytes from `offset` of the object at `source`."""

    source: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        """The offset after the last byte."""
        return self.offset + self.length

    def continues(self, before: Piece | None) -> bool:
        """Whether `before` ends where this begins, in the same object."""
        return isinstance(before, CopiedRange) and before.source == self.source and before.end == self.offset

    def first(self, length: int) -> CopiedRange:
        """The first `length` bytes."""
        return CopiedRange(self.source, self.offset, length)

    def without_first(self, length: int) -> CopiedRange:
        """All but the first `length` bytes."""
        return CopiedRange(self.source, self.offset + length, self.length - length)


Piece: TypeAlias = "bytes | CopiedRange"
"""Bytes in memory, or a range of an object."""


@dataclass(frozen=True, slots=True)
class CopyPart:
    """A part that S3 copies: one range."""

    range: CopiedRange

    @property
    def size(self) -> int:
        """Bytes."""
        return self.range.length


@dataclass(frozen=True, slots=True)
class SentPart:
    """A part that this process assembles and sends."""

    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(map(piece_size, self.pieces))


Part: TypeAlias = CopyPart | SentPart


@dataclass(frozen=True, slots=True)
class PartSizes:
    """Sizes of parts, in bytes.

    Attributes:
        minimum: Least size of a part other than the last.
        sent: Usual size of sent parts; each takes less than twice this in memory.
        copied: Longer ranges are split into several parts, which S3 copies concurrently.
    """

    minimum: int = MINIMUM_PART_BYTES
    sent: int = 8 * 1024 * 1024
    copied: int = 128 * 1024 * 1024

    def __post_init__(self) -> None:
        if not (self.minimum <= self.sent and 2 * self.minimum <= self.copied <= MAXIMUM_PART_BYTES):
            raise ValueError(f"part sizes do not fit together: {self}")


def piece_size(piece: Piece) -> int:
    """Bytes in a piece."""
    return piece.length if isinstance(piece, CopiedRange) else len(piece)


class PartPlanner:
    """Pieces in, parts out, in the same order: the parts' bytes are the pieces' bytes.

    Each call returns the parts that later pieces cannot change. The planner holds back one large range, because a short
    piece after it may borrow its tail, and short pieces of less than two sent parts.

    Args:
        sizes: How large parts are.
        copying: False where the store cannot copy ranges: all parts are sent, and all but the last have equal sizes
            (some stores, such as Cloudflare R2, require it).
    """

    def __init__(self, sizes: PartSizes, *, copying: bool = True) -> None:
        self._sizes = sizes
        self._copying = copying
        self._held: CopiedRange | None = None
        self._gap: deque[Piece] = deque()
        self._gap_size = 0

    def add(self, piece: Piece) -> list[Part]:
        """Append a piece."""
        if isinstance(piece, bytes):
            for start in range(0, len(piece), self._sizes.sent):
                self._append(piece[start : start + self._sizes.sent])
            return self._overflow()
        if not piece.length:
            return []
        if not self._gap and self._held is not None and piece.continues(self._held):
            self._held = self._held.first(self._held.length + piece.length)
            return []
        if self._gap and piece.continues(self._gap[-1]):
            before = self._gap.pop()
            self._gap_size -= piece_size(before)
            piece = CopiedRange(piece.source, piece.offset - piece_size(before), piece_size(before) + piece.length)
        if self._copying and piece.length >= self._sizes.minimum:
            return self._large(piece)
        self._append(piece)
        return self._overflow()

    def stop_copying(self) -> None:
        """Send all further parts: the store cannot copy."""
        self._send_held()
        self._copying = False

    def finish(self) -> list[Part]:
        """The remaining parts; the last one may have any size."""
        return self._close_gap()

    def _append(self, piece: Piece) -> None:
        self._gap.append(piece)
        self._gap_size += piece_size(piece)

    def _large(self, piece: CopiedRange) -> list[Part]:
        """Add a range that is large enough for a part: fill up the gap before it with as few bytes as possible."""
        lacking = max(0, self._sizes.minimum - self._gap_size) if self._gap else 0
        spare = self._held.length - self._sizes.minimum if self._held else 0
        tail = min(lacking, spare)  # prefer the range before: the next piece may need the spare bytes of `piece`
        head = lacking - tail
        if piece.length - head >= self._sizes.minimum:
            if self._held and tail:
                self._gap.appendleft(self._held.without_first(self._held.length - tail))
                self._held = self._held.first(self._held.length - tail)
            if head:
                self._gap.append(piece.first(head))
            self._gap_size += tail + head
            parts = self._close_gap()
            self._held = piece.without_first(head)
            return parts
        if self._held and self._held.length < piece.length:  # neither has enough spare bytes: send the shorter one
            self._send_held()
            parts = self._close_gap()
            self._held = piece
            return parts
        self._append(piece)
        return self._overflow()

    def _send_held(self) -> None:
        if self._held is not None:
            self._gap.appendleft(self._held)
            self._gap_size += self._held.length
            self._held = None

    def _close_gap(self) -> list[Part]:
        parts = self._overflow() + self._release()
        if self._gap_size:
            parts.append(self._take(self._gap_size))
        return parts

    def _overflow(self) -> list[Part]:
        """Sent parts, as soon as there are bytes for one and for another one after it."""
        size = self._sizes.sent
        enough = 2 * size if self._copying else size
        parts: list[Part] = []
        while self._gap_size >= enough:
            parts += self._release()
            parts.append(self._take(size))
        return parts

    def _release(self) -> list[Part]:
        """The held range, in as few equal parts as its length allows."""
        if self._held is None:
            return []
        whole, self._held = self._held, None
        count = -(-whole.length // self._sizes.copied)
        cuts = [whole.length * number // count for number in range(count + 1)]
        return [CopyPart(CopiedRange(whole.source, whole.offset + start, end - start)) for start, end in pairwise(cuts)]

    def _take(self, size: int) -> SentPart:
        """The first `size` bytes of the gap."""
        taken: list[Piece] = []
        left = size
        while left:
            piece = self._gap.popleft()
            if piece_size(piece) > left:
                first, rest = split(piece, left)
                self._gap.appendleft(rest)
                piece = first
            taken.append(piece)
            left -= piece_size(piece)
        self._gap_size -= size
        return SentPart(tuple(taken))


def split(piece: Piece, length: int) -> tuple[Piece, Piece]:
    """The first `length` bytes of a piece, and the rest."""
    if isinstance(piece, CopiedRange):
        return piece.first(length), piece.without_first(length)
    return piece[:length], piece[length:]


def sent_instead(part: CopyPart, sizes: PartSizes) -> list[SentPart]:
    """The same bytes as parts to send, for a store that cannot copy. No part is below the minimum."""
    count = max(1, part.size // sizes.sent)
    cuts = [part.size * number // count for number in range(count + 1)]
    return [SentPart((part.range.without_first(start).first(end - start),)) for start, end in pairwise(cuts)]
