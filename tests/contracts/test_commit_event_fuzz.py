"""Thousands of damaged events: each has exactly one result that is usable, and nothing escapes from a decoder."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from streaming.commit_events.decoder import BadEvent, Decoded, NotACommit, changes_of, decode
from streaming.commit_events.formats import BY_NAME, DECODERS
from tests.contracts.commit_event_fixtures import assert_usable
from tests.contracts.commit_event_mutations import mutated_events
from tests.slow import slow

EVENTS = 10_000  # in each of ten parts
FEW = 2_500


@pytest.mark.parametrize(("seed", "count"), [(0, FEW), *slow(*((seed, EVENTS) for seed in range(1, 11)))])
def test_each_damaged_event_has_one_usable_result(seed: int, count: int) -> None:
    results: Counter[str] = Counter()
    for event in mutated_events(seed, count):
        answer = decode(event, DECODERS)
        assert_usable(answer)
        results[kind(answer)] += 1
        for decoder in DECODERS:
            own = decoder.decode(event)
            assert_usable(own)
            assert isinstance(decode(event, (decoder,)), BadEvent) or decode(event, (decoder,)) == own
    assert results.total() == count
    assert len(results) == 3, "the mutations leave events of all kinds"
    assert min(results.values()) > count // 50


def test_the_same_seed_gives_the_same_events() -> None:
    assert list(mutated_events(3, 200)) == list(mutated_events(3, 200))


def test_all_formats_are_damaged() -> None:
    recognised: Counter[Any] = Counter()
    for event in mutated_events(4, 2_000):
        recognised.update(name for name, decoder in BY_NAME.items() if decoder.recognises(event))
    assert set(recognised) == set(BY_NAME)


def kind(answer: Decoded) -> str:
    if isinstance(answer, BadEvent):
        return "bad"
    return "ignored" if isinstance(answer, NotACommit) else "changes" if changes_of(answer) else "nothing"
