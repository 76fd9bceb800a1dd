"""The ledger's state on local disk: a cache that is set aside if damaged, and never holds half a look."""

from __future__ import annotations

import errno
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactor.debt.ledger import SLOTS, advance
from compactor.errors import RetryError
from compactor.iceberg.tables import file_sizes
from compactor.manifests.cache import ManifestCache
from compactor.reasons import Reason
from compactor.settings.policy import PolicyValues
from compactor.storage import ledger_database
from compactor.storage.ledger_database import LedgerDatabase, opened_by
from tests.properties.examples import examples
from tests.properties.ledger_counts import DictionaryStore, counted_in
from tests.properties.table_history import TableHistory


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "that is new" / "ledger.sqlite"


@pytest.fixture
def database(file: Path) -> Iterator[LedgerDatabase]:
    opened = LedgerDatabase(file)
    yield opened
    opened.close()


def put(database: LedgerDatabase, name: str, head: str, slots: dict[int, bytes]) -> None:
    state = database.state(name)
    state.put_head(head)
    for number, packed in slots.items():
        state.put_slot(number, packed)
    state.save()


def kept(database: LedgerDatabase, name: str) -> tuple[str | None, dict[int, bytes]]:
    return database.head(name), database.slots(name)


# --- damage -----------------------------------------------------------------------------------------------------------


def no_database(file: Path) -> None:
    file.write_bytes(b"no database at all, " * 500)


def torn_page(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[4096:8192] = b"\xff" * 4096
    file.write_bytes(bytes(content))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:6000])


def counted(history: TableHistory, database: LedgerDatabase) -> str | None:
    """Look at the table once; returns why it was recounted."""
    view = history.view()
    state = database.state("t")
    update = advance(view, file_sizes(PolicyValues(), view.properties), state, ManifestCache(2**24), manifest_budget=5)
    state.save()
    assert counted_in(database.state("t")), "the table has files"
    return update.recount_reason


@pytest.mark.parametrize("damage", [no_database, torn_page, cut])
def test_a_damaged_database_is_set_aside_and_tables_are_counted_again(
    file: Path, tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [1, 2, 3])
    database = LedgerDatabase(file)
    assert counted(history, database) == "first_sight"
    database.close()
    database = LedgerDatabase(file)
    assert counted(history, database) is None
    database.close()
    damage(file)
    damaged = file.read_bytes()
    database = LedgerDatabase(file)
    assert counted(history, database) == "first_sight"
    (aside,) = file.parent.glob("ledger.sqlite.damaged-*[0-9]")
    assert aside.read_bytes() == damaged
    assert aside.name in caplog.text
    database.close()
    database = LedgerDatabase(file)
    assert counted(history, database) is None
    database.close()


def test_a_database_in_use_or_out_of_reach_is_not_called_damaged(file: Path) -> None:
    database = LedgerDatabase(file)
    put(database, "t", "head", {})
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    database.close()
    other.execute("BEGIN EXCLUSIVE")
    other.execute("DELETE FROM slots")
    with pytest.raises(OSError, match="locked"):
        LedgerDatabase(file)
    other.close()
    assert list(file.parent.glob("*damaged*")) == []
    again = LedgerDatabase(file)
    assert again.head("t") == "head"
    again.close()
    folder = file.parent / "a folder"
    folder.mkdir()
    with pytest.raises(OSError, match="cannot be opened"):
        LedgerDatabase(folder)
    assert folder.is_dir()


def test_a_database_that_is_damaged_while_it_is_open_is_set_aside_too(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [1, 2, 3])
    database = LedgerDatabase(file)
    assert counted(history, database) == "first_sight"
    database._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database._connection.execute("PRAGMA cache_size=0")
    content = file.read_bytes()
    with file.open("r+b") as damaged:  # in place: the connection has this file open
        damaged.write(bytes(len(content)))
    for _ in range(3):
        with suppress(RetryError):
            counted(history, database)
    assert counted(history, database) is None
    assert "damaged" in caplog.text
    assert len([*file.parent.glob("ledger.sqlite.damaged-*[0-9]")]) == 1
    database.close()


def refuse_to_rename(patch: pytest.MonkeyPatch) -> None:
    def refuse(file: Path, _target: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(file))

    patch.setattr(Path, "rename", refuse)


def refuse_to_create(patch: pytest.MonkeyPatch) -> None:
    def refuse(_file: Path) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    patch.setattr(ledger_database, "_opened", refuse)


