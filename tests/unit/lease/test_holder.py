"""A service while its store does not answer: a standby goes on waiting, a holder commits nothing until it can renew."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from compactor.errors import RetryError, StoppedError
from compactor.lease import holder as holder_module
from compactor.lease.decisions import VALID_SECONDS
from compactor.lease.holder import LeaseHolder
from compactor.lease.local_store import LocalLeaseStore
from compactor.lease.owner import Owner
from compactor.lease.store import Stored, Version
from compactor.reasons import Reason

ELSEWHERE = replace(Owner.this_process(), host="another.host")


class Store(LocalLeaseStore):
    """A local store that fails, hangs, or loses its answers where the test says so."""

    failing = False
    loses_answers = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.hanging = threading.Event()
        self.hanging.set()

    def read(self) -> Stored | None:
        self._answer()
        return super().read()

    def replace(self, content: bytes, expected: Version | None) -> Version | None:
        self._answer()
        version = super().replace(content, expected)
        if self.loses_answers:
            raise OSError("connection reset")
        return version

    def _answer(self) -> None:
        self.hanging.wait(60)
        if self.failing:
            raise OSError("no route to the store")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(holder_module, "RENEW_SECONDS", 0.02)
    monkeypatch.setattr(holder_module, "POLL_SECONDS", 0.02)
    return Store(tmp_path)


def until(seen: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_store_that_does_not_answer_at_the_start_ends_it(store: Store) -> None:
    store.failing = True
    with pytest.raises(RetryError, match=r"no route to the store; check state\.checkpoint"):
        LeaseHolder(store).acquire()


def test_a_standby_bears_a_store_that_fails_for_a_while(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    first, second = LeaseHolder(store, owner=ELSEWHERE), LeaseHolder(Store(Path(store.location)))
    with caplog.at_level(logging.INFO, logger="firnline"):
        assert second._store is not store
        first.acquire()
        waits = threading.Thread(target=second.acquire, daemon=True)
        waits.start()
        until(lambda: second.waiting)
        second._store.failing = True  # type: ignore[attr-defined]
        until(lambda: second._problem)
        second._store.failing = False  # type: ignore[attr-defined]
        until(lambda: not second._problem)
        first.release()
        waits.join(60)
    assert second.active
    second.release()
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if line.startswith("standby: another.host")]) == 1
    assert said.count("no route to the store") == 1
    assert len([line for line in said if line.endswith("can be read and written again")]) == 1
    assert len([line for line in said if line.startswith("active: ")]) == 2


def test_a_holder_commits_nothing_while_it_cannot_renew_and_then_goes_on(store: Store) -> None:
    now = [0.0]
    holder = LeaseHolder(store, clock=lambda: now[0])
    holder.acquire()
    assert (holder.active, holder.trouble) == (True, "")
    store.failing = True
    now[0] += VALID_SECONDS + 1
    until(lambda: "no route to the store" in holder.trouble)
    assert not holder.active
    with pytest.raises(RetryError) as caught:
        holder.confirm()
    assert caught.value.reason == Reason.STATE_UNWRITABLE
    holder.check()
    store.failing = False
    until(lambda: holder.active)
    holder.confirm()
    assert holder.trouble == ""
    holder.release()
    with pytest.raises(StoppedError):
        holder.confirm()


def test_a_renewal_whose_answer_was_lost_counts_and_the_next_goes_on_from_it(store: Store) -> None:
    holder = LeaseHolder(store)
    assert holder.look()
    store.loses_answers = True
    with pytest.raises(RetryError):
        holder.confirm()
    store.loses_answers = False
    holder.confirm()
    holder.confirm()


def test_a_lease_that_was_taken_although_the_answer_was_lost_is_ours_at_the_next_look(store: Store) -> None:
    holder = LeaseHolder(store)
    store.loses_answers = True
    with pytest.raises(OSError, match="reset"):
        holder.look()
    store.loses_answers = False
    assert holder.look()
    assert holder.token == 2


def test_a_store_that_hangs_does_not_hang_those_who_want_to_commit(store: Store) -> None:
    holder = LeaseHolder(store)
    holder.acquire()
    store.hanging.clear()
    until(holder._lock.locked)
    with pytest.raises(RetryError, match="does not answer"), holder._locked(0.05):
        pass
    store.hanging.set()
    holder.confirm()
    holder.release()
