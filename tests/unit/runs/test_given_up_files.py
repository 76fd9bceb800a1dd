"""What a process notes of the file groups that it works on, and what the next one makes of it after a death."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError

from compactor.iceberg.tables import TableView
from compactor.runs.given_up_files import AGAIN_SECONDS, DIED, MOST_SHOWN, NAME, GivenUp, GivenUpFiles
from tests.properties.table_history import TableHistory

A, B, C = ({f"{name}{number}" for number in range(30)} for name in "abc")


@dataclass
class Lives:
    """Processes one after the other on one checkpoint. Each dies with its JVM: the kernel kills both, or one ends the
    other.
    """

    folder: Path
    now: float = 1000.0

    def begin(self) -> GivenUpFiles:
        files = GivenUpFiles(f"file://{self.folder}", clock=lambda: self.now)
        files.load()
        return files

    def dies(self, table: TableView, groups: Sequence[set[str]], *working: int) -> None:
        """A life that is killed while Spark works on these groups of a run."""
        files = self.begin()
        with suppress(Py4JNetworkError), files.tried(table, groups), ExitStack() as attempts:
            for number in working:
                attempts.enter_context(files.attempt(table, [number], lambda: False))
            raise Py4JNetworkError("no answer from Java side")

    def given_up(self, table: TableView) -> set[str]:
        found = self.begin().of(table, None, self.now)
        assert set(found.values()) <= {DIED}
        return set(found)


def view(folder: Path) -> TableView:
    folder.mkdir()
    return TableHistory(folder, 2).view()


@pytest.fixture
def lives(tmp_path: Path) -> Lives:
    return Lives(tmp_path / "checkpoint")


@pytest.fixture
def table(tmp_path: Path) -> TableView:
    return view(tmp_path / "table")


def test_one_death_gives_up_nothing(lives: Lives, table: TableView) -> None:
    lives.dies(table, [A, B], 0, 1)
    assert lives.given_up(table) == set()


def test_two_deaths_at_one_group_give_up_that_one_for_an_hour(lives: Lives, table: TableView) -> None:
    lives.dies(table, [A, B], 0, 1)
    lives.dies(table, [B, A, C], 0)
    assert lives.given_up(table) == B
    lives.dies(table, [A, C], 0)  # meanwhile others die twice
    assert lives.given_up(table) == A | B
    lives.now += AGAIN_SECONDS
    assert lives.given_up(table) == set()


def test_a_group_is_known_again_after_a_commit_of_a_writer(lives: Lives, table: TableView) -> None:
    lives.dies(table, [A], 0)
    lives.dies(table, [A | {"new"}], 0)
    assert lives.given_up(table) == A | {"new"}


def test_a_suspect_that_is_outlived_is_none_any_more(lives: Lives, table: TableView) -> None:
    lives.dies(table, [A, B], 0)
    second = lives.begin()
    with second.tried(table, [A, B]), second.attempt(table, [0], lambda: False):
        pass
    lives.dies(table, [A, B], 0)
    assert lives.given_up(table) == set()


def test_a_failure_is_outlived_too_but_the_end_of_spark_is_a_death(lives: Lives, table: TableView) -> None:
    for error, given_up in ((ValueError("damaged"), set()), (Py4JNetworkError("no answer from Java side"), A)):
        lives.dies(table, [A], 0)
        files = lives.begin()
        with pytest.raises(type(error)), files.tried(table, [A]), files.attempt(table, [0], lambda: False):
            raise error
        assert lives.given_up(table) == given_up


def test_suspects_are_worked_on_one_at_a_time_and_others_do_not_wait(lives: Lives, table: TableView) -> None:
    lives.dies(table, [A, B])
    files, waited, done = lives.begin(), threading.Event(), threading.Event()

    def work() -> None:
        with files.attempt(table, [1], waited.set):
            done.set()

    with files.tried(table, [A, B, C]):
        thread = threading.Thread(target=work)
        with files.attempt(table, [0], lambda: False):
            thread.start()
            assert waited.wait(30)
            assert not done.is_set()
            with files.attempt(table, [2], lambda: pytest.fail("it is no suspect")):
                pass
        thread.join(30)
        assert done.is_set()


def test_another_table_of_the_name_or_another_schema_is_tried(lives: Lives, table: TableView, tmp_path: Path) -> None:
    lives.dies(table, [A], 0)
    lives.dies(table, [A], 0)
    other = view(tmp_path / "other")
    assert other.name == table.name
    assert lives.given_up(table) == A
    assert lives.given_up(other) == set()


def test_what_was_given_up_for_another_reason_is_left_alone_by_the_next_process(lives: Lives, table: TableView) -> None:
    lives.begin().note(table, [GivenUp(frozenset(A), "a page is damaged")], lives.now)
    lives.now += 10
    files = lives.begin()
    assert dict(files.of(table, A, lives.now)) == dict.fromkeys(A, "a page is damaged")
    assert files.seconds_left(table.name, lives.now) == AGAIN_SECONDS - 10


def test_a_few_files_of_a_group_are_noted_before_a_suspect_dies(lives: Lives, table: TableView) -> None:
    lives.dies(table, [A])
    (row,) = json.loads((lives.folder / NAME).read_text())["files"]
    assert (len(row["paths"]), row["deaths"]) == (MOST_SHOWN, 1)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"files": [{}]}', '{"files": [{"paths": "a", "why": "b"}]}'])
def test_a_damaged_file_stops_nothing(
    lives: Lives, table: TableView, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    lives.folder.mkdir()
    (lives.folder / NAME).write_text(content)
    assert lives.given_up(table) == set()
    assert "is damaged" in caplog.text


def test_a_folder_that_cannot_be_written_stops_no_rewrite(lives: Lives, table: TableView) -> None:
    files = lives.begin()
    (lives.folder / NAME / "in the way").mkdir(parents=True)
    with files.tried(table, [A]), files.attempt(table, [0], lambda: False):
        files.note(table, [GivenUp(frozenset(B), "a page is damaged")], lives.now)
    assert set(files.of(table, None, lives.now)) == B


def test_a_suspect_is_one_until_its_last_task_is_outlived(lives: Lives, table: TableView) -> None:
    """A file group has several output tasks: the first one that ends well says nothing of the others."""
    lives.dies(table, [A, B], 0)
    second = lives.begin()
    trying = second.tried(table, [A, B])
    trying.__enter__()
    with second.attempt(table, [0], lambda: False):
        pass
    dies_in = second.attempt(table, [0], lambda: False)
    dies_in.__enter__()
    assert lives.given_up(table) == set(A)


def test_a_suspect_does_not_wait_for_another_once_its_run_is_over(lives: Lives, table: TableView) -> None:
    lives.dies(table, [A, B], 0)
    second = lives.begin()
    with (
        second.tried(table, [A, B]),
        second.attempt(table, [0], lambda: False),
        second.attempt(table, [1], lambda: True),
    ):
        pass
