"""Any sequence of pieces becomes parts that S3 takes, byte for byte, with no more bytes read than needed."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compactor.storage.s3_parts import (
    MAXIMUM_PART_BYTES,
    CopiedRange,
    CopyPart,
    Part,
    PartPlanner,
    PartSizes,
    Piece,
    SentPart,
    piece_size,
)

MINIMUM = 5
SIZES = PartSizes(minimum=MINIMUM, sent=8, copied=30)
OBJECT_BYTES = 400
OBJECTS = {
    name: bytes((seed * 7 + number * 13) % 251 for number in range(OBJECT_BYTES)) for seed, name in enumerate("abc")
}


@st.composite
def ranges(draw: st.DrawFn) -> CopiedRange:
    offset = draw(st.integers(0, OBJECT_BYTES))
    length = draw(st.one_of(st.integers(0, 12), st.integers(0, 100)))
    return CopiedRange(draw(st.sampled_from("abc")), offset, min(length, OBJECT_BYTES - offset))


pieces = st.lists(st.one_of(st.binary(max_size=12), st.binary(max_size=60), ranges()), max_size=14)


def plan(given_pieces: list[Piece], *, copying: bool = True) -> list[Part]:
    planner = PartPlanner(SIZES, copying=copying)
    return [part for piece in given_pieces for part in planner.add(piece)] + planner.finish()


def content(piece: Piece) -> bytes:
    return OBJECTS[piece.source][piece.offset : piece.end] if isinstance(piece, CopiedRange) else piece


def part_content(part: Part) -> bytes:
    return b"".join(map(content, [part.range] if isinstance(part, CopyPart) else part.pieces))


def bytes_moved(parts: list[Part]) -> int:
    """Bytes of objects that must be read and sent again for these parts."""
    return sum(
        piece.length
        for part in parts
        if isinstance(part, SentPart)
        for piece in part.pieces
        if isinstance(piece, CopiedRange)
    )


def check(given_pieces: list[Piece], parts: list[Part]) -> None:
    assert b"".join(map(part_content, parts)) == b"".join(map(content, given_pieces))
    assert all(part.size == len(part_content(part)) > 0 for part in parts)
    assert all(part.size >= MINIMUM for part in parts[:-1])
    for part in parts:
        assert part.size <= (SIZES.copied if isinstance(part, CopyPart) else 2 * SIZES.sent - 1)


@given(pieces)
def test_parts_are_the_pieces(given_pieces: list[Piece]) -> None:
    check(given_pieces, plan(given_pieces))


@given(pieces)
def test_without_copies_all_parts_but_the_last_are_equal(given_pieces: list[Piece]) -> None:
    parts = plan(given_pieces, copying=False)
    check(given_pieces, parts)
    assert not any(isinstance(part, CopyPart) for part in parts)
    assert {part.size for part in parts[:-1]} <= {SIZES.sent}
    assert all(part.size <= SIZES.sent for part in parts)


@given(pieces, st.integers(0, 14))
def test_copies_may_be_given_up_at_any_time(given_pieces: list[Piece], after: int) -> None:
    planner = PartPlanner(SIZES)
    parts = [part for piece in given_pieces[:after] for part in planner.add(piece)]
    planner.stop_copying()
    late = [part for piece in given_pieces[after:] for part in planner.add(piece)] + planner.finish()
    check(given_pieces, parts + late)
    assert not any(isinstance(part, CopyPart) for part in late)


@given(pieces)
def test_little_is_held_back(given_pieces: list[Piece]) -> None:
    planner, given_bytes, planned = PartPlanner(SIZES), 0, 0
    for piece in given_pieces:
        planned += sum(part.size for part in planner.add(piece))
        given_bytes += piece_size(piece)
        held = planner._held.length if planner._held else 0
        assert given_bytes - planned - held < 2 * SIZES.sent


lengths = st.lists(
    st.tuples(st.booleans(), st.one_of(st.integers(1, 4), st.integers(5, 9), st.integers(5, 24))), max_size=9
)


def separate(given_lengths: list[tuple[bool, int]]) -> list[Piece]:
    """Pieces that nothing joins: ranges of different objects, and bytes."""
    return [
        CopiedRange(str(number), 0, length) if copied else bytes(length)
        for number, (copied, length) in enumerate(given_lengths)
    ]


def least_moved(given_pieces: list[Piece]) -> int:
    """The fewest range bytes that any valid division into parts must send, by trying them all."""
    owners = [number for number, piece in enumerate(given_pieces) for _ in range(piece_size(piece))]
    copied = [isinstance(given_pieces[owner], CopiedRange) for owner in owners]
    end = len(owners)

    @cache
    def least(start: int) -> float:
        if start == end:
            return 0
        best = float("inf")
        moved, one_range = 0, copied[start]
        for stop in range(start + 1, end + 1):
            moved += copied[stop - 1]
            one_range = one_range and owners[stop - 1] == owners[start]
            if stop - start >= MINIMUM or stop == end:
                best = min(best, (0 if one_range else moved) + least(stop))
            if not one_range and stop - start > 3 * MINIMUM:
                break
        return best

    return int(least(0))


@given(lengths)
@example([(False, 4), (True, 7), (True, 7), (False, 3)])
@example([(True, 6), (False, 1), (True, 6), (False, 1), (True, 6)])
def test_no_division_moves_much_less(given_lengths: list[tuple[bool, int]]) -> None:
    """Decisions are taken without knowing what follows: at most one part's worth more per gap, mostly none."""
    given_pieces = separate(given_lengths)
    gaps = sum(1 for piece in given_pieces if piece_size(piece) < MINIMUM or isinstance(piece, bytes))
    assert least_moved(given_pieces) <= bytes_moved(plan(given_pieces)) <= least_moved(given_pieces) + gaps * MINIMUM


