"""PyIceberg catalog properties → Spark catalog configuration. No other module translates between them."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from compactor.errors import InputError
from compactor.iceberg.proxies import java_rest_proxy, with_store_proxy
from compactor.iceberg.rest_catalog import ANSWER_SECONDS, CONNECT_SECONDS
from compactor.reasons import Reason
from compactor.settings.catalogs import catalog_type, type_problem
from compactor.spark.file_io import file_io_conf, stores_of
from compactor.spark.java import AWS_JARS, JarSet

SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
ACCESS_DELEGATION = "header.X-Iceberg-Access-Delegation"
PASSED_UNCHANGED = (
    "header.",
    "rest.",
    "oauth2-",
    "token",
    "credential",
    "scope",
    "audience",
    "resource",
    "prefix",
    "glue.",
    "client.",
    "http-client.",
)
_GLUE_ACCESS_KEYS = ("glue.access-key-id", "client.access-key-id")
_IN_MILLISECONDS = {
    "jdbc.connectTimeout": str(CONNECT_SECONDS * 1000),
    "jdbc.socketTimeout": str(ANSWER_SECONDS * 1000),
}
_TIMEOUTS: Mapping[str, Mapping[str, str]] = {
    "rest": {
        "rest.client.connection-timeout-ms": str(CONNECT_SECONDS * 1000),
        "rest.client.socket-timeout-ms": str(ANSWER_SECONDS * 1000),
    },
    "hive": {
        "hadoop.hive.metastore.client.socket.timeout": f"{ANSWER_SECONDS}s",
        "hadoop.hive.metastore.client.connection.timeout": f"{CONNECT_SECONDS}s",
    },
    "postgresql": {"jdbc.connectTimeout": str(CONNECT_SECONDS), "jdbc.socketTimeout": str(ANSWER_SECONDS)},
    "mysql": _IN_MILLISECONDS,
    "mariadb": _IN_MILLISECONDS,
}
"""Properties of a Spark catalog by its type or database; PostgreSQL's driver takes seconds, the others milliseconds.
Iceberg's Java clients have no timeouts of their own, so that a commit would wait forever. A commit whose answer does
not come in time counts as unknown, and is looked for."""
_ENDED: Mapping[str, str] = {
    "postgresql": "08001,57P01,57P02,57P03,57P05",
    "mysql": "08S01,08001",
    "mariadb": "08S01,08001",
}
"""SQL states of a connection that the database has ended, as after its idle time-out, or cannot take now. Iceberg asks
again on another connection; by default it knows 08000, 08003, 08006 and 08007."""


def spark_catalog_conf(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Spark configuration entries of one catalog.

    Properties that start with `spark.` are passed to Spark without that prefix and take precedence.

    Raises:
        InputError: the catalog type has no counterpart in Spark.
    """
    properties = with_store_proxy(properties)
    kind = catalog_type(properties)
    problem = type_problem(kind)
    if problem is not None:
        raise InputError(f"catalogs.{name}.type: {problem}", reason=Reason.BAD_SETTING)
    if kind == "sql":
        conf = _sql(properties)
    else:
        conf = {"type": kind, **_TIMEOUTS.get(kind, {})}
        if properties.get("uri"):
            conf["uri"] = properties["uri"]
    if properties.get("warehouse"):
        conf["warehouse"] = properties["warehouse"]
    conf["cache-enabled"] = "false"  # a cached table would pin plan and commit to different snapshots
    conf.update({key: value for key, value in properties.items() if key.startswith(PASSED_UNCHANGED)})
    if kind == "glue":
        conf = _glue(name, properties) | conf
    conf = file_io_conf(properties) | conf
    if kind == "rest" and ACCESS_DELEGATION.lower() not in {key.lower() for key in conf}:
        conf[ACCESS_DELEGATION] = "vended-credentials"  # PyIceberg always requests them, Java only if configured
    if kind == "rest":
        conf = java_rest_proxy(properties.get("uri", "")) | conf
        # For five minutes Java would load an unchanged table with the credential of the store that it had before.
        conf.setdefault("rest-table-cache.max-entries", "0")
    if kind == "rest" and properties.get("credential"):
        # Else Java exchanges its old token for a new one. Most login servers refuse that, and commits would fail from
        # the end of the first token on. PyIceberg, too, logs in again with the credential.
        conf.setdefault("token-exchange-enabled", "false")
    conf.update({key.removeprefix("spark."): value for key, value in properties.items() if key.startswith("spark.")})
    prefix = f"spark.sql.catalog.{name}"
    return {prefix: SPARK_CATALOG, **{f"{prefix}.{key}": value for key, value in conf.items()}}


