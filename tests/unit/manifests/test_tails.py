"""Ends of shared tuples are equal to tuples, and what is made of them shares as much."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.manifests.tails import Converted, Tails, of_all

SHARED = tuple(f"item {number}" for number in range(1000))
numbers = st.lists(st.integers(0, 99), max_size=6, unique=True).map(tuple)


@st.composite
def sequences(draw: st.DrawFn) -> list[Sequence[int]]:
    shared = draw(st.lists(numbers, min_size=1, max_size=3))
    part = st.tuples(st.sampled_from(shared), st.integers(0, 7))
    return draw(st.lists(st.lists(part, max_size=3).map(Tails[int]) | numbers, max_size=5))


@given(sequences())
def test_it_is_a_sequence(given_sequences: list[Sequence[int]]) -> None:
    for each in given_sequences:
        plain = tuple(each)
        assert (len(each), bool(each), each == plain, plain == each) == (len(plain), bool(plain), True, True)
        assert [each[index] for index in range(len(each))] == list(plain)
        assert [each[-index] for index in range(1, len(each) + 1)] == list(reversed(plain))
        for index in (len(plain), -len(plain) - 1):
            with pytest.raises(IndexError):
                each[index]
        assert each[1:3] == plain[1:3]
        assert each != (*plain, 1)
        assert hash(each) == hash(plain)


@given(sequences())
def test_all_items_come_and_no_other(given_sequences: list[Sequence[int]]) -> None:
    assert set(of_all(given_sequences)) == {item for each in given_sequences for item in each}


@given(sequences())
def test_what_is_converted_is_what_each_item_becomes(given_sequences: list[Sequence[int]]) -> None:
    convert = Converted[int, str](lambda number: str(number) if number % 3 else None)
    for each in given_sequences:
        assert convert(each) == tuple(str(number) for number in each if number % 3)


def test_shared_items_come_once_and_are_converted_and_pickled_once() -> None:
    ends = [Tails([(SHARED, start)]) for start in range(len(SHARED))]
    assert len(list(of_all(ends))) == len(SHARED)
    called: list[str] = []
    convert = Converted[str, str](lambda item: called.append(item) or item)  # type: ignore[func-returns-value]
    converted = [convert(each) for each in ends]
    assert called == list(SHARED)
    assert len(pickle.dumps(converted)) < 100 * len(SHARED)
