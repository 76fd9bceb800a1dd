"""The Spark configuration of catalogs and stores: classes, property names, jars."""

from __future__ import annotations

import pytest

from compactor.errors import InputError
from compactor.settings.tree import Settings
from compactor.spark.catalogs import aws_profile, bundles, spark_catalog_conf
from compactor.spark.java import AWS_JARS, AZURE_JARS, GCP_JARS, SPARK_JARS, JarSet
from compactor.spark.session import jar_sets

LOCAL = {"type": "sql", "uri": "sqlite:////x/catalog.db", "warehouse": "file:///x/warehouse"}
REST = {"type": "rest", "uri": "http://catalog:8181"}
GLUE = {"type": "glue", "warehouse": "s3://lake/warehouse"}
GCS_IO, ADLS_IO = "org.apache.iceberg.gcp.gcs.GCSFileIO", "org.apache.iceberg.azure.adlsv2.ADLSFileIO"
ABFSS = "abfss://lake@account.dfs.core.windows.net/warehouse"


def conf(properties: dict[str, str]) -> dict[str, str]:
    prefix = "spark.sql.catalog.lake."
    return {key.removeprefix(prefix): value for key, value in spark_catalog_conf("lake", properties).items()}


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"type": "hive", "uri": "thrift://hms:9083"}, {"type": "hive", "uri": "thrift://hms:9083"}),
        ({"uri": "thrift://hms:9083"}, {"type": "hive", "hadoop.hive.metastore.client.socket.timeout": "60s"}),
        (REST, {"rest.client.connection-timeout-ms": "10000", "rest.client.socket-timeout-ms": "60000"}),
        (REST | {"rest.client.socket-timeout-ms": "5"}, {"rest.client.socket-timeout-ms": "5"}),
        (
            {"uri": "postgresql+psycopg2://u:p@db/catalog"},
            {"jdbc.connectTimeout": "10", "jdbc.socketTimeout": "60", "jdbc.user": "u"},
        ),
        ({"uri": "mysql+pymysql://db/catalog"}, {"jdbc.connectTimeout": "10000", "jdbc.socketTimeout": "60000"}),
        ({"uri": "postgresql://db/catalog"}, {"retryable_status_codes": "08001,57P01,57P02,57P03,57P05"}),
        ({"uri": "mysql+pymysql://db/catalog"}, {"retryable_status_codes": "08S01,08001"}),
        ({"uri": "postgresql://db/c", "spark.retryable_status_codes": "57P01"}, {"retryable_status_codes": "57P01"}),
        (GLUE | {"glue.region": "eu-west-1"}, {"type": "glue", "client.region": "eu-west-1", "uri": None}),
        (GLUE | {"glue.region": "a", "client.region": "b"}, {"client.region": "b"}),
        (GLUE | {"glue.region": "a", "s3.region": "b"}, {"client.region": "a"}),
        (GLUE | {"glue.id": "1", "glue.skip-archive": "true"}, {"glue.id": "1", "glue.skip-archive": "true"}),
        (GLUE | {"client.role-arn": "arn:r"}, {"client.assume-role.arn": "arn:r"}),
        (
            REST | {"credential": "id:secret", "scope": "PRINCIPAL_ROLE:ALL", "warehouse": "lake"},
            {"credential": "id:secret", "scope": "PRINCIPAL_ROLE:ALL", "warehouse": "lake", "io-impl": None},
        ),
        (REST | {"credential": "id:secret"}, {"token-exchange-enabled": "false"}),
        (REST | {"token": "t"}, {"token-exchange-enabled": None}),
        (
            REST | {"credential": "id:secret", "spark.token-exchange-enabled": "true"},
            {"token-exchange-enabled": "true"},
        ),
        (REST | {"oauth2-server-uri": "https://idp/token"}, {"oauth2-server-uri": "https://idp/token"}),
        (
            REST | {"rest.sigv4-enabled": "true", "rest.signing-name": "glue", "rest.signing-region": "eu-west-1"},
            {"rest.sigv4-enabled": "true", "rest.signing-name": "glue", "rest.signing-region": "eu-west-1"},
        ),
        (REST | {"warehouse": "gs://lake"}, {"io-impl": GCS_IO}),
        (
            REST | {"gcs.project-id": "p", "gcs.oauth2.token": "t"},
            {"io-impl": GCS_IO, "gcs.project-id": "p", "gcs.oauth2.token": "t"},
        ),
        (REST | {"warehouse": ABFSS}, {"io-impl": ADLS_IO}),
        (
            REST | {"adls.account-name": "a", "adls.account-key": "k"},
            {"adls.auth.shared-key.account.name": "a", "adls.auth.shared-key.account.key": "k", "io-impl": ADLS_IO},
        ),
        (REST | {"adls.account-name": "a"}, {"adls.auth.shared-key.account.name": None}),
        (
            REST | {"adls.account-name": "a", "adls.sas-token": "t"},
            {"adls.sas-token.a.dfs.core.windows.net": "t"},
        ),
        (
            REST
            | {"adls.account-name": "a", "adls.account-host": "a.dfs.core.chinacloudapi.cn", "adls.sas-token": "t"},
            {"adls.sas-token.a.dfs.core.chinacloudapi.cn": "t"},
        ),
        (
            REST | {"warehouse": "s3://lake", "gcs.project-id": "p"},
            {"io-impl": "org.apache.iceberg.io.ResolvingFileIO", "gcs.project-id": "p"},
        ),
        (LOCAL, {"io-impl": None}),
    ],
)
def test_names_are_translated(properties: dict[str, str], expected: dict[str, str | None]) -> None:
    made = conf(properties)
    assert {name: made.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("properties", "asked"),
    [
        ({}, ["vended-credentials"]),
        ({"header.x-iceberg-access-delegation": "remote-signing"}, ["remote-signing"]),
    ],
)
def test_spark_asks_for_credentials_as_pyiceberg_does(properties: dict[str, str], asked: list[str]) -> None:
    made = conf(REST | properties)
    assert [value for name, value in made.items() if "access-delegation" in name.lower()] == asked


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        (GLUE | {"glue.access-key-id": "k"}, "glue.access-key-id"),
        (GLUE | {"client.access-key-id": "k"}, "client.access-key-id"),
        ({"type": "nessie"}, "/iceberg"),
        ({"type": "dynamodb"}, "dynamodb"),
        (REST | {"adls.sas-token": "t"}, "adls.account-name"),
        (REST | {"adls.client-secret": "s", "adls.client-id": "c"}, "AZURE_CLIENT_SECRET"),
    ],
)
def test_what_java_cannot_be_given_is_refused(properties: dict[str, str], key: str) -> None:
    with pytest.raises(InputError, match=key):
        conf(properties)


