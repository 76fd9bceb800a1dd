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

from compactor.errors import GiveUpError, RetryError
from compactor.iceberg.tables import TableView
from compactor.patience.holds import Holds, Key, What
from compactor.runs.file_holds import DIED, HOUR, MOST_SHOWN, NAME, UNANSWERED, FileHolds
from tests.properties.table_history import TableHistory

A, B, C = ({f"{name}{number}" for number in range(30)} for name in "abc")


@dataclass
class Lives:
    """Processes one after the other on one checkpoint. Each dies with its JVM: the kernel kills both, or one ends the
    other.
    """

    folder: Path
    now: float = 1000.0

    def begin(self) -> FileHolds:
        files = FileHolds(Holds(lambda: self.now), f"file://{self.folder}")
        files.load()
        return files

    def dies(self, table: TableView, groups: Sequence[set[str]], *working: int) -> None:
        """A life that is killed while Spark works on these groups of a run."""
        files = self.begin()
        suspects = files.suspects(table.name, groups)
        with suppress(Py4JNetworkError), files.under_way(table, groups), ExitStack() as attempts:
            for number in suspects.intersection(working):
                attempts.enter_context(files.alone(table, {number: groups[number]}, lambda: False))
            raise Py4JNetworkError("no answer from Java side")

    def given_up(self, table: TableView) -> set[str]:
        found = self.begin().left_out(table)
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
    lives.now += HOUR
    assert lives.given_up(table) == set()


def test_a_group_is_known_again_after_a_commit_of_a_writer(lives: Lives, table: TableView) -> None:
    lives.dies(table, [A], 0)
    lives.dies(table, [A | {"new"}], 0)
    assert lives.given_up(table) == A | {"new"}


def test_a_suspect_that_is_outlived_is_none_any_more(lives: Lives, table: TableView) -> None:
    lives.dies(table, [A, B], 0)
    second = lives.begin()
    with second.under_way(table, [A, B]), second.alone(table, {0: A}, lambda: False):
        pass
    lives.dies(table, [A, B], 0)
    assert lives.given_up(table) == set()


def test_a_failure_is_outlived_too_but_the_end_of_spark_is_a_death(lives: Lives, table: TableView) -> None:
    for error, given_up in ((ValueError("damaged"), set()), (Py4JNetworkError("no answer from Java side"), A)):
        lives.dies(table, [A], 0)
        files = lives.begin()
        with pytest.raises(type(error)), files.under_way(table, [A]), files.alone(table, {0: A}, lambda: False):
            raise error
        assert lives.given_up(table) == given_up


def test_suspects_are_worked_on_one_at_a_time_and_others_do_not_wait(lives: Lives, table: TableView) -> None:
    lives.dies(table, [A, B])
    files, waited, done = lives.begin(), threading.Event(), threading.Event()

    def work() -> None:
        with files.alone(table, {1: B}, waited.set):
            done.set()

    with files.under_way(table, [A, B, C]):
        thread = threading.Thread(target=work)
        with files.alone(table, {0: A}, lambda: False):
            thread.start()
            assert waited.wait(30)
            assert not done.is_set()
            with files.alone(table, {}, lambda: pytest.fail("it is no suspect")):
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
    lives.begin().note(table, [(A, GiveUpError("a page is damaged"))], What.FILES)
    lives.now += 10
    files = lives.begin()
    assert files.left_out(table) == dict.fromkeys(A, "a page is damaged")
    assert files.until(table.name, What.FILES) == lives.now - 10 + HOUR


def test_what_got_no_answer_is_left_out_for_longer_each_time_also_beside_new_files(
    lives: Lives, table: TableView
) -> None:
    files, tries = lives.begin(), 8
    for number in range(1, tries):
        files.note(table, [(A | {f"new{number}"}, RetryError("503"))], What.FILES)
        files.note(table, [(B, RetryError("503"))], What.SEARCH)
        until = files.until(table.name, What.FILES)
        assert until == lives.now + UNANSWERED.seconds(number)
        assert set(files.left_out(table)) == A | {f"new{number}"}
        lives.now = until
        assert files.left_out(table) == {}
    assert UNANSWERED.seconds(tries) < HOUR, "what was given up waits for an hour"
    assert files.left_out(table, given_up=True) == {}


def test_what_the_file_tells_people_is_what_a_time_will_end(lives: Lives, table: TableView) -> None:
    files = lives.begin()
    files.holds.hold(Key(What.TABLE, table.name), "the lock is held", until=lives.now + 30)
    files.holds.hold(Key(What.LOOK, table.name), "nothing to do")
    files.tell()
    (told,) = json.loads((lives.folder / NAME).read_text())["waits"]
    assert told == {
        "what": "table", "of": str(table.name), "part": "", "why": "the lock is held", "until": lives.now + 30
    }  # fmt: skip
    assert not lives.begin().holds.waits, "a restart tries tables again"


def test_a_few_files_of_a_group_are_noted_before_a_suspect_dies(lives: Lives, table: TableView) -> None:
    lives.dies(table, [A])
    (row,) = json.loads((lives.folder / NAME).read_text())["files"]
    assert (len(row["paths"]), row["what"]) == (MOST_SHOWN, What.SUSPECT)


def test_a_folder_that_cannot_be_written_stops_no_rewrite(lives: Lives, table: TableView) -> None:
    files = lives.begin()
    (lives.folder / NAME / "in the way").mkdir(parents=True)
    with files.under_way(table, [A]), files.alone(table, {0: A}, lambda: False):
        files.note(table, [(B, GiveUpError("a page is damaged"))], What.FILES)
    assert set(files.left_out(table)) == B


def test_a_suspect_is_one_until_its_last_task_is_outlived(lives: Lives, table: TableView) -> None:
    """A file group has several output tasks: the first one that ends well says nothing of the others."""
    lives.dies(table, [A, B], 0)
    second = lives.begin()
    with suppress(Py4JNetworkError), second.under_way(table, [A, B]):
        with second.alone(table, {0: A}, lambda: False):
            pass
        with second.alone(table, {0: A}, lambda: False):
            raise Py4JNetworkError("no answer from Java side")
    assert lives.given_up(table) == set(A)


def test_a_suspect_does_not_wait_for_another_once_its_run_is_over(lives: Lives, table: TableView) -> None:
    lives.dies(table, [A, B], 0)
    second = lives.begin()
    with (
        second.under_way(table, [A, B]),
        second.alone(table, {0: A}, lambda: False),
        second.alone(table, {1: B}, lambda: True),
    ):
        pass


def test_what_was_given_up_is_told_from_what_got_no_answer(lives: Lives, table: TableView) -> None:
    files = lives.begin()
    files.note(table, [(A, GiveUpError("a page is damaged")), (B, RetryError("503"))], What.FILES)
    assert set(files.left_out(table)) == A | B
    assert set(files.left_out(table, given_up=True)) == A
