"""A table's properties → the client, checked by the requests that a real client sends."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from compactor.errors import GiveUpError
from compactor.storage.byte_store import checksum_remedy
from compactor.storage.s3_client import (
    CHECKSUM_VARIABLES,
    S3Connections,
    S3Object,
    checksum_environment,
    client_settings,
    s3_object,
    takes_equal_parts_only,
    upload_threads,
    with_table_tags,
)
from compactor.storage.s3_store import S3ByteStore
from tests.services import answers
from tests.services.answers import answering
from tests.unit.failing import fails

KEYS = {"s3.access-key-id": "AKID", "s3.secret-access-key": "secret", "s3.region": "eu-west-1"}


@pytest.fixture(autouse=True)
def nobodys_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def sent(properties: dict[str, str]) -> Any:
    """The HTTP request for an object's size."""
    seen: list[Any] = []
    client = S3Connections().client(properties)

    def answer(request: Any) -> Any:
        seen.append(request)
        return answers.response(200, content_length="1", etag=answers.ETAG)

    with answering(client, {"HeadObject": answer}):
        client.head_object(Bucket="bucket", Key="a/b c")
    return seen[0]


def authorization(properties: dict[str, str]) -> str:
    value = sent(properties).headers.get("Authorization", b"")
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize(
    ("properties", "url"),
    [
        ({}, "https://bucket.s3.eu-west-1.amazonaws.com/a/b%20c"),
        ({"s3.endpoint": "http://h:9000"}, "http://h:9000/bucket/a/b%20c"),
        ({"s3.endpoint": "https://s3.eu-west-1.amazonaws.com"}, "https://s3.eu-west-1.amazonaws.com/bucket/a/b%20c"),
        ({"s3.endpoint": "minio.test"}, "https://minio.test/bucket/a/b%20c"),
        ({"s3.endpoint": "http://h:9", "s3.force-virtual-addressing": "true"}, "http://bucket.h:9/a/b%20c"),
        ({"s3.endpoint": "http://h:9", "s3.path-style-access": "false"}, "http://bucket.h:9/a/b%20c"),
        ({"s3.path-style-access": "true"}, "https://s3.eu-west-1.amazonaws.com/bucket/a/b%20c"),
        ({"s3.dualstack-enabled": "true"}, "https://bucket.s3.dualstack.eu-west-1.amazonaws.com/a/b%20c"),
        ({"s3.acceleration-enabled": "true"}, "https://bucket.s3-accelerate.amazonaws.com/a/b%20c"),
        ({"s3.region": "", "client.region": "us-west-2"}, "https://bucket.s3.us-west-2.amazonaws.com/a/b%20c"),
    ],
)
def test_addresses(properties: dict[str, str], url: str) -> None:
    assert sent(KEYS | properties).url == url


def test_static_keys_and_session_tokens() -> None:
    assert "Credential=AKID/" in authorization(KEYS)
    token = sent(KEYS | {"s3.session-token": "token"}).headers["X-Amz-Security-Token"]
    assert token in {"token", b"token"}
    assert "Credential=OTHER/" in authorization(
        {"client.access-key-id": "OTHER", "client.secret-access-key": "s", "client.region": "eu-west-1"}
    )


def test_profiles_and_the_default_chain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("[team]\naws_access_key_id=TEAM\naws_secret_access_key=s\n")
    assert "Credential=TEAM/" in authorization({"s3.profile-name": "team", "s3.region": "eu-west-1"})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "CHAIN")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert "Credential=CHAIN/" in authorization({"s3.region": "eu-west-1"})
    with pytest.raises(GiveUpError, match=r"s3\.profile-name"):
        S3Connections().client({"s3.profile-name": "nobody"})


def test_anonymous_requests_are_not_signed() -> None:
    assert not authorization({"s3.anonymous": "true", "s3.region": "eu-west-1"})


def test_a_role_is_assumed_when_its_credentials_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def fetch(fetcher: Any) -> dict[str, Any]:
        asked.append(fetcher._assume_role_kwargs())
        source = fetcher._source_credentials.get_frozen_credentials()
        assert source.access_key == "AKID"
        return {"access_key": "ROLE", "secret_key": "s", "token": "t", "expiry_time": "2999-01-01T00:00:00Z"}

    monkeypatch.setattr("botocore.credentials.AssumeRoleCredentialFetcher.fetch_credentials", fetch)
    properties = KEYS | {"s3.role-arn": "arn:aws:iam::1:role/r", "s3.role-session-name": "firnline"}
    S3Connections().client(properties)
    assert asked == []
    assert "Credential=ROLE/" in authorization(properties)
    assert asked == [{"RoleArn": "arn:aws:iam::1:role/r", "RoleSessionName": "firnline"}]


def test_time_limits_proxies_and_attempts() -> None:
    given = {
        "s3.connect-timeout": "2.5",
        "s3.request-timeout": "7",
        "s3.proxy-uri": "http://proxy:1",
        "s3.retry.num-retries": "2",
    }
    config = S3Connections().client(KEYS | given).meta.config
    assert (config.connect_timeout, config.read_timeout) == (2.5, 7.0)
    assert config.proxies["https"] == "http://proxy:1"
    assert config.retries["total_max_attempts"] == 3
    with pytest.raises(GiveUpError, match=r"s3\.connect-timeout"):
        client_settings({"s3.connect-timeout": "soon"})


