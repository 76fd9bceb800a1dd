"""PyIceberg catalog properties → Spark catalog configuration: the one place where the two vocabularies meet."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from compactor.errors import InputError

SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
S3_FILE_IO = "org.apache.iceberg.aws.s3.S3FileIO"
PASSED_ON_AS_THEY_ARE = (
    "s3.",
    "header.",
    "rest.",
    "oauth2-",
    "token",
    "credential",
    "scope",
    "prefix",
    "glue.",
    "client.",
    "http-client.",
)
AWS_CREDENTIALS = "software.amazon.awssdk.auth.credentials"
ASSUME_ROLE_FACTORY = "org.apache.iceberg.aws.AssumeRoleAwsClientFactory"
_S3_SCHEMES = ("s3://", "s3a://", "s3n://")
# PyIceberg's name → the name of Iceberg's Java FileIO, where the value stays the same.
_RENAMED = {
    "s3.region": "client.region",
    "client.access-key-id": "s3.access-key-id",
    "client.secret-access-key": "s3.secret-access-key",
    "client.session-token": "s3.session-token",
    "s3.proxy-uri": "http-client.proxy-endpoint",
    "s3.role-arn": "client.assume-role.arn",
    "client.role-arn": "client.assume-role.arn",
    "s3.role-session-name": "client.assume-role.session-name",
    "client.role-session-name": "client.assume-role.session-name",
}
_SECONDS_TO_MS = {
    "s3.connect-timeout": "http-client.apache.connection-timeout-ms",
    "s3.request-timeout": "http-client.apache.socket-timeout-ms",
}
_ENCRYPTION_TYPES = {"AES256": "s3", "aws:kms": "kms", "aws:kms:dsse": "dsse-kms"}


def spark_catalog_conf(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Spark configuration entries of one catalog.

    Keys that start with `spark.` in the catalog's properties are Spark's own and win (without that prefix).

    Raises:
        InputError: the catalog type has no counterpart in Spark.
    """
    kind = _kind(properties)
    if kind == "sql":
        conf = _sql(properties)
    elif kind in {"rest", "hive", "glue", "nessie"}:
        conf = {"type": kind}
        if properties.get("uri"):
            conf["uri"] = properties["uri"]
    else:
        raise InputError(
            f"catalogs.{name}.type: {kind!r} has no counterpart in Spark; use sql, rest, hive, glue or nessie",
            reason="bad_setting",
        )
    if properties.get("warehouse"):
        conf["warehouse"] = properties["warehouse"]
    conf["cache-enabled"] = "false"  # a cached table would pin plan and commit to different snapshots
    conf.update(_storage(properties))
    conf.update({key.removeprefix("spark."): value for key, value in properties.items() if key.startswith("spark.")})
    prefix = f"spark.sql.catalog.{name}"
    return {prefix: SPARK_CATALOG, **{f"{prefix}.{key}": value for key, value in conf.items()}}


def uses_s3(properties: Mapping[str, str]) -> bool:
    """Whether the catalog's files are known to live on S3."""
    on_s3 = properties.get("warehouse", "").startswith(_S3_SCHEMES)
    return on_s3 or any(key.startswith("s3.") for key in properties)


def needs_aws(properties: Mapping[str, str]) -> bool:
    """Whether Spark needs Iceberg's AWS bundle: the files are on S3, or the catalog's server may say that they are."""
    warehouse = properties.get("warehouse", "")
    elsewhere = "://" in warehouse or warehouse.startswith(("/", "file:"))
    return uses_s3(properties) or _kind(properties) == "glue" or (_kind(properties) == "rest" and not elsewhere)


