"""Ends of shared tuples. n data files have n²/2 pairs with n delete files that all apply to the older ones: their ends
take memory for n, in the driver and in a pickled task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Generic, TypeVar, overload

T = TypeVar("T")
U = TypeVar("U")
Part = tuple[tuple[T, ...], int]
"""A shared tuple, and the index at which its end begins."""


class Tails(Sequence[T], Generic[T]):
    """The ends of some tuples, one after the other. Immutable; equal to a sequence of equal values."""

    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[Part[T]]) -> None:
        self.parts = tuple((shared, start) for shared, start in parts if start < len(shared))

    def __len__(self) -> int:
        return sum(len(shared) - start for shared, start in self.parts)

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(shared[start:] if start else shared for shared, start in self.parts)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return tuple(self)[index]
        left = index if index >= 0 else index + len(self)
        for shared, start in self.parts:
            if 0 <= left < len(shared) - start:
                return shared[start + left]
            left -= len(shared) - start
        raise IndexError(index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class Unseen(Generic[T]):
    """Takes one sequence after the other, and gives of shared tuples what it has not given yet."""

    def __init__(self) -> None:
        self._given: dict[int, Part[T]] = {}

    def __call__(self, sequence: Sequence[T]) -> Iterator[T]:
        if not isinstance(sequence, Tails):
            yield from sequence
            return
        for shared, start in sequence.parts:
            _, given = self._given.get(id(shared), (shared, len(shared)))
            if start < given:
                self._given[id(shared)] = shared, start
                yield from shared[start:given]


def of_all(sequences: Iterable[Sequence[T]]) -> Iterator[T]:
    """The items of all sequences. An item of a shared tuple comes once, others as often as they are there."""
    return chain.from_iterable(map(Unseen[T](), sequences))


class Converted(Generic[T, U]):
    """Converts sequences so that the results share what the given ones share. `convert`: called once for each shared
    item; None leaves it out.
    """

    def __init__(self, convert: Callable[[T], U | None]) -> None:
        self._convert = convert
        self._known: dict[int, tuple[tuple[T, ...], tuple[U, ...], list[int]]] = {}

    def __call__(self, given: Sequence[T]) -> Sequence[U]:
        if not isinstance(given, Tails):
            return tuple(each for each in map(self._convert, given) if each is not None)
        return Tails(self._part(shared, start) for shared, start in given.parts)

    def _part(self, shared: tuple[T, ...], start: int) -> Part[U]:
        known = self._known.get(id(shared))
        if known is None:
            found: list[U] = []
            starts: list[int] = []  # by index in the given tuple
            for each in shared:
                starts.append(len(found))
                one = self._convert(each)
                if one is not None:
                    found.append(one)
            known = self._known[id(shared)] = shared, tuple(found), starts  # holds `shared`: its id stays its own
        return known[1], known[2][start]


def only(wanted: Callable[[T], bool]) -> Converted[T, T]:
    """Leaves out what is not wanted."""
    return Converted(lambda item: item if wanted(item) else None)
