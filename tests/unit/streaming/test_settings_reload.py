"""The settings file is read again when it changes or when somebody asks; what cannot be used changes nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.lease import holder as holder_module
from compactor.lease.holder import LeaseHolder
from compactor.lease.local_store import LocalLeaseStore
from compactor.lease.owner import Owner
from compactor.settings.current import CurrentSettings
from compactor.settings.tree import Settings, load_settings
from streaming.logs.set_up import change_level
from streaming.service.service import Service
from streaming.service.settings_reload import LOOK_SECONDS, SettingsReload

START = 'catalogs: {lake: {type: sql, uri: "sqlite:///:memory:"}}\ntables: {include: [a.*]}\n'
EXCLUDES = START.replace("[a.*]}", "[a.*], exclude: [a.secret]}")
ELSEWHERE = replace(Owner.this_process(), host="another.host")


class Place:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "firnline.yaml"
        self.file.write_text(START)
        self.steady = 0.0
        self.applied: list[tuple[Settings, Settings]] = []
        self.current = CurrentSettings(load_settings(self.file, {}))
        self.reload = SettingsReload(self.file, self.current)
        self.reload.ticks = lambda: self.steady
        self.reload._looked_at = 0.0

    def check(self, *, at_once: bool = False) -> None:
        change = self.reload.check(at_once=at_once)
        self.applied += [] if change is None else [change]

    def looks(self, number: int) -> None:
        for _ in range(number):
            self.steady += LOOK_SECONDS
            self.check()

    @property
    def include(self) -> tuple[str, ...]:
        return self.current.tables.include


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(holder_module, "POLL_SECONDS", 0.01)
    return Place(tmp_path)


def until(seen: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_changed_file_is_in_force_once_it_has_stayed_the_same(place: Place) -> None:
    place.file.write_text(START.replace("a.*", "b.*"))
    place.check()
    place.looks(1)
    assert place.include == ("a.*",), "an editor may still be writing it"
    place.file.write_text(START.replace("a.*", "c.*"))
    place.looks(1)
    assert place.include == ("a.*",)
    place.looks(1)
    assert place.include == ("c.*",)
    place.looks(3)
    ((before, now),) = place.applied
    assert (before.tables.include, now.tables.include) == (("a.*",), ("c.*",))


def test_a_standby_that_becomes_active_takes_what_has_changed_while_it_waited(place: Place) -> None:
    place.check(at_once=True)
    assert place.applied == []
    place.file.write_text(START.replace("a.*", "b.*"))
    place.check(at_once=True)
    assert place.include == ("b.*",)
    place.looks(3)
    assert len(place.applied) == 1


def test_a_waiting_service_hears_the_signal(place: Place, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    active = LeaseHolder(LocalLeaseStore(checkpoint / "lease"), owner=ELSEWHERE)
    active.acquire()
    with place.file.open("a") as file:
        file.write("http: {port: 0}\n")
    service = Service(load_settings(place.file, {}), path=place.file)
    waiting = threading.Thread(target=service._become_active, args=(f"file://{checkpoint}",), daemon=True)
    waiting.start()
    try:
        until(lambda: service._state.parts.lease is not None and service._state.parts.lease.waiting)
        place.file.write_text(EXCLUDES + "http: {port: 0}\n")
        service.reload()
        until(lambda: service._state.controls.settings.tables.exclude == ("a.secret",))
        place.file.write_text("tables: {")
        service.reload()
        until(lambda: service._state.settings_refused)
    finally:
        active.release()
        waiting.join(60)
    service._state.controls.catch_up()
    service.stop()
    assert service._state.controls.settings.tables.exclude == ("a.secret",)


def test_a_signal_reads_it_at_once(place: Place) -> None:
    place.file.write_text(START.replace("a.*", "b.*"))
    place.reload.ask()
    place.check()
    assert place.include == ("b.*",)
    place.looks(3)
    assert len(place.applied) == 1


@pytest.mark.parametrize("content", ["catalogs: {lake: rest}", "{", "", "http: {port: !!bool x}", None])
def test_a_file_that_cannot_be_used_changes_nothing_and_is_reported_once(
    place: Place, caplog: pytest.LogCaptureFixture, content: str | None
) -> None:
    place.file.unlink() if content is None else place.file.write_text(content)
    with caplog.at_level(logging.INFO, "firnline"):
        place.looks(5)
    assert place.include == ("a.*",)
    assert caplog.text.count("settings not reloaded: the old ones hold") == 1
    assert "not valid" in place.reload.trouble
    place.file.write_text(START)
    place.looks(2)
    assert place.reload.trouble == ""
    assert place.applied == []


def test_what_needs_a_restart_is_named_without_its_value(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    secret = START.replace('"}}', '", password: hunter2}}')
    place.file.write_text(secret + "http: {port: 1}\n")
    with caplog.at_level(logging.INFO, "firnline"):
        place.looks(2)
    assert place.reload.trouble == "need a restart: catalogs.lake.password, http.port"
    assert place.applied == []
    assert "hunter2" not in " ".join(str(record.__dict__) for record in caplog.records)


def test_the_level_changes_unless_verbose_has_set_another() -> None:
    log = logging.getLogger("firnline")
    before = log.level
    try:
        log.setLevel("INFO")
        change_level("INFO", "WARNING")
        assert log.level == logging.WARNING
        log.setLevel("DEBUG")
        change_level("INFO", "ERROR")
        assert log.level == logging.DEBUG
    finally:
        log.setLevel(before)
