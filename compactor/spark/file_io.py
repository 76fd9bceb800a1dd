"""PyIceberg's storage properties → Iceberg's Java FileIO: its class, its property names, the jars it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compactor.errors import InputError
from compactor.reasons import Reason
from compactor.spark.java import AWS_JARS, AZURE_JARS, GCP_JARS, JarSet

S3_FILE_IO = "org.apache.iceberg.aws.s3.S3FileIO"
RESOLVING_FILE_IO = "org.apache.iceberg.io.ResolvingFileIO"
AWS_CREDENTIALS = "software.amazon.awssdk.auth.credentials"
ASSUME_ROLE_FACTORY = "org.apache.iceberg.aws.AssumeRoleAwsClientFactory"
# PyIceberg's name → the name in Iceberg's Java FileIO; the value stays the same.
_RENAMED_ON_S3 = {
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
_RENAMED_ON_ADLS = {
    "adls.account-name": "adls.auth.shared-key.account.name",
    "adls.account-key": "adls.auth.shared-key.account.key",
}
_SECONDS_TO_MS = {
    "s3.connect-timeout": "http-client.apache.connection-timeout-ms",
    "s3.request-timeout": "http-client.apache.socket-timeout-ms",
}
_ENCRYPTION_TYPES = {"AES256": "s3", "aws:kms": "kms", "aws:kms:dsse": "dsse-kms"}
_ADLS_HOST = "dfs.core.windows.net"
_AZURE_VARIABLES = {
    "adls.client-secret": "AZURE_CLIENT_SECRET",
    "adls.client-id": "AZURE_CLIENT_ID",
    "adls.tenant-id": "AZURE_TENANT_ID",
}


@dataclass(frozen=True)
class Store:
    """A kind of object store: URI schemes, prefix of its properties, Iceberg's FileIO class and jars."""

    schemes: tuple[str, ...]
    prefix: str
    file_io: str
    jars: JarSet


S3 = Store(schemes=("s3://", "s3a://", "s3n://"), prefix="s3.", file_io=S3_FILE_IO, jars=AWS_JARS)
GCS = Store(schemes=("gs://",), prefix="gcs.", file_io="org.apache.iceberg.gcp.gcs.GCSFileIO", jars=GCP_JARS)
ADLS = Store(
    schemes=("abfs://", "abfss://", "wasb://", "wasbs://"),
    prefix="adls.",
    file_io="org.apache.iceberg.azure.adlsv2.ADLSFileIO",
    jars=AZURE_JARS,
)
STORES = (S3, GCS, ADLS)


def stores_of(properties: Mapping[str, str]) -> tuple[Store, ...]:
    """The stores of the catalog's files, by its warehouse and by its properties for a store."""
    warehouse = properties.get("warehouse", "")
    return tuple(
        store
        for store in STORES
        if warehouse.startswith(store.schemes) or any(name.startswith(store.prefix) for name in properties)
    )


def file_io_conf(properties: Mapping[str, str]) -> dict[str, str]:
    """Java FileIO properties for the catalog's files; Java's own names in the catalog's properties take precedence.

    Raises:
        InputError: Iceberg's Java FileIO has no counterpart for a property or its value.
    """
    stores = stores_of(properties)
    conf = {name: value for name, value in properties.items() if name.startswith(tuple(each.prefix for each in STORES))}
    if stores:
        conf["io-impl"] = stores[0].file_io if len(stores) == 1 else RESOLVING_FILE_IO
    if S3 in stores:
        conf = _s3_in_java(properties) | conf
        if properties.get("s3.endpoint"):
            conf.setdefault("s3.path-style-access", "true")
        if properties.get("s3.force-virtual-addressing", "").lower() == "true":
            conf["s3.path-style-access"] = "false"
    if ADLS in stores:
        conf = _adls_in_java(properties) | conf
    return conf


def _s3_in_java(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties that have other names in Iceberg's Java S3FileIO and AWS client factories."""
    given = {name: value for name, value in properties.items() if value}
    conf = {theirs: given[ours] for ours, theirs in reversed(_RENAMED_ON_S3.items()) if ours in given}
    conf |= {theirs: _milliseconds(ours, given[ours]) for ours, theirs in _SECONDS_TO_MS.items() if ours in given}
    if given.get("s3.anonymous", "").lower() == "true":
        conf["client.credentials-provider"] = f"{AWS_CREDENTIALS}.AnonymousCredentialsProvider"
    if "client.assume-role.arn" in conf:
        conf["client.factory"] = ASSUME_ROLE_FACTORY
        region = given.get("client.region") or conf.get("client.region")
        if region:
            conf["client.assume-role.region"] = region
    if given.get("s3.server-side-encryption") in _ENCRYPTION_TYPES:
        conf["s3.sse.type"] = _ENCRYPTION_TYPES[given["s3.server-side-encryption"]]
        if "s3.sse-kms-key-id" in given:
            conf["s3.sse.key"] = given["s3.sse-kms-key-id"]
    return conf


def _adls_in_java(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties of Iceberg's ADLSFileIO: account key, token per account, bearer token, else Azure's default chain."""
    given = {name: value for name, value in properties.items() if value}
    for name, variable in _AZURE_VARIABLES.items():
        if name in given and "adls.token-credential-provider" not in given:
            raise InputError(
                f"{name}: Iceberg's Java client of Azure takes no service principal from properties; set {variable} in "
                "the environment instead: PyIceberg and Java both read it",
                reason=Reason.BAD_SETTING,
            )
    conf = {}
    if "adls.account-key" in given:  # Java requires the account name and its key together
        conf = {theirs: given[ours] for ours, theirs in _RENAMED_ON_ADLS.items() if ours in given}
    if "adls.sas-token" in given:
        if "adls.account-name" not in given:
            raise InputError("adls.sas-token needs adls.account-name beside it", reason=Reason.BAD_SETTING)
        host = given.get("adls.account-host") or f"{given['adls.account-name']}.{_ADLS_HOST}"
        conf[f"adls.sas-token.{host}"] = given["adls.sas-token"]
    return conf


def _milliseconds(name: str, seconds: str) -> str:
    try:
        return str(round(float(seconds) * 1000))
    except ValueError as error:
        raise InputError(f"{name}={seconds!r} is not a number of seconds", reason=Reason.BAD_SETTING) from error