def test_equal_properties_share_a_client_and_only_so_many_are_kept() -> None:
    connections = S3Connections(clients_kept=2)
    first = connections.client(KEYS)
    assert connections.client(dict(KEYS) | {"s3.acl": "private"}) is first
    assert connections.client(KEYS | {"s3.session-token": "t"}) is not first
    assert connections.client(KEYS) is first
    for number in range(3):
        connections.client(KEYS | {"s3.session-token": str(number)})
    assert len(connections._clients) == 2
    assert connections.client(KEYS) is not first


def test_stores_of_one_process_share_connections_also_when_they_were_pickled() -> None:
    first, second = S3ByteStore(KEYS), pickle.loads(pickle.dumps(S3ByteStore(KEYS)))  # noqa: S301 - our own bytes
    assert second.client is first.client
    own = S3Connections()
    apart = S3ByteStore(KEYS, own)
    assert apart.client is own.client(KEYS)
    assert apart.client is not first.client


def test_whether_a_store_copies_is_known_by_its_settings() -> None:
    connections = S3Connections()
    store, same = S3ByteStore(KEYS, connections), S3ByteStore(KEYS | {"s3.acl": "private"}, connections)
    assert store.can_copy is None
    store.note_copying(possible=False)
    assert (store.can_copy, same.can_copy) == (False, False)
    assert S3ByteStore(KEYS | {"s3.endpoint": "http://other"}, connections).can_copy is None
    assert S3ByteStore(KEYS, S3Connections()).can_copy is None


def test_a_forked_process_makes_its_own() -> None:
    connections = S3Connections()
    parents = id(connections.client(KEYS))
    receiver, sender = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=lambda: sender.send(id(connections.client(KEYS))))
    child.start()
    assert receiver.poll(60)
    assert receiver.recv() != parents
    child.join()


def test_secrets_are_in_no_representation() -> None:
    shown = repr(client_settings(KEYS | {"s3.session-token": "confidential-token"}))
    assert "secret" not in shown.replace("secret_key", "")
    assert "confidential" not in shown


@pytest.mark.parametrize(
    ("location", "bucket", "key"),
    [
        ("s3://bucket/a/b.parquet", "bucket", "a/b.parquet"),
        ("s3a://bucket/a b%20c+☃;", "bucket", "a b%20c+☃;"),
        ("s3n://bucket//a", "bucket", "/a"),
        ("s3://bucket/a://b", "bucket", "a://b"),
    ],
)
def test_locations(location: str, bucket: str, key: str) -> None:
    assert s3_object(location, {}) == S3Object(bucket, key)


def test_access_points_take_the_buckets_place() -> None:
    properties = {"s3.access-points.bucket": "arn:aws:s3:eu-west-1:1:accesspoint/p"}
    assert s3_object("s3://bucket/a", properties) == S3Object("arn:aws:s3:eu-west-1:1:accesspoint/p", "a")
    assert s3_object("s3://other/a", properties) == S3Object("other", "a")


@pytest.mark.parametrize(
    "location", ["s3://bucket", "s3://bucket/", "s3:///a", "gs://b/a", "/a", "s3://b/a?b", "s3://b/a\nb"]
)
def test_locations_that_are_no_objects(location: str) -> None:
    with fails("unsupported_location"):
        s3_object(location, {})


def test_stores_that_take_equal_parts_only() -> None:
    assert takes_equal_parts_only({"s3.endpoint": "https://1.r2.cloudflarestorage.com"})
    assert not takes_equal_parts_only({"s3.endpoint": "https://r2.cloudflarestorage.com.test"})
    assert not takes_equal_parts_only({})


@pytest.mark.parametrize(("text", "threads"), [("", 8), ("4", 4), ("0", 8), ("many", 8), ("1000", 16)])
def test_upload_threads(text: str, threads: int) -> None:
    assert upload_threads({"s3.multipart.num-threads": text}) == threads


def test_tags_of_the_table_where_its_own_catalog_sets_them() -> None:
    asked = {"type": "glue", "s3.write.table-tag-enabled": "true", "s3.write.namespace-tag-enabled": "true"}
    tags = {"s3.write.tags.iceberg.table": "events", "s3.write.tags.iceberg.namespace": "db"}
    assert with_table_tags(asked, ("db",), "events") == asked | tags
    for properties in (asked | {"type": "rest"}, {"type": "glue"}):
        assert with_table_tags(properties, ("db",), "events") == properties


@pytest.mark.parametrize("given", [None, "when_supported"])
def test_the_environment_asks_for_required_checksums_unless_it_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    for name in CHECKSUM_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        if given:
            monkeypatch.setenv(name, given)
    expected = dict.fromkeys(CHECKSUM_VARIABLES, given or "when_required")
    client = S3Connections().client({"s3.endpoint": "http://store.test", "s3.region": "us-east-1"})
    assert {name: os.environ[name] for name in CHECKSUM_VARIABLES} == expected == checksum_environment()
    assert client.meta.config.request_checksum_calculation == (given or "when_required")


@pytest.mark.parametrize(
    ("error", "named"),
    [
        ("You must provide the Content-Length HTTP header. (Service: S3, Status Code: 411)", True),
        ("A header you provided implies functionality that is not implemented", True),
        ("Access Denied (Service: S3, Status Code: 403)", False),
    ],
)
def test_an_error_of_a_store_without_trailers_names_the_variable(error: str, named: bool) -> None:
    assert ("AWS_REQUEST_CHECKSUM_CALCULATION" in checksum_remedy(error)) is named
