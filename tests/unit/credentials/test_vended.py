"""A vended credential is renewed when it is due, by one thread, and not more often."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from compactor.credentials.credential import Credential
from compactor.credentials.vended import PATIENCE_SECONDS, VendedCredential, shared
from compactor.errors import RetryError
from compactor.redaction import hide

LIFETIME = 900.0


def properties(number: int, end: float | None) -> dict[str, str]:
    told = {} if end is None else {"s3.session-token-expires-at-ms": str(int(end * 1000))}
    return {"s3.access-key-id": f"key-{number}", "s3.secret-access-key": f"secret-key-number-{number}", **told}


@dataclass
class Catalog:
    """A source on a clock of its own."""

    now: float = 1000.0
    asked: int = 0
    down: bool = False
    repeats: bool = False
    tells: bool = True
    slept: list[float] = field(default_factory=list)
    asking: threading.Barrier | None = None
    endpoint: str | None = None

    def __str__(self) -> str:
        return "catalog lake"

    def __hash__(self) -> int:
        return id(self)

    def ask(self) -> Mapping[str, str]:
        self.asked += 1
        if self.asking is not None:
            self.asking.wait()
        if self.down:
            raise RetryError("no answer: connection refused")
        return properties(0 if self.repeats else self.asked, self.now + LIFETIME if self.tells else None)

    def vended(self) -> VendedCredential:
        first = Credential.of(properties(0, self.now + LIFETIME if self.tells else None), self.now)
        assert first is not None
        return VendedCredential(self, first, lambda: self.now, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def key(credential: Credential) -> str:
    return dict(credential.properties)["s3.access-key-id"]


def test_it_is_asked_for_once_when_it_is_due() -> None:
    catalog = Catalog()
    vended = catalog.vended()
    assert key(vended.current()) == "key-0"
    catalog.now += LIFETIME - 200
    assert [key(vended.current()) for _ in range(3)] == ["key-1"] * 3
    assert catalog.asked == 1
    catalog.now += 10 * LIFETIME
    assert key(vended.current()) == "key-2"


def test_while_the_old_one_is_valid_a_silent_catalog_delays_nothing_and_is_not_asked_at_each_request() -> None:
    catalog = Catalog()
    vended = catalog.vended()
    catalog.down = True
    catalog.now += LIFETIME - 100
    assert [key(vended.current()) for _ in range(5)] == ["key-0"] * 5
    assert (catalog.asked, catalog.slept) == (1, [])
    catalog.now += 11
    catalog.down = False
    assert key(vended.current()) == "key-2"


def test_once_it_is_over_the_work_waits_for_another_but_not_for_ever() -> None:
    catalog = Catalog()
    vended = catalog.vended()
    catalog.down = True
    catalog.now += LIFETIME
    with pytest.raises(RetryError, match=r"catalog lake cannot be asked for another: no answer") as error:
        vended.current()
    assert error.value.reason == "credentials_expired"
    assert PATIENCE_SECONDS / 2 < sum(catalog.slept) <= PATIENCE_SECONDS
    assert catalog.asked > 5


def test_threads_that_wait_for_one_credential_give_up_together() -> None:
    """Eight uploads of one output: each after its own minute, they would keep its slot for eight."""
    catalog = Catalog()
    vended = catalog.vended()
    catalog.down = True
    catalog.now += LIFETIME
    together = threading.Barrier(8)
    real, failures = vended._lock, list[RetryError]()

    class AllWait:
        def acquire(self, *, blocking: bool = True) -> bool:
            together.wait()  # all have seen that it is over
            return real.acquire(blocking=blocking)

        def release(self) -> None:
            real.release()

    vended._lock = cast("Any", AllWait())

    def upload() -> None:
        with pytest.raises(RetryError, match="cannot be asked for another: no answer") as error:
            vended.current()
        failures.append(error.value)

    threads = [threading.Thread(target=upload) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failures) == 8
    assert sum(catalog.slept) <= PATIENCE_SECONDS


def test_the_work_goes_on_when_the_catalog_is_back() -> None:
    catalog = Catalog(down=True)
    vended = catalog.vended()
    catalog.now += LIFETIME
    sleep = vended._sleep

    def back_after_three(seconds: float) -> None:
        sleep(seconds)
        catalog.down = len(catalog.slept) < 3

    vended._sleep = back_after_three
    assert key(vended.current()) == "key-4"


def test_a_refused_one_is_replaced_once_for_all_that_used_it() -> None:
    catalog = Catalog(tells=False)
    vended = catalog.vended()
    used = vended.current()
    assert key(vended.replaced(used)) == "key-1"
    assert key(vended.replaced(used)) == "key-1"
    assert catalog.asked == 1


def test_a_catalog_that_vends_the_refused_one_again_is_not_waited_for() -> None:
    catalog = Catalog(tells=False, repeats=True)
    vended = catalog.vended()
    with pytest.raises(RetryError, match="vends none other"):
        vended.replaced(vended.current())
    assert (catalog.asked, catalog.slept) == (1, [])


def test_one_thread_asks_while_the_others_use_the_old_one() -> None:
    catalog = Catalog(asking=threading.Barrier(2))
    vended = catalog.vended()
    catalog.now += LIFETIME - 100
    renewing = threading.Thread(target=vended.current)
    renewing.start()
    while catalog.asked == 0:
        pass
    assert key(vended.current()) == "key-0"
    assert catalog.asking is not None
    catalog.asking.wait()
    renewing.join()
    assert key(vended.current()) == "key-1"


@dataclass(frozen=True)
class Source:
    """One that can be pickled."""

    name: str
    endpoint: str | None = None

    def ask(self) -> Mapping[str, str]:
        return properties(9, 9e9)


def test_equal_sources_share_the_newest_credential_also_in_another_process() -> None:
    old, new = Credential.of(properties(1, 5e9), 1.0), Credential.of(properties(2, 6e9), 2.0)
    assert old is not None
    assert new is not None
    vended = shared(Source("t"), old)
    assert shared(Source("t"), new) is vended
    assert key(vended.current()) == "key-2"
    shared(Source("t"), old)
    assert key(vended.current()) == "key-2"
    assert shared(Source("other"), old) is not vended
    copy = pickle.loads(pickle.dumps(vended))  # noqa: S301 - our own bytes
    assert copy is vended
    assert b"secret-key-number-2" in pickle.dumps(vended)
    assert "secret-key" not in f"{vended!r}"


def test_no_message_shows_it() -> None:
    catalog = Catalog()
    vended = catalog.vended()
    catalog.now += LIFETIME
    vended.current()
    assert "number" not in hide("refused: secret-key-number-1")
