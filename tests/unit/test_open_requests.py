"""What people asked for outlives the process that heard it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from compactor.debt import DebtBoard, TableDebt
from compactor.open_requests import OpenRequests
from compactor.table_names import TableName

ONE, OTHER = TableName("lake", ("a", "b"), "t"), TableName("lake", ("db",), "ü")


def board(folder: Path) -> DebtBoard:
    """A process's board, as the service makes it at its start."""
    requests = OpenRequests(f"file://{folder}/checkpoint")
    made = DebtBoard()
    made.resume(requests.load(), requests.save)
    return made


def asked(given_board: DebtBoard, table: TableName) -> tuple[str, ...]:
    """Once the table has been counted."""
    given_board.put(TableDebt(table))
    known = given_board.get(table)
    assert known is not None
    return known.requested


def test_a_request_that_was_not_served_is_open_in_the_next_life(tmp_path: Path) -> None:
    first = board(tmp_path)
    first.request(ONE, ["", "day = '2024-01-15'"])
    first.request(OTHER, ["x = 1"])
    first.served(ONE, "")
    first.forget(OTHER)
    second = board(tmp_path)
    assert asked(second, ONE) == ("day = '2024-01-15'",)
    assert asked(second, OTHER) == ()
    second.served(ONE, "day = '2024-01-15'")
    assert OpenRequests(f"{tmp_path}/checkpoint").load() == {}


def test_asking_again_writes_nothing(tmp_path: Path) -> None:
    given_board = board(tmp_path)
    given_board.request(ONE, [""])
    file = tmp_path / "checkpoint" / "requests.json"
    file.unlink()
    given_board.request(ONE, [""])
    given_board.served(OTHER, "never asked")
    assert not file.exists()


@pytest.mark.parametrize("content", ["", "{", "[1]", '[{"catalog": "lake"}]'])
def test_a_damaged_file_is_told_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    file = tmp_path / "checkpoint" / "requests.json"
    file.parent.mkdir()
    file.write_text(content)
    with caplog.at_level(logging.WARNING):
        given_board = board(tmp_path)
    assert "has to be asked for again" in caplog.text
    given_board.request(ONE, [""])
    assert asked(board(tmp_path), ONE) == ("",)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "checkpoint").write_text("a file, no folder")
    given_board = board(tmp_path)
    with caplog.at_level(logging.WARNING):
        given_board.request(ONE, [""])
    assert "a restart would forget" in caplog.text
    assert asked(given_board, ONE) == ("",)