def bundles(properties: Mapping[str, str]) -> tuple[JarSet, ...]:
    """Iceberg's bundles of store clients that Spark needs for this catalog.

    If a REST catalog's warehouse is a name, its server knows the tables' locations: assume S3, unless other properties
    name a store.
    """
    stores = stores_of(properties)
    warehouse = properties.get("warehouse", "")
    elsewhere = "://" in warehouse or warehouse.startswith(("/", "file:"))
    jars = [store.jars for store in stores]
    if catalog_type(properties) == "glue" or (catalog_type(properties) == "rest" and not stores and not elsewhere):
        jars.append(AWS_JARS)
    return tuple(dict.fromkeys(jars))


def aws_profile(catalogs: Mapping[str, Mapping[str, str]]) -> str | None:
    """The AWS profile that the catalogs name; the JVM can have only one.

    Raises:
        InputError: two catalogs name different profiles.
    """
    named = {
        properties.get("s3.profile-name")
        or properties.get("client.profile-name")
        or properties.get("glue.profile-name")
        for properties in catalogs.values()
    }
    found = sorted(profile for profile in named if profile)
    if len(found) > 1:
        raise InputError(
            f"s3.profile-name: {' and '.join(found)} cannot be used in one process; run one firnline process for each",
            reason=Reason.BAD_SETTING,
        )
    return found[0] if found else None


def _sql(properties: Mapping[str, str]) -> dict[str, str]:
    """SQLAlchemy URL → Iceberg's JdbcCatalog with schema version V1, which PyIceberg creates."""
    uri = properties.get("uri", "")
    conf = {"type": "jdbc", "jdbc.schema-version": "V1"}
    if uri.startswith("sqlite:"):
        path = uri.split("sqlite:///", 1)[-1]
        return {**conf, "uri": f"jdbc:sqlite:{path}", "jdbc.busy_timeout": "30000"}
    parts = urlsplit(uri)
    driver = parts.scheme.split("+")[0]
    driver = "postgresql" if driver == "postgres" else driver
    if driver not in {"postgresql", "mysql", "mariadb"}:
        raise InputError(f"sql catalog uri {uri!r}: use sqlite, postgresql or mysql", reason=Reason.BAD_SETTING)
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:  # it names what was taken for the port: a part of the password
        raise InputError(
            "sql catalog uri: the port is not a number from 0 to 65535; in the user and the password, write / as %2F, "
            "@ as %40, ? as %3F and # as %23",
            reason=Reason.BAD_SETTING,
        ) from None
    conf["uri"] = f"jdbc:{driver}://{parts.hostname}{port}{parts.path}"
    conf.update(_TIMEOUTS[driver])
    conf["retryable_status_codes"] = _ENDED[driver]
    if parts.username:
        conf["jdbc.user"] = unquote(parts.username)
    if parts.password:
        conf["jdbc.password"] = unquote(parts.password)
    return conf


def _glue(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Properties of Iceberg's Java Glue client, which accepts region and endpoint, but no keys."""
    theirs = "client.credentials-provider"
    given = [key for key in _GLUE_ACCESS_KEYS if properties.get(key)]
    if given and not (properties.get(theirs) or properties.get(f"spark.{theirs}")):
        raise InputError(
            f"catalogs.{name}.{given[0]}: Iceberg's Java client of Glue takes no keys from properties; set "
            f"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or {given[0].split('.')[0]}.profile-name",
            reason=Reason.BAD_SETTING,
        )
    region = properties.get("glue.region")
    return {"client.region": region} if region else {}