@pytest.mark.parametrize("password", ["canary/x", "canary?x", "canary#x", "canary/x@y"])
def test_a_password_that_is_not_encoded_is_refused_without_a_part_of_it(password: str) -> None:
    with pytest.raises(InputError, match="write / as %2F") as raised:
        conf({"type": "sql", "uri": f"postgresql://me:{password}@host/db"})
    assert "canary" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_whoever_brings_a_provider_of_credentials_is_let_through() -> None:
    provider = {"client.credentials-provider": "com.example.Provider"}
    assert conf(GLUE | {"glue.access-key-id": "k"} | provider)["client.credentials-provider"] == "com.example.Provider"
    azure = {"adls.token-credential-provider": "com.example.Provider"}
    assert conf(REST | {"adls.client-secret": "s"} | azure)["adls.token-credential-provider"] == "com.example.Provider"


@pytest.mark.parametrize(
    ("properties", "needed"),
    [
        (LOCAL, ()),
        (LOCAL | {"s3.endpoint": "http://h"}, (AWS_JARS,)),
        (REST | {"warehouse": "s3://lake"}, (AWS_JARS,)),
        (
            {"uri": "https://polaris/api/catalog", "warehouse": "a_name"},
            (AWS_JARS,),
        ),  # its server tells where tables are
        ({"uri": "https://polaris/api/catalog"}, (AWS_JARS,)),
        ({"uri": "https://polaris/api/catalog", "warehouse": "gs://bucket"}, (GCP_JARS,)),
        ({"uri": "https://polaris/api/catalog", "warehouse": "name", "gcs.project-id": "p"}, (GCP_JARS,)),
        (REST | {"warehouse": ABFSS}, (AZURE_JARS,)),
        (REST | {"warehouse": "file:///x"}, ()),
        ({"type": "glue"}, (AWS_JARS,)),
        ({"type": "hive", "uri": "thrift://h", "warehouse": "gs://b", "s3.endpoint": "http://h"}, (AWS_JARS, GCP_JARS)),
    ],
)
def test_who_needs_which_bundle(properties: dict[str, str], needed: tuple[JarSet, ...]) -> None:
    assert bundles(properties) == needed


def test_the_session_needs_the_bundles_of_all_catalogs_once() -> None:
    settings = Settings(catalogs={"a": LOCAL, "b": GLUE, "c": REST | {"warehouse": "gs://b"}, "d": GLUE})
    assert jar_sets(settings) == (SPARK_JARS, AWS_JARS, GCP_JARS)


def test_a_profile_of_glue_is_the_jvms() -> None:
    assert aws_profile({"a": GLUE | {"glue.profile-name": "team"}}) == "team"
