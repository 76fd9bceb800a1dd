"""What a person has paused stays paused: through restarts, damage and stores that do not answer."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.errors import InputError, RetryError
from compactor.runs.pauses import DAMAGED, DAY_SECONDS, SILENT_SECONDS, Pause, PauseFolder, PauseWatch, pause_of
from compactor.table_names import TableName

LATE = TableName("lake", ("db",), "late")
EVENTS, ORDERS = TableName("lake", ("db",), "events"), TableName("lake", ("db",), "orders")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    return folder


def folder(checkpoint: Path) -> PauseFolder:
    return PauseFolder(f"file://{checkpoint}")


class Clocks:
    now = 1_000.0
    steady = 0.0

    def watch(self, checkpoint: Path, read_seconds: float = 3600.0, tables: Collection[TableName] = ()) -> PauseWatch:
        made = PauseWatch(folder(checkpoint), lambda: self.now, lambda: self.steady, read_seconds, lambda: tables)
        made.start()
        return made


# --- the decision -----------------------------------------------------------------------------------------------------


def test_a_pause_holds_what_its_glob_matches_until_it_ends() -> None:
    pauses = (Pause("db.ev*", 0.0, 10.0), Pause("sea.*", 0.0))
    assert pause_of(EVENTS, pauses, 9.9) == pauses[0]
    assert pause_of(EVENTS, pauses, 10.0) is None
    assert pause_of(ORDERS, pauses, 5.0) is None
    assert pause_of(ORDERS, (Pause("*", 0.0),), 1e12) is not None


# --- the documents ----------------------------------------------------------------------------------------------------


@given(
    st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=20),
    st.none() | st.floats(0, 1e11),
    st.text(st.characters(exclude_categories=["C"]), max_size=50),
)
def test_a_pause_is_read_as_it_was_written_whatever_its_glob(
    tmp_path_factory: pytest.TempPathFactory, glob: str, until: float | None, reason: str
) -> None:
    known, pause = folder(tmp_path_factory.mktemp("checkpoint")), Pause(glob, 12.5, until, reason)
    known.add(pause)
    assert known.load() == (pause,)
    known.remove(glob)
    assert known.load() == ()


def test_two_people_who_pause_do_not_lose_each_others_pause(checkpoint: Path) -> None:
    one, other = folder(checkpoint), folder(checkpoint)
    assert one.load() == other.load() == ()
    one.add(Pause("db.events", 1.0))
    other.add(Pause("db.orders", 2.0))
    one.add(Pause("db.events", 3.0, None, "again"))
    assert one.load() == (Pause("db.events", 3.0, None, "again"), Pause("db.orders", 2.0))
    other.remove("db.events")
    other.remove("db.events")
    assert one.load() == (Pause("db.orders", 2.0),)


ODD = '{"version": 1, "since": 1, "until": "never", "reason": ""}'


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", "{}", ODD, *(ODD.replace('"never"', bad) for bad in ("true", "NaN")), "\ud800"]
)
def test_a_damaged_document_pauses_what_its_name_says_and_says_so(checkpoint: Path, content: str) -> None:
    folder(checkpoint).add(Pause("db.ev*", 1.0, 2.0, "maintenance"))
    (document,) = (checkpoint / "pauses").iterdir()
    document.write_bytes(content.encode("utf-8", "surrogatepass"))
    (pause,) = folder(checkpoint).load()
    assert (pause.glob, pause.until) == ("db.ev*", None)
    assert "damaged" in pause.reason
    assert pause_of(EVENTS, (pause,), 1e9)
    assert not pause_of(ORDERS, (pause,), 1e9)


def test_a_document_that_begins_at_no_date_is_damaged(checkpoint: Path) -> None:
    (checkpoint / "pauses").mkdir()
    (checkpoint / "pauses" / "%2A.json").write_text('{"version": 1, "since": 1e300, "until": 2, "reason": ""}')
    assert folder(checkpoint).load() == (Pause("*", 0.0, None, DAMAGED),)


def test_files_that_are_no_pauses_pause_nothing(checkpoint: Path) -> None:
    (checkpoint / "pauses").mkdir()
    (checkpoint / "pauses" / "%2A.json-1234.tmp").write_text("half a pause")
    assert folder(checkpoint).load() == ()


def test_a_document_has_a_version(checkpoint: Path) -> None:
    folder(checkpoint).add(Pause("*", 1.0))
    (document,) = (checkpoint / "pauses").iterdir()
    assert json.loads(document.read_text()) == {"version": 1, "since": 1.0, "until": None, "reason": ""}


def test_without_a_checkpoint_nobody_would_see_the_pause(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run this command where the service runs"):
        folder(tmp_path / "elsewhere").check_place()
    assert not (tmp_path / "elsewhere").exists()


def test_a_glob_that_fits_no_file_name_is_refused(checkpoint: Path) -> None:
    with pytest.raises(InputError, match="write a shorter glob"):
        folder(checkpoint).add(Pause("db." + "x" * 300, 1.0))


# --- the watch --------------------------------------------------------------------------------------------------------


def test_the_watch_follows_the_documents(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    folder(checkpoint).add(Pause("db.events", 0.0))
    watch = clocks.watch(checkpoint)
    assert watch.paused(EVENTS)
    assert not watch.paused(ORDERS)
    folder(checkpoint).add(Pause("db.orders", 0.0, 1_100.0, "repair"))
    folder(checkpoint).remove("db.events")
    with caplog.at_level(logging.INFO):
        watch.read()
    assert not watch.paused(EVENTS)
    assert [each.glob for each in watch.current] == ["db.orders"]
    assert "paused: db.orders (repair)" in caplog.text
    assert "resumed: db.events" in caplog.text
    clocks.now = 1_100.0
    assert not watch.paused(ORDERS)
    assert watch.current == ()


def test_the_watch_knows_for_a_day_until_when_a_table_was_held(checkpoint: Path) -> None:
    clocks = Clocks()
    folder(checkpoint).add(Pause("db.ev*", 0.0))
    watch = clocks.watch(checkpoint)
    clocks.now += 500
    watch.read()
    folder(checkpoint).remove("db.ev*")
    clocks.now += 5
    watch.read()
    assert (watch.held_until(EVENTS), watch.held_until(ORDERS)) == (1_500.0, 0.0)
    clocks.now += DAY_SECONDS
    watch.read()
    assert watch.held_until(EVENTS) == 0.0


def test_the_thread_reads_by_itself(checkpoint: Path) -> None:
    watch = Clocks().watch(checkpoint, read_seconds=0.01)
    folder(checkpoint).add(Pause("*", 0.0))
    done = threading.Event()
    for _ in range(1000):
        if watch.paused(EVENTS):
            done.set()
            break
        done.wait(0.01)
    assert done.is_set()
    watch.stop()


def test_what_was_read_last_holds_while_the_store_does_not_answer(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clocks = Clocks()
    folder(checkpoint).add(Pause("*", 0.0))
    watch = clocks.watch(checkpoint)
    there = checkpoint / "pauses"
    there.rename(checkpoint / "aside")
    there.write_text("a file, no folder")
    clocks.steady = SILENT_SECONDS + 60
    for _ in range(3):
        watch.read()
    assert watch.paused(EVENTS)
    assert "2 min" in watch.trouble
    assert caplog.text.count("the pauses that were read last hold") == 1
    there.unlink()
    watch.read()
    assert not watch.paused(EVENTS)
    assert watch.trouble == ""


def test_a_service_that_cannot_know_what_is_paused_does_not_start(checkpoint: Path) -> None:
    (checkpoint / "pauses").write_text("a file, no folder")
    with pytest.raises(RetryError, match=r"check state\.checkpoint"):
        Clocks().watch(checkpoint)


@pytest.mark.parametrize(("tables", "warned"), [((EVENTS, ORDERS), True), ((), False), ((EVENTS, LATE), False)])
def test_a_pause_of_no_known_table_is_a_warning(
    checkpoint: Path, caplog: pytest.LogCaptureFixture, tables: tuple[TableName, ...], warned: bool
) -> None:
    watch = Clocks().watch(checkpoint, tables=tables)
    folder(checkpoint).add(Pause("db.lat?", 1.0))
    watch.read()
    watch.read()
    assert caplog.text.count("the pause of db.lat? matches none of the 2 tables that are known") == warned
