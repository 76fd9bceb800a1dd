"""One contract for every LeaseStore, and for the LeaseHolder on each of them."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from compactor.errors import RetryError, StoppedError
from compactor.lease import local_store
from compactor.lease.decisions import TAKEOVER_SECONDS, VALID_SECONDS
from compactor.lease.document import decode
from compactor.lease.holder import LeaseHolder
from compactor.lease.local_store import KEPT, LocalLeaseStore
from compactor.lease.opening import known_deployment, lease_store
from compactor.lease.owner import Owner
from compactor.lease.plain_store import PlainLeaseStore
from compactor.lease.s3_store import S3LeaseStore, s3_lease_store
from compactor.lease.store import LeaseStore
from compactor.reasons import Reason
from tests.contracts.refusals import refuse
from tests.services.s3_server import S3Server

RACERS = 16


def s3_of(server: S3Server) -> S3LeaseStore:
    return S3LeaseStore(server.client, server.bucket, server.folder().split("/", 3)[3])


@pytest.fixture(params=["local", "local without links", "s3", "plain"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LeaseStore:
    if request.param == "s3":
        return s3_of(request.getfixturevalue("s3_server"))
    if request.param == "plain":
        return PlainLeaseStore(f"file://{tmp_path}/checkpoint/lease")
    if "without" in request.param:
        refuse(monkeypatch, "link", errno.EOPNOTSUPP)
    return LocalLeaseStore(tmp_path / "checkpoint" / "lease")


def written(store: LeaseStore, *contents: bytes) -> Any:
    version = None
    for content in contents:
        version = store.replace(content, version)
        assert version is not None
    return version


def test_what_is_written_is_read_with_its_version(store: LeaseStore) -> None:
    assert store.read() is None
    for content in (b"one", b"two", b"three"):
        found = store.read()
        version = store.replace(content, found.version if found else None)
        after = store.read()
        assert after is not None
        assert (after.content, after.version) == (content, version)


def test_only_the_present_version_is_replaced(store: LeaseStore) -> None:
    first = written(store, b"one")
    second = store.replace(b"two", first)
    assert second is not None
    for late in (first, None):
        assert store.replace(b"late", late) is None
    found = store.read()
    assert found is not None
    assert (found.content, found.version) == (b"two", second)


def test_a_version_of_long_ago_is_never_replaced(store: LeaseStore) -> None:
    first = written(store, b"first")
    version = first
    for number in range(KEPT + 10):
        version = store.replace(f"{number}".encode(), version)
        assert version is not None
    assert store.replace(b"paused", first) is None
    found = store.read()
    assert found is not None
    assert found.content == f"{KEPT + 9}".encode()


def test_of_many_at_once_one_succeeds(store: LeaseStore) -> None:
    if not store.conditional:
        pytest.skip("this store cannot promise it")
    if isinstance(store, S3LeaseStore) and "TEST_S3" not in os.environ:
        pytest.skip("s3proxy compares and writes in two steps; set TEST_S3 to a server that does not")
    version = None
    with ThreadPoolExecutor(RACERS) as pool:
        for race in range(5):
            contents = [f"{race} {racer}".encode() for racer in range(RACERS)]
            won = [each for each in pool.map(lambda content: store.replace(content, version), contents) if each]  # noqa: B023
            assert len(won) == 1
            (version,) = won
            found = store.read()
            assert found is not None
            assert found.version == version


# --- local ---


def test_old_versions_are_removed_and_nothing_else_is_left(tmp_path: Path) -> None:
    written(LocalLeaseStore(tmp_path), *(f"{number}".encode() for number in range(3 * KEPT)))
    (tmp_path / "note.txt").write_text("not ours")
    (tmp_path / f"{5:020d}.dead.tmp").write_text("of a process that was killed")
    written_on = LocalLeaseStore(tmp_path)
    found = written_on.read()
    assert found is not None
    assert written_on.replace(b"next", found.version)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == KEPT + 1
    assert "note.txt" in names
    assert not any(name.endswith(".tmp") for name in names)


@pytest.mark.parametrize("links", [True, False])
def test_who_is_paused_between_look_and_write_loses_even_when_its_number_is_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    paused = LocalLeaseStore(tmp_path)
    version = written(paused, b"one")
    link, write = os.link, local_store._write

    def others_go_on() -> None:
        monkeypatch.undo()
        on = version
        for number in range(KEPT + 5):
            on = LocalLeaseStore(tmp_path).replace(f"{number}".encode(), on)
        assert not (tmp_path / f"{2:020d}.json").exists()

    def link_late(*places: Any) -> None:
        others_go_on()
        link(*places)

    def write_late(path: Path, content: bytes) -> None:
        if path.suffix == ".json":
            others_go_on()
        write(path, content)

    if links:
        monkeypatch.setattr(os, "link", link_late)
    else:
        refuse(monkeypatch, "link", errno.EOPNOTSUPP)
    monkeypatch.setattr(local_store, "_write", write_late)
    assert paused.replace(b"late", version) is None
    assert not (tmp_path / f"{2:020d}.json").exists()
    found = paused.read()
    assert found is not None
    assert found.content == f"{KEPT + 4}".encode()


def test_a_link_whose_answer_was_lost_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS: the client repeats the request, and the server finds the name taken, by us."""
    real = os.link

    def link_twice(*places: Any) -> None:
        real(*places)
        real(*places)

    monkeypatch.setattr(os, "link", link_twice)
    assert LocalLeaseStore(tmp_path).replace(b"one", None) == 1