long_ranges = st.tuples(st.just(True), st.integers(2 * MINIMUM, 24))
short_gaps = st.tuples(st.booleans(), st.integers(1, MINIMUM - 1))


@given(st.lists(st.tuples(long_ranges, st.lists(short_gaps, max_size=2)), max_size=4), st.lists(short_gaps, max_size=2))
def test_nothing_better_exists_where_ranges_have_bytes_to_spare(
    middle: list[tuple[tuple[bool, int], list[tuple[bool, int]]]], head: list[tuple[bool, int]]
) -> None:
    """With a footer behind them, as in every file that is spliced."""
    given_pieces = separate([*head, *(length for long, gap in middle for length in [long, *gap]), (False, 2)])
    assert bytes_moved(plan(given_pieces)) == least_moved(given_pieces)


@pytest.mark.parametrize(
    ("given_lengths", "moved"),
    [
        ([(True, 20), (False, 1), (True, 6), (False, 1)], 4),  # all from the tail: the next has none to spare
        ([(True, 6), (False, 1), (True, 20), (False, 1)], 4),  # a byte of the tail, three of the head
        ([(True, 6), (False, 1), (True, 7), (False, 1)], 6),  # neither has enough to lend: the shorter one goes
        ([(True, 9), (False, 1), (True, 6), (False, 1)], 4),
        ([(True, 6), (False, 4), (True, 6), (False, 1)], 1),
    ],
)
def test_what_is_lent_to_a_gap(given_lengths: list[tuple[bool, int]], moved: int) -> None:
    given_pieces = separate(given_lengths)
    assert bytes_moved(plan(given_pieces)) == moved == least_moved(given_pieces)


# --- what a splice asks for ---

MIB = 1024 * 1024
FILE = 7_600_000


def test_whole_files_behind_each_other_are_copied_whole() -> None:
    planner = PartPlanner(PartSizes())
    parts = [part for number in range(28) for part in planner.add(CopiedRange(str(number), 0, FILE))]
    parts += planner.add(bytes(300_000)) + planner.finish()
    assert bytes_moved(parts) == 0
    assert [part.size for part in parts] == [FILE] * 28 + [300_000]


def test_a_magic_number_costs_one_minimum() -> None:
    planner = PartPlanner(PartSizes())
    parts = planner.add(b"PAR1") + planner.add(CopiedRange("a", 4, 40 * MIB)) + planner.finish()
    assert bytes_moved(parts) == 5 * MIB - 4


def test_adjacent_ranges_are_one() -> None:
    planner = PartPlanner(PartSizes())
    parts = [part for start in range(0, 60, 3) for part in planner.add(CopiedRange("a", start * MIB, 3 * MIB))]
    assert parts + planner.finish() == [CopyPart(CopiedRange("a", 0, 60 * MIB))]


def test_huge_ranges_are_cut_into_parts_that_the_store_takes() -> None:
    planner = PartPlanner(PartSizes(copied=MAXIMUM_PART_BYTES))
    parts = planner.add(CopiedRange("a", 0, 12 * 1024 * MIB + 1)) + planner.finish()
    assert len(parts) == 3
    assert max(part.size for part in parts) <= MAXIMUM_PART_BYTES


@pytest.mark.parametrize("wrong", [{"minimum": 9}, {"copied": 9}, {"copied": MAXIMUM_PART_BYTES + 1}])
def test_sizes_that_contradict_the_rules(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        PartSizes(**{"minimum": 5, "sent": 8, "copied": 30, **wrong})
