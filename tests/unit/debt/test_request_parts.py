"""A request that is done in parts ends, whatever its parts leave, and a new one begins anew."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.debt.board import DebtBoard
from compactor.table_names import TableName

TABLE, OTHER = TableName("lake", ("db",), "t"), TableName("lake", ("db",), "other")


def requested() -> DebtBoard:
    board = DebtBoard()
    for table in (TABLE, OTHER):
        board.request(table, ["", "id = 1"])
    return board


@given(st.lists(st.integers(0, 100), min_size=1))
def test_each_part_leaves_fewer_files_than_the_one_before(left: list[int]) -> None:
    board = requested()
    assert board.request_goes_on(OTHER, "", 5)
    for number, files in enumerate(left):
        expected = files > 0 and (number == 0 or files < left[number - 1])
        assert board.request_goes_on(TABLE, "id = 1", files) == expected
        if not expected:
            board.finish_request(TABLE, "id = 1")
            assert not board.request_has_begun(TABLE, "id = 1")
            break
        assert board.request_has_begun(TABLE, "id = 1")
    assert not board.request_has_begun(TABLE, "")
    assert board.request_has_begun(OTHER, "")


@pytest.mark.parametrize(
    "ended",
    [
        lambda board: board.finish_request(TABLE, "id = 1"),
        lambda board: board.drop_requests(TABLE),
        lambda board: board.forget(TABLE),
    ],
    ids=["finished", "switched off", "gone"],
)
def test_a_request_that_comes_again_later_begins_anew(ended: Callable[[DebtBoard], None]) -> None:
    """Else its first part would leave out files, and would be its last one if it leaves more than the old one did."""
    board = requested()
    assert board.request_goes_on(TABLE, "id = 1", 500)
    ended(board)
    assert not board.request_goes_on(TABLE, "id = 1", 400), "of a run that had begun before"
    board.request(TABLE, ["id = 1"])
    assert not board.request_has_begun(TABLE, "id = 1")
    assert board.request_goes_on(TABLE, "id = 1", 900)


def test_the_end_of_one_request_leaves_the_others_as_they_are() -> None:
    board = requested()
    assert board.request_goes_on(TABLE, "", 500)
    board.finish_request(TABLE, "id = 1")
    board.forget(TABLE, keep_requests=True)
    assert board.request_has_begun(TABLE, "")
