"""Roles whose credentials live for seconds, for the S3 client of output tasks: an upload that outlives many of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from compactor.errors import RetryError
from compactor.storage.s3_client import S3Connections
from compactor.storage.s3_store import S3ByteStore
from deploy.demo.object_store import s3proxy
from tests.services.quick_java import quick_java
from tests.services.s3_server import S3Server
from tests.services.short_credentials import TAKES_TOKENS, Gate, Issuer, Sts, store_gate, sts

PARTS = 6
PART = bytes(range(256)) * 4 * 8192  # one part of an upload


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with quick_java(s3proxy(tmp_path_factory.mktemp("s3"), options=TAKES_TOKENS)) as started:
        yield S3Server(**asdict(started))


@pytest.fixture
def gate(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with store_gate(Issuer(server)) as opened:
        opened.part_seconds = opened.issuer.lifetime
        yield opened


@pytest.fixture
def roles(gate: Gate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Sts]:
    (tmp_path / "token").write_text("web-identity")
    with sts(gate.issuer) as opened:
        for name, value in opened.environment(str(tmp_path / "token")).items():
            monkeypatch.setenv(name, value)
        yield opened


def store_of(gate: Gate, **properties: str) -> S3ByteStore:
    reached = {"s3.endpoint": gate.endpoint, "s3.region": "us-east-1", "s3.multipart.num-threads": "1"}
    return S3ByteStore(reached | properties, S3Connections())


def upload(store: S3ByteStore, location: str) -> int:
    output = store.create(location)
    for _ in range(PARTS):
        output.write(PART)
    return output.finish()


def check(gate: Gate, location: str) -> None:
    (tokens,) = gate.parts.values()
    assert len(tokens) == PARTS
    assert gate.issuer.s3.get(location) == PART * PARTS


@pytest.mark.slow
def test_a_web_identity_is_renewed(gate: Gate, roles: Sts) -> None:
    location = f"{gate.issuer.s3.folder()}/a"
    assert upload(store_of(gate), location) == PARTS * len(PART)
    assert roles.actions.keys() == {"AssumeRoleWithWebIdentity"}
    check(gate, location)


@pytest.mark.slow
def test_a_role_is_assumed_again(gate: Gate, roles: Sts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "source")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "source-secret")
    location = f"{gate.issuer.s3.folder()}/a"
    store = store_of(gate, **{"s3.role-arn": "arn:aws:iam::123456789012:role/other"})
    assert upload(store, location) == PARTS * len(PART)
    assert roles.actions.keys() == {"AssumeRole"}
    check(gate, location)


def test_a_token_in_the_settings_ends_and_the_error_says_what_to_do(gate: Gate) -> None:
    store = store_of(gate, **gate.issuer.properties())
    with pytest.raises(RetryError, match="written in the settings ends with its lifetime") as error:
        upload(store, f"{gate.issuer.s3.folder()}/a")
    assert error.value.reason == "credentials_expired"
