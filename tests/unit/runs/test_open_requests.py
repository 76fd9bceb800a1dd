"""What people asked for outlives the process that heard it."""

from __future__ import annotations

import threading
from pathlib import Path

from compactor.debt.board import DebtBoard, TableDebt
from compactor.runs.open_requests import OpenRequests, Requests
from compactor.table_names import TableName

ONE, OTHER = TableName("lake", ("a", "b"), "t"), TableName("lake", ("db",), "ü")


def board(folder: Path) -> DebtBoard:
    """A process's board, as the service makes it at its start."""
    requests = OpenRequests(f"file://{folder}/checkpoint")
    made = DebtBoard()
    made.restore_requests(requests.load(), requests.save)
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
    first.finish_request(ONE, "")
    first.forget(OTHER)
    first.save_requests()  # as the service does every ten seconds
    second = board(tmp_path)
    assert asked(second, ONE) == ("day = '2024-01-15'",)
    assert asked(second, OTHER) == ()
    second.finish_request(ONE, "day = '2024-01-15'")
    assert OpenRequests(f"{tmp_path}/checkpoint").load() == {}


def test_asking_again_writes_nothing(tmp_path: Path) -> None:
    given_board = board(tmp_path)
    given_board.request(ONE, [""])
    file = tmp_path / "checkpoint" / "requests.json"
    file.unlink()
    given_board.request(ONE, [""])
    given_board.finish_request(OTHER, "never asked")
    assert not file.exists()


def test_a_request_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    """The disk was full: nothing else would write it before the next request."""
    given_board, file = board(tmp_path), tmp_path / "checkpoint" / "requests.json"
    (file / "in the way").mkdir(parents=True)
    given_board.request(ONE, [""])
    given_board.save_requests()
    (file / "in the way").rmdir()
    file.rmdir()
    given_board.save_requests()
    assert OpenRequests(f"{tmp_path}/checkpoint").load() == {ONE: ("",)}
    file.unlink()
    given_board.save_requests()
    assert not file.exists(), "it was saved"


def test_nobody_waits_for_the_store(tmp_path: Path) -> None:
    """The board is what everybody reads; the newest state is kept last, however slow the store."""
    given_board, kept = DebtBoard(), []
    may_go_on = threading.Event()

    def keep(requests: Requests) -> bool:
        assert may_go_on.wait(10)
        kept.append(dict(requests))
        return True

    given_board.restore_requests({}, keep)
    asking = [threading.Thread(target=given_board.request, args=(table, [""])) for table in (ONE, OTHER)]
    for thread in asking:
        thread.start()
    assert given_board.tables() == ()
    may_go_on.set()
    for thread in asking:
        thread.join(10)
    assert kept[-1] == {ONE: ("",), OTHER: ("",)}


def test_a_table_that_was_only_asked_for_is_known(tmp_path: Path) -> None:
    """It may be gone since: somebody has to look, or the request would wait for a table of that name to come."""
    first = board(tmp_path)
    first.request(ONE, [""])
    second = board(tmp_path)
    assert second.known() == (ONE,)
    second.forget(ONE)
    second.save_requests()
    assert second.known() == ()
    assert OpenRequests(str(tmp_path / "checkpoint")).load() == {}