def test_a_version_that_is_removed_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalLeaseStore(tmp_path)
    version = written(store, b"one")
    real = Path.read_bytes

    def read_late(path: Path) -> bytes:
        monkeypatch.undo()
        LocalLeaseStore(tmp_path).replace(b"two", version)
        path.unlink()
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read_late)
    found = store.read()
    assert found is not None
    assert found.content == b"two"


@pytest.mark.parametrize("links", [True, False])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    version = written(LocalLeaseStore(tmp_path), b"one")
    if not links:
        refuse(monkeypatch, "link", errno.EOPNOTSUPP)
    real, calls = os.fsync, count()

    def full_at_last(descriptor: int) -> None:
        if links or next(calls):  # without links the content is written twice
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    with monkeypatch.context() as full:
        full.setattr(local_store.os, "fsync", full_at_last)
        with pytest.raises(OSError, match="space"):
            LocalLeaseStore(tmp_path).replace(b"two", version)
    assert [path.name for path in tmp_path.iterdir()] == [f"{1:020d}.json"]
    assert LocalLeaseStore(tmp_path).replace(b"two", version) is not None


# --- S3 ---


class OldS3:
    """A store that knows no conditional writes, around a client. `refuses`: with an error; else it ignores them."""

    def __init__(self, client: Any, *, refuses: bool) -> None:
        self._client = client
        self._refuses = refuses

    def put_object(self, **parameters: Any) -> Any:
        if self._refuses:
            answer: Any = {"Error": {"Code": "NotImplemented"}, "ResponseMetadata": {"HTTPStatusCode": 501}}
            raise ClientError(answer, "PutObject")
        return self._client.put_object(**{key: parameters[key] for key in ("Bucket", "Key", "Body")})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def test_a_store_is_asked_whether_it_honours_conditions_and_keeps_nothing_of_it(s3_server: S3Server) -> None:
    folder = s3_server.folder()
    key = folder.split("/", 3)[3]
    assert S3LeaseStore(s3_server.client, s3_server.bucket, key).conditional
    for refused in (True, False):
        old = OldS3(s3_server.client, refuses=refused)
        assert not S3LeaseStore(old, s3_server.bucket, key).conditional
    assert s3_server.keys(folder) == []


def test_a_checkpoint_on_s3_is_opened_with_the_credentials_of_arrow(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = s3_server.address
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    keys = f"{s3_server.access_key}:{s3_server.secret_key}"
    checkpoint = s3_server.folder().replace("s3://", f"s3://{keys}@")
    assert known_deployment(checkpoint) == ""
    holder = LeaseHolder(lease_store(checkpoint))
    assert holder.look()
    assert known_deployment(checkpoint) == holder.deployment != ""
    assert s3_server.secret_key not in lease_store(checkpoint).location
    wrong = s3_lease_store(checkpoint.replace(s3_server.secret_key, "wrong"))
    with pytest.raises(OSError, match=r"lease\.json"):
        wrong.read()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port + 1 if port < 65535 else port - 1}")
    with pytest.raises(OSError, match=r"lease\.json"):
        s3_lease_store(checkpoint).read()