def aws_profile(catalogs: Mapping[str, Mapping[str, str]]) -> str | None:
    """The profile of the AWS configuration files that the catalogs name; the JVM can have but one.

    Raises:
        InputError: two catalogs name different profiles.
    """
    named = {
        properties.get("s3.profile-name") or properties.get("client.profile-name") for properties in catalogs.values()
    }
    found = sorted(profile for profile in named if profile)
    if len(found) > 1:
        raise InputError(
            f"s3.profile-name: {' and '.join(found)} cannot be used in one process; give each its own firnline",
            reason="bad_setting",
        )
    return found[0] if found else None


def _kind(properties: Mapping[str, str]) -> str:
    if properties.get("type"):
        return properties["type"].lower()
    uri = properties.get("uri", "")
    if uri.startswith(("http://", "https://")):
        return "rest"
    if uri.startswith("thrift://"):
        return "hive"
    return "sql"


def _sql(properties: Mapping[str, str]) -> dict[str, str]:
    """SQLAlchemy URL → Iceberg's JdbcCatalog, schema version V1 as PyIceberg creates it."""
    uri = properties.get("uri", "")
    conf = {"type": "jdbc", "jdbc.schema-version": "V1"}
    if uri.startswith("sqlite:"):
        path = uri.split("sqlite:///", 1)[-1]
        return {**conf, "uri": f"jdbc:sqlite:{path}", "jdbc.busy_timeout": "30000"}
    parts = urlsplit(uri)
    driver = parts.scheme.split("+")[0].replace("postgres", "postgresql").replace("postgresqlql", "postgresql")
    if driver not in {"postgresql", "mysql", "mariadb"}:
        raise InputError(f"sql catalog uri {uri!r}: use sqlite, postgresql or mysql", reason="bad_setting")
    port = f":{parts.port}" if parts.port else ""
    conf["uri"] = f"jdbc:{driver}://{parts.hostname}{port}{parts.path}"
    if parts.username:
        conf["jdbc.user"] = unquote(parts.username)
    if parts.password:
        conf["jdbc.password"] = unquote(parts.password)
    return conf


def _storage(properties: Mapping[str, str]) -> dict[str, str]:
    conf = {key: value for key, value in properties.items() if key.startswith(PASSED_ON_AS_THEY_ARE)}
    if uses_s3(properties):
        conf.setdefault("io-impl", S3_FILE_IO)
        for name, value in _s3_in_java(properties).items():
            conf.setdefault(name, value)
        if properties.get("s3.endpoint"):
            conf.setdefault("s3.path-style-access", "true")
        if properties.get("s3.force-virtual-addressing", "").lower() == "true":
            conf["s3.path-style-access"] = "false"
    return conf


def _s3_in_java(properties: Mapping[str, str]) -> dict[str, str]:
    """What PyIceberg names differently, in the words of Iceberg's Java S3FileIO and AWS client factories."""
    given = {name: value for name, value in properties.items() if value}
    conf = {theirs: given[ours] for ours, theirs in reversed(_RENAMED.items()) if ours in given}
    conf |= {theirs: _milliseconds(ours, given[ours]) for ours, theirs in _SECONDS_TO_MS.items() if ours in given}
    if given.get("s3.anonymous", "").lower() == "true":
        conf["client.credentials-provider"] = f"{AWS_CREDENTIALS}.AnonymousCredentialsProvider"
    if "client.assume-role.arn" in conf:
        conf["client.factory"] = ASSUME_ROLE_FACTORY
        if "client.region" in conf:
            conf["client.assume-role.region"] = conf["client.region"]
    if given.get("s3.server-side-encryption") in _ENCRYPTION_TYPES:
        conf["s3.sse.type"] = _ENCRYPTION_TYPES[given["s3.server-side-encryption"]]
        if "s3.sse-kms-key-id" in given:
            conf["s3.sse.key"] = given["s3.sse-kms-key-id"]
    return conf


def _milliseconds(name: str, seconds: str) -> str:
    try:
        return str(round(float(seconds) * 1000))
    except ValueError as error:
        raise InputError(f"{name}={seconds!r} is not a number of seconds", reason="bad_setting") from error