@pytest.mark.parametrize("refuse", [refuse_to_rename, refuse_to_create])
def test_a_damaged_database_that_cannot_be_replaced_at_once_is_replaced_later(
    file: Path, refuse: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = LedgerDatabase(file)
    put(database, "t", "head", dict.fromkeys(range(SLOTS), b"x" * 100))
    database._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database._connection.execute("PRAGMA cache_size=0")
    content = file.read_bytes()
    with file.open("r+b") as damaged:
        damaged.write(bytes(len(content)))
    with monkeypatch.context() as patch:
        refuse(patch)
        for _ in range(3):
            with pytest.raises(RetryError, match="check the disk"):
                database.slots("t")
    put(database, "t", "anew", {1: b"y"})
    assert kept(database, "t") == ("anew", {1: b"y"})
    with monkeypatch.context() as patch:
        refuse(patch)
        assert kept(database, "t") == ("anew", {1: b"y"})
    database.close()
    with pytest.raises(RetryError):
        database.head("t")


def test_a_database_that_was_closed_is_not_opened_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = LedgerDatabase(file)
    with monkeypatch.context() as patch:
        refuse_to_create(patch)
        database._set_aside(sqlite3.DatabaseError("damage"), database.generation)
    database.close()
    with pytest.raises(RetryError):
        database.head("t")


def test_a_look_that_began_before_the_damage_saves_nothing_and_reads_nothing_new(database: LedgerDatabase) -> None:
    """Its head would belong to slots that are gone: the table's debt would be counted as none."""
    put(database, "t", "before", {1: b"x", 2: b"y"})
    look = database.state("t")
    assert look.slot(1) == b"x"
    database._set_aside(sqlite3.DatabaseError("damage"), database.generation)
    for read in (look.head, lambda: look.slot(2), lambda: list(look.slots())):
        with pytest.raises(RetryError, match="set aside"):
            read()
    look.put_head("after")
    look.put_slot(1, b"z")
    with pytest.raises(RetryError, match="set aside"):
        look.save()
    assert kept(database, "t") == (None, {})
    put(database, "t", "anew", {1: b"x"})
    assert kept(database, "t") == ("anew", {1: b"x"})


def test_damage_that_two_looks_find_sets_one_database_aside(database: LedgerDatabase, file: Path) -> None:
    found_in = database.generation
    database._set_aside(sqlite3.DatabaseError("damage"), found_in)
    put(database, "t", "anew", {})
    database._set_aside(sqlite3.DatabaseError("damage"), found_in)
    assert database.head("t") == "anew"
    assert len([*file.parent.glob("ledger.sqlite.damaged-*[0-9]")]) == 1


# --- saving -----------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_a_retry_error_and_nothing_of_the_look_is_saved(database: LedgerDatabase) -> None:
    put(database, "t", "before", {1: b"x", 2: b"y"})
    before = kept(database, "t")
    (pages,) = database._connection.execute("PRAGMA page_count").fetchone()
    database._connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    state = database.state("t")
    state.clear()
    state.put_head("after")
    for number in range(SLOTS):
        state.put_slot(number, b"packed" * 5_000)
    with pytest.raises(RetryError, match="check the disk") as error:
        state.save()
    assert error.value.reason is Reason.NO_SPACE
    assert kept(database, "t") == before
    database._connection.execute("PRAGMA max_page_count = 1000000")
    put(database, "t", "later", {1: b"z"})
    assert kept(database, "t") == ("later", {1: b"z", 2: b"y"})


def test_an_interrupted_save_saves_nothing(database: LedgerDatabase) -> None:
    put(database, "t", "before", {1: b"x", 2: b"y"})
    before = kept(database, "t")
    state = database.state("t")
    state.clear()
    state.put_head("after")
    state.put_slot(3, b"z")
    state.put_slot(4, object())  # type: ignore[arg-type]
    with pytest.raises(RetryError):
        state.save()
    assert kept(database, "t") == before


def test_a_closed_database_is_a_retry_error(file: Path) -> None:
    database = LedgerDatabase(file)
    database.close()
    with pytest.raises(RetryError, match="cannot be read"):
        database.head("t")
    with pytest.raises(RetryError, match="cannot be saved"):
        put(database, "t", "head", {})


def test_a_look_that_changed_nothing_writes_nothing(database: LedgerDatabase) -> None:
    put(database, "t", "head", {1: b"x"})
    state, statements = database.state("t"), list[str]()
    assert (state.head(), state.slot(1), list(state.slots())) == ("head", b"x", [(1, b"x")])
    database._connection.set_trace_callback(statements.append)
    state.save()
    assert statements == []


def test_a_look_writes_only_the_slots_that_it_changed(database: LedgerDatabase) -> None:
    put(database, "t", "head", dict.fromkeys(range(SLOTS), b"x"))
    changes = database._connection.total_changes
    put(database, "t", "next", {7: b"y"})
    assert database._connection.total_changes - changes <= 4


# --- several tables ---------------------------------------------------------------------------------------------------


NAMES = st.sampled_from(["t", "T", "t ", "", '["lake", "db", "t"]', "ü", "t%", "t_"])
SAVES = st.lists(
    st.tuples(
        NAMES,
        st.booleans(),
        st.none() | st.text(max_size=3),
        st.dictionaries(st.integers(0, 3), st.none() | st.binary(max_size=3), max_size=3),
    ),
    max_size=12,
)


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(saves=SAVES)
def test_tables_do_not_mix(
    tmp_path_factory: pytest.TempPathFactory, saves: list[tuple[str, bool, str | None, dict[int, bytes | None]]]
) -> None:
    """Each name has the state that a store of its own would have."""
    database, alone = LedgerDatabase(tmp_path_factory.mktemp("tables") / "l.sqlite"), dict[str, DictionaryStore]()
    for name, cleared, head, slots in saves:
        state, single = database.state(name), alone.setdefault(name, DictionaryStore())
        for store in (state, single):
            if cleared:
                store.clear()
            if head is not None:
                store.put_head(head)
            for number, packed in slots.items():
                store.put_slot(number, packed)
        state.save()
    for name, single in alone.items():
        assert database.head(name) == single.head()
        assert database.slots(name) == dict(single.slots())
    database.close()


def test_a_forgotten_table_is_gone_and_the_others_stay(file: Path, database: LedgerDatabase) -> None:
    for name in ("t", "tt"):
        put(database, name, "head", {0: b"x", SLOTS - 1: b"y"})
    database.forget("t")
    database.forget("never seen")
    assert database.names() == ["tt"]
    with sqlite3.connect(file) as other:
        assert other.execute("SELECT name, count(*) FROM slots GROUP BY name").fetchall() == [("tt", 2)]
        assert other.execute("SELECT name FROM heads").fetchall() == [("tt",)]
    other.close()


def test_threads_that_look_at_different_tables_lose_nothing(file: Path) -> None:
    database = LedgerDatabase(file)
    failures: list[BaseException] = []
    rounds = 40

    def look(name: str) -> None:
        try:
            for number in range(rounds):
                state = database.state(name)
                assert state.head() == (f"{name} {number - 1}" if number else None)
                state.put_head(f"{name} {number}")
                state.put_slot(number % 7, name.encode() * number)
                state.save()
        except BaseException as error:  # noqa: BLE001 - a thread's failure must reach the test
            failures.append(error)

    threads = [threading.Thread(target=look, args=(f"t{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    database.close()
    database = LedgerDatabase(file)
    for number in range(8):
        name = f"t{number}"
        last = {slot: max(each for each in range(rounds) if each % 7 == slot) for slot in range(7)}
        assert kept(database, name) == (f"{name} {rounds - 1}", {s: name.encode() * each for s, each in last.items()})
    database.close()


# --- one holder of the lease after the other --------------------------------------------------------------------------


def test_a_holder_goes_on_from_the_state_of_one_that_is_paused_in_a_transaction(file: Path) -> None:
    first = opened_by(file, 1)
    put(first, "t", "head 1", {3: b"three"})
    with first._connection as paused:  # SIGSTOP in the middle of a save: its lock is held
        paused.execute("INSERT OR REPLACE INTO heads VALUES ('t', 'half')")
        second = opened_by(file, 2)
        assert kept(second, "t") == ("head 1", {3: b"three"})
        put(second, "t", "head 2", {4: b"four"})
    put(first, "t", "of the paused", {3: b"late"})  # it has resumed
    first.close()
    assert kept(second, "t") == ("head 2", {3: b"three", 4: b"four"})
    second.close()
    third = opened_by(file, 3)
    assert kept(third, "t") == ("head 2", {3: b"three", 4: b"four"})
    third.close()
    assert [path.name for path in file.parent.iterdir()] == ["ledger.3.sqlite"]


def test_the_state_of_a_service_without_a_lease_is_taken_over(file: Path) -> None:
    before = LedgerDatabase(file)
    put(before, "t", "head", {1: b"one"})
    before.close()
    database = opened_by(file, 7)
    assert kept(database, "t") == ("head", {1: b"one"})
    database.close()
    assert not file.exists()


def test_tokens_that_began_anew_and_a_copy_that_was_cut_short_cost_no_state(file: Path) -> None:
    for token, head in ((1, "stale"), (12, "newest")):
        database = LedgerDatabase(file.with_name(f"ledger.{token}.sqlite"))
        put(database, "t", head, {})
        database.close()
    file.with_suffix(".copy").write_bytes(b"half")
    database = opened_by(file, 1)
    assert kept(database, "t") == ("newest", {})
    database.close()
    assert [path.name for path in file.parent.iterdir()] == ["ledger.1.sqlite"]


def test_without_room_for_a_copy_the_service_starts_with_an_empty_state_and_leaves_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = opened_by(file, 1)
    put(before, "t", "head", {1: b"one"})
    before.close()
    for left in ("ledger.2.sqlite-wal", "ledger.3.sqlite-shm"):  # of start-ups that ended half-way
        file.with_name(left).write_bytes(b"left over")

    def full(_source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    database = opened_by(file, 4)
    assert kept(database, "t") == (None, {})
    database.close()
    assert "No space left on device" in caplog.text
    assert [path.name for path in file.parent.iterdir()] == ["ledger.4.sqlite"]