def test_a_bucket_that_is_missing_is_an_error_and_no_free_lease(s3_server: S3Server) -> None:
    missing = S3LeaseStore(s3_server.client, "no-such-bucket", "checkpoint/lease")
    with pytest.raises(OSError, match="no-such-bucket"):
        missing.read()
    with pytest.raises(OSError, match="no-such-bucket"):
        missing.replace(b"{}", None)


# --- the holder on every store ---


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


ELSEWHERE = replace(Owner.this_process(), host="another.host")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr("compactor.lease.holder.RENEW_SECONDS", 0.01)  # the wait where a store is not conditional
    return Clock()


def holder_of(store: LeaseStore, clock: Clock, **options: Any) -> LeaseHolder:
    return LeaseHolder(store, **{"owner": ELSEWHERE, "clock": clock, "wall_clock": lambda: 0.0, **options})


def test_a_standby_waits_and_takes_over_when_the_lease_is_given_back(store: LeaseStore, clock: Clock) -> None:
    first, second = holder_of(store, clock), holder_of(store, clock)
    assert first.look()
    assert not second.look()
    assert second.waiting == f"standby: another.host (pid {os.getpid()}) is active since 1970-01-01 00:00:00Z"
    first.release()
    assert second.look()
    assert second.deployment == first_deployment(store) != ""
    second.confirm()
    with pytest.raises(StoppedError, match="given back"):
        first.confirm()


def first_deployment(store: LeaseStore) -> str:
    found = store.read()
    lease = decode(found.content) if found else None
    assert lease is not None
    assert lease.token == 2
    return lease.deployment


def test_a_holder_that_was_paused_is_deposed_and_says_by_whom(store: LeaseStore, clock: Clock) -> None:
    first, second = holder_of(store, clock), holder_of(store, clock)
    assert first.look()
    right = first.right
    right.confirm()
    assert not second.look()
    clock.now += VALID_SECONDS + 1
    assert not first.active
    assert not second.look()
    first.confirm()  # nobody has taken over yet
    assert first.active
    assert not second.look()
    clock.now += TAKEOVER_SECONDS + 1
    assert second.look()
    assert right.lost() is None
    with pytest.raises(StoppedError, match=r"lost its lease .* to another\.host \(pid \d+\), token 2") as caught:
        right.confirm()
    assert caught.value.reason == Reason.LEASE_LOST
    assert right.lost() is not None
    with pytest.raises(RetryError) as ended:
        first.check()
    assert ended.value.reason == Reason.LEASE_LOST
    first.release()
    second.confirm()
    assert (first.active, second.active) == (False, True)


def test_the_lease_of_a_dead_process_of_this_machine_is_taken_at_once(store: LeaseStore, clock: Clock) -> None:
    assert holder_of(store, clock, owner=replace(Owner.this_process(), started="1")).look()
    assert holder_of(store, clock).look()


def test_a_damaged_document_is_taken_when_nobody_has_changed_it(store: LeaseStore, clock: Clock) -> None:
    written(store, b'{"version": 99, "token": 7}')
    standby = holder_of(store, clock)
    assert not standby.look()
    assert "cannot be read" in standby.waiting
    clock.now += TAKEOVER_SECONDS - 1
    assert not standby.look()
    clock.now += 1
    assert standby.look()


def test_a_lease_whose_document_is_gone_is_lost(store: LeaseStore, clock: Clock, tmp_path: Path) -> None:
    if isinstance(store, S3LeaseStore):
        pytest.skip("the same code; the local stores suffice")
    holder = holder_of(store, clock)
    assert holder.look()
    for path in (tmp_path / "checkpoint" / "lease").iterdir():
        path.unlink()
    with pytest.raises(StoppedError, match="removed or damaged"):
        holder.confirm()


def test_a_deployment_that_is_given_replaces_the_one_in_the_document(store: LeaseStore, clock: Clock) -> None:
    first = holder_of(store, clock)
    assert first.look()
    first.release()
    second = holder_of(store, clock, deployment="of the group")
    assert second.look()
    assert second.right.deployment == "of the group"
