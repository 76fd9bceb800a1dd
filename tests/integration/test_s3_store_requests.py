"""What requests to S3 carry: the attributes that a table's own writer would have set, keys, digests and conditions."""

from __future__ import annotations

import pytest

from compactor.storage.s3_store import S3ByteStore
from tests.integration.s3_kit import LARGE, MIB, caught
from tests.services import answers
from tests.services.answers import RecordedStore, answering

KEY = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
KEY_MD5 = "JyQHsMvJC7MP1NWUOLFNdQ=="


def recorded(properties: dict[str, str], *, large: bool = True) -> RecordedStore:
    """The requests of one upload with these properties."""
    written = 11 * MIB + 4 + 6 if large else 6
    server = RecordedStore(len(LARGE), written=written)
    given = {"s3.access-key-id": "k", "s3.secret-access-key": "s", "s3.region": "eu-west-1"}
    store = S3ByteStore(given | properties | {"s3.retry.num-retries": "0"})
    with answering(store.client, server.answers()):
        file = store.create("s3://bucket/out")
        if large:
            file.write(bytes(4))
            file.copy_range("s3://bucket/source", 4, 11 * MIB)
        file.write(b"footer")
        assert file.finish() == written
    return server


@pytest.mark.parametrize("large", [True, False])
@pytest.mark.parametrize(
    ("properties", "headers"),
    [
        ({}, {"x-amz-server-side-encryption": None, "x-amz-acl": None, "x-amz-tagging": None}),
        ({"s3.sse.type": "none", "s3.sse.key": "k"}, {"x-amz-server-side-encryption": None}),
        ({"s3.sse.type": "s3"}, {"x-amz-server-side-encryption": "AES256"}),
        (
            {"s3.sse.type": "kms", "s3.sse.key": "arn:k"},
            {"x-amz-server-side-encryption": "aws:kms", "x-amz-server-side-encryption-aws-kms-key-id": "arn:k"},
        ),
        (
            {"s3.sse.type": "kms"},
            {"x-amz-server-side-encryption": "aws:kms", "x-amz-server-side-encryption-aws-kms-key-id": None},
        ),
        ({"s3.sse.type": "DSSE-KMS", "s3.sse.key": "k"}, {"x-amz-server-side-encryption": "aws:kms:dsse"}),
        (
            {"s3.server-side-encryption": "aws:kms", "s3.sse-kms-key-id": "k"},
            {"x-amz-server-side-encryption": "aws:kms", "x-amz-server-side-encryption-aws-kms-key-id": "k"},
        ),
        ({"s3.acl": "bucket-owner-full-control"}, {"x-amz-acl": "bucket-owner-full-control"}),
        ({"s3.write.storage-class": "INTELLIGENT_TIERING"}, {"x-amz-storage-class": "INTELLIGENT_TIERING"}),
        (
            {"s3.write.tags.team": "a b&c", "s3.write.tags.iceberg.table": "t", "s3.delete.tags.x": "y"},
            {"x-amz-tagging": "team=a+b%26c&iceberg.table=t"},
        ),
        ({"s3.requester-pays": "true"}, {"x-amz-request-payer": "requester"}),
    ],
)
def test_new_objects_get_the_attributes_of_the_table(
    properties: dict[str, str], headers: dict[str, str | None], large: bool
) -> None:
    server = recorded(properties, large=large)
    (sent,) = server.headers("CreateMultipartUpload" if large else "PutObject")
    assert {name: sent.get(name) for name in headers} == headers


def test_a_customers_key_goes_with_every_request_that_needs_it() -> None:
    server = recorded({"s3.sse.type": "custom", "s3.sse.key": KEY, "s3.sse.md5": KEY_MD5})
    own = {
        "x-amz-server-side-encryption-customer-algorithm": "AES256",
        "x-amz-server-side-encryption-customer-key": KEY,
        "x-amz-server-side-encryption-customer-key-md5": KEY_MD5,
    }
    source = {name.replace("x-amz-", "x-amz-copy-source-"): value for name, value in own.items()}
    for operation in ("HeadObject", "GetObject", "CreateMultipartUpload", "UploadPart", "UploadPartCopy"):
        assert server.headers(operation), operation
        for sent in server.headers(operation):
            assert own.items() <= sent.items(), operation
    assert source.items() <= server.headers("UploadPartCopy")[0].items()
    assert not any("customer" in name for name in server.headers("UploadPart")[0] if "copy-source" in name)


def test_copies_are_bound_to_the_object_that_was_read() -> None:
    server = recorded({})
    (sent,) = server.headers("UploadPartCopy")
    assert sent["x-amz-copy-source"] == "bucket/source"
    assert sent["x-amz-copy-source-range"] == f"bytes=0-{11 * MIB + 3}"
    assert sent["x-amz-copy-source-if-match"] == answers.ETAG
    assert server.headers("CompleteMultipartUpload")[0]["if-none-match"] == "*"
    assert recorded({}, large=False).headers("PutObject")[0]["if-none-match"] == "*"


def test_digests_are_sent_on_request_and_nothing_newer() -> None:
    server = recorded({"s3.checksum-enabled": "true"})
    assert server.headers("UploadPart")[0]["content-md5"]
    plain = recorded({}).headers("UploadPart")[0]
    assert not {name for name in plain if "md5" in name or "checksum" in name or "trailer" in name}


def test_a_payer_is_named_in_every_request() -> None:
    server = recorded({"s3.requester-pays": "true"})
    assert all(sent.get("x-amz-request-payer") == "requester" for _, sent in server.requests)


def test_a_store_that_takes_equal_parts_only_gets_them() -> None:
    server = recorded({"s3.endpoint": "https://account.r2.cloudflarestorage.com"})
    assert not server.headers("UploadPartCopy")
    sizes = sorted(int(sent["content-length"]) for sent in server.headers("UploadPart"))
    assert sizes == [3 * MIB + 4 + 6, 8 * MIB]


@pytest.mark.parametrize("wrong", [{"s3.sse.type": "rot13"}, {"s3.sse.type": "custom", "s3.sse.key": KEY}])
def test_an_encryption_nobody_knows_is_refused_before_anything_is_written(wrong: dict[str, str]) -> None:
    assert caught(lambda: recorded(wrong)).reason == "unsupported_encryption"
