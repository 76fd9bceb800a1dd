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
)


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
    """Whether the catalog's files live on S3, so that Spark needs Iceberg's AWS bundle."""
    on_s3 = properties.get("warehouse", "").startswith(("s3://", "s3a://", "s3n://"))
    return on_s3 or any(key.startswith("s3.") for key in properties)


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
        if properties.get("s3.region"):
            conf.setdefault("client.region", properties["s3.region"])
        if properties.get("s3.endpoint"):
            conf.setdefault("s3.path-style-access", "true")
        if properties.get("s3.force-virtual-addressing", "").lower() == "true":
            conf["s3.path-style-access"] = "false"
    return conf
