"""The Spark configuration of a catalog on S3."""

from __future__ import annotations

import pytest

from compactor.errors import InputError
from compactor.settings.tree import Settings
from compactor.spark.catalogs import aws_profile, spark_catalog_conf
from compactor.spark.file_io import S3_FILE_IO
from compactor.spark.session import session_conf

REST = {"type": "rest", "uri": "http://catalog:8181", "warehouse": "s3://lake/warehouse"}
LOCAL = {"type": "sql", "uri": "sqlite:////x/catalog.db", "warehouse": "file:///x/warehouse"}


def conf(properties: dict[str, str]) -> dict[str, str]:
    prefix = "spark.sql.catalog.lake."
    return {key.removeprefix(prefix): value for key, value in spark_catalog_conf("lake", REST | properties).items()}


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, {"io-impl": S3_FILE_IO, "type": "rest", "warehouse": "s3://lake/warehouse"}),
        ({"s3.region": "eu-west-1"}, {"client.region": "eu-west-1"}),
        ({"s3.region": "a", "client.region": "b"}, {"client.region": "b"}),
        ({"s3.endpoint": "http://h"}, {"s3.endpoint": "http://h", "s3.path-style-access": "true"}),
        ({"s3.endpoint": "http://h", "s3.path-style-access": "false"}, {"s3.path-style-access": "false"}),
        ({"s3.endpoint": "http://h", "s3.force-virtual-addressing": "true"}, {"s3.path-style-access": "false"}),
        ({"s3.access-key-id": "k", "s3.session-token": "t"}, {"s3.access-key-id": "k", "s3.session-token": "t"}),
        ({"client.access-key-id": "k"}, {"s3.access-key-id": "k"}),
        ({"s3.connect-timeout": "2.5"}, {"http-client.apache.connection-timeout-ms": "2500"}),
        ({"s3.request-timeout": "60"}, {"http-client.apache.socket-timeout-ms": "60000"}),
        ({"s3.proxy-uri": "http://p:1"}, {"http-client.proxy-endpoint": "http://p:1"}),
        ({"http-client.type": "urlconnection"}, {"http-client.type": "urlconnection"}),
        (
            {"s3.anonymous": "true"},
            {"client.credentials-provider": ("software.amazon.awssdk.auth.credentials.AnonymousCredentialsProvider")},
        ),
        (
            {"s3.role-arn": "arn:r", "s3.role-session-name": "me", "s3.region": "a"},
            {
                "client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory",
                "client.assume-role.arn": "arn:r",
                "client.assume-role.region": "a",
                "client.assume-role.session-name": "me",
            },
        ),
        (
            {"s3.server-side-encryption": "aws:kms", "s3.sse-kms-key-id": "k"},
            {"s3.sse.type": "kms", "s3.sse.key": "k"},
        ),
        ({"s3.server-side-encryption": "AES256"}, {"s3.sse.type": "s3"}),
        ({"s3.sse.type": "dsse-kms", "s3.server-side-encryption": "AES256"}, {"s3.sse.type": "dsse-kms"}),
        ({"s3.write.tags.team": "x", "s3.acl": "private"}, {"s3.write.tags.team": "x", "s3.acl": "private"}),
    ],
)
def test_names_are_translated_and_javas_own_win(properties: dict[str, str], expected: dict[str, str]) -> None:
    made = conf(properties)
    assert {name: made.get(name) for name in expected} == expected


def test_a_catalog_elsewhere_is_told_nothing_of_s3() -> None:
    made = spark_catalog_conf("lake", LOCAL)
    assert not [key for key in made if "s3" in key or "client" in key or "io-impl" in key]


def test_seconds_must_be_numbers() -> None:
    with pytest.raises(InputError, match=r"s3\.connect-timeout"):
        conf({"s3.connect-timeout": "soon"})


def test_a_profile_is_told_to_the_jvm() -> None:
    settings = Settings(catalogs={"lake": REST | {"s3.profile-name": "team"}}, spark={"conf": {"spark.jars": "/none"}})
    made = session_conf(settings)
    for side in ("driver", "executor"):
        assert "-Daws.profile=team" in made[f"spark.{side}.defaultJavaOptions"].split()
    assert "log4j2" in made["spark.driver.defaultJavaOptions"]
    assert "aws.profile" not in str(
        session_conf(Settings(catalogs={"lake": LOCAL}, spark={"conf": {"spark.jars": "/none"}}))
    )


def test_two_profiles_do_not_fit_into_one_jvm() -> None:
    assert aws_profile({"a": {"s3.profile-name": "x"}, "b": {"client.profile-name": "x"}, "c": {}}) == "x"
    with pytest.raises(InputError, match="x and y"):
        aws_profile({"a": {"s3.profile-name": "x"}, "b": {"s3.profile-name": "y"}})
