"""Where rows of inputs are in an output, against a list of rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compactor.rewrite.deletes.row_maps import InputRows, check_rows, in_order, packed, unpacked
from tests.unit.failing import fails

POSITIONS = st.sets(st.integers(0, 11))


def array(positions: set[int]) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(sorted(positions), dtype=np.int64)


@given(st.lists(st.tuples(st.integers(0, 10), POSITIONS, POSITIONS), max_size=4), POSITIONS)
def test_deletes_follow_their_rows(inputs: list[tuple[int, set[int], set[int]]], deleted: set[int]) -> None:
    output = [
        (number, position)
        for number, (rows, by_position, by_value) in enumerate(inputs)
        for position in range(rows)
        if position not in by_position | by_value
    ]
    placed = in_order(
        InputRows(
            str(number),
            rows,
            by_position=packed(array(by_position), rows),
            by_value=packed(array(by_value - by_position), rows),
        )
        for number, (rows, by_position, by_value) in enumerate(inputs)
    )
    check_rows("output", placed, len(output))
    for number, each in enumerate(placed):
        within = {position for position in deleted if position < each.rows}
        found = {output[at] for at in each.moved(array(within))}
        assert found == {(number, position) for position in within if (number, position) in output}


@given(st.lists(st.tuples(st.integers(0, 10), POSITIONS, POSITIONS, POSITIONS), max_size=4))
def test_carried_deletes_are_where_their_rows_are(inputs: list[tuple[int, set[int], set[int], set[int]]]) -> None:
    """Some inputs have only carried deletes, as in a splice; others lack rows too."""
    placed = in_order(
        InputRows(
            str(number),
            rows,
            by_value=packed(array(gone), rows),
            carried=packed(array(carried - gone), rows),
            carried_by_value=packed(array(others - gone), rows),
        )
        for number, (rows, carried, others, gone) in enumerate(inputs)
    )
    for each, (rows, carried, others, gone) in zip(placed, inputs, strict=True):
        expected = array({row for row in (carried | others) - gone if row < rows})
        assert set(each.carried_there) == set(each.moved(expected).tolist())


@given(st.sets(st.integers(0, 2**33)), st.integers(0, 2**33))
def test_positions_are_packed_up_to_the_end_of_the_file(positions: set[int], rows: int) -> None:
    assert set(unpacked(packed(array(positions), rows)).tolist()) == {each for each in positions if each < rows}


def test_an_output_with_other_rows_than_its_inputs_kept_is_refused() -> None:
    inputs = in_order([InputRows("a", 10, by_position=packed(array({1}), 10)), InputRows("b", 5)])
    check_rows("output", inputs, 14)
    with fails("row_count_mismatch"):
        check_rows("output", inputs, 15)
