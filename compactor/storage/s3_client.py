"""A table's S3 properties → a boto3 client, and the request parameters that the table's own writers would send.

The property names of Iceberg's Java S3FileIO (S3FileIOProperties, AwsClientProperties) and of PyIceberg
(pyiceberg/io/__init__.py) are both known. Where their defaults differ, PyIceberg's apply, because its FileIO reads the
metadata of the same table in the same process. Example: a custom endpoint means path-style addresses.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from compactor.credentials.vended import VendedCredential
from compactor.errors import GiveUpError
from compactor.reasons import Reason
from compactor.whole_numbers import whole_number

S3_SCHEMES: Final = ("s3://", "s3a://", "s3n://")
LONGEST_KEY: Final = 1024
CLIENTS_KEPT: Final = 16  # each table with a vended credential has its own
THREADS_MAX: Final = 16
CHECKSUM_VARIABLES: Final = ("AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION")
_THREADS: Final = 8
_TAGS: Final = "s3.write.tags."
_ACCESS_POINTS: Final = "s3.access-points."
_OWN_FILE_IOS: Final = frozenset({"pyiceberg.io.pyarrow.PyArrowFileIO", "pyiceberg.io.fsspec.FsspecFileIO"})
# Iceberg's S3URI and PyIceberg end locations at the first two; URL parsers drop control characters.
_NEVER_IN_KEYS: Final = frozenset("?#\x7f") | frozenset(map(chr, range(32)))


@dataclass(frozen=True, slots=True)
class S3Object:
    """Bucket (or access point) and key of a location."""

    bucket: str
    key: str


def s3_object(location: str, properties: Mapping[str, str]) -> S3Object:
    """The object behind `s3://bucket/key` (s3a, s3n); the key is taken literally, `%20` is three characters.

    Raises:
        GiveUpError: reason `unsupported_location`.
    """
    scheme, _, rest = location.partition("://")
    bucket, _, key = rest.partition("/")
    if f"{scheme}://" not in S3_SCHEMES or not bucket or not key:
        raise GiveUpError(f"{location!r} is not an object of an S3 bucket.", reason=Reason.UNSUPPORTED_LOCATION)
    if not _NEVER_IN_KEYS.isdisjoint(rest):
        raise GiveUpError(
            f"{location!r} contains a character (? # or a control character) that Iceberg cannot read in a key.",
            reason=Reason.UNSUPPORTED_LOCATION,
        )
    if len(key.encode("utf-8", "replace")) > LONGEST_KEY:
        raise GiveUpError(
            f"The key of {location!r} is longer than {LONGEST_KEY} bytes, the longest in S3.",
            reason=Reason.UNSUPPORTED_LOCATION,
        )
    return S3Object(properties.get(f"{_ACCESS_POINTS}{bucket}", bucket), key)


def needs_file_io(properties: Mapping[str, str]) -> str | None:
    """Why these properties require PyIceberg's FileIO; None where the boto3 client can do the same."""
    if _true(properties, "s3.remote-signing-enabled") or properties.get("s3.signer"):
        return "requests are signed by the catalog"
    file_io = properties.get("py-io-impl")
    if file_io and file_io not in _OWN_FILE_IOS:
        return f"the table is reached through {file_io}"
    return None


def takes_equal_parts_only(properties: Mapping[str, str]) -> bool:
    """Whether the store accepts only parts of equal size, so that it cannot copy ranges of any length."""
    host = urlsplit(properties.get("s3.endpoint", "")).hostname or ""
    return host.endswith(".r2.cloudflarestorage.com")


def upload_threads(properties: Mapping[str, str]) -> int:
    """Concurrent requests for one output: `s3.multipart.num-threads`, else 8; at most 16."""
    return min(whole_number(properties.get("s3.multipart.num-threads", "")) or _THREADS, THREADS_MAX)


def checks_content(properties: Mapping[str, str]) -> bool:
    """Whether parts are sent with their MD5 (`s3.checksum-enabled`), as Iceberg's S3OutputStream does."""
    return _true(properties, "s3.checksum-enabled")


# --- request parameters ---


def attribute_parameters(properties: Mapping[str, str]) -> dict[str, str]:
    """Encryption, ACL, storage class and tags of a new object, for CreateMultipartUpload and PutObject.

    Raises:
        GiveUpError: reason `unsupported_encryption`.
    """
    found = _encryption(properties) | customer_key(properties)
    if properties.get("s3.acl"):
        found["ACL"] = properties["s3.acl"]
    if properties.get("s3.write.storage-class"):
        found["StorageClass"] = properties["s3.write.storage-class"]
    tags = {key.removeprefix(_TAGS): value for key, value in properties.items() if key.startswith(_TAGS)}
    if tags:
        found["Tagging"] = urlencode(tags)
    return found


def with_table_tags(properties: Mapping[str, str], namespace: Sequence[str], table: str) -> dict[str, str]:
    """A table's properties with the tags that Iceberg's Java GlueCatalog adds for each table; no other catalog does."""
    found = dict(properties)
    if found.get("type", "").lower() == "glue":
        if _true(found, "s3.write.table-tag-enabled"):
            found[f"{_TAGS}iceberg.table"] = table
        if _true(found, "s3.write.namespace-tag-enabled"):
            found[f"{_TAGS}iceberg.namespace"] = ".".join(namespace)
    return found


def _encryption(properties: Mapping[str, str]) -> dict[str, str]:
    kind = properties.get("s3.sse.type", "none").lower()
    key = properties.get("s3.sse.key")
    if kind == "none" and properties.get("s3.server-side-encryption"):  # PyIceberg's names
        found = {"ServerSideEncryption": properties["s3.server-side-encryption"]}
        key = properties.get("s3.sse-kms-key-id")
    elif kind in {"none", "custom"}:
        return {}
    elif kind in {"s3", "kms", "dsse-kms"}:
        found = {"ServerSideEncryption": {"s3": "AES256", "kms": "aws:kms", "dsse-kms": "aws:kms:dsse"}[kind]}
    else:
        raise GiveUpError(f"s3.sse.type {kind!r} is unknown.", reason=Reason.UNSUPPORTED_ENCRYPTION)
    if key and found["ServerSideEncryption"] != "AES256":
        found["SSEKMSKeyId"] = key
    return found


def customer_key(properties: Mapping[str, str], prefix: str = "") -> dict[str, str]:
    """The key of SSE-C (`s3.sse.type=custom`), which every request for an object's bytes must contain.

    All objects of a table have the same key, so the store can copy ranges between them.

    Args:
        properties: The table's.
        prefix: `CopySource` for the source object of a copy.
    """
    if properties.get("s3.sse.type", "").lower() != "custom":
        return {}
    if not (properties.get("s3.sse.key") and properties.get("s3.sse.md5")):
        raise GiveUpError(
            "s3.sse.type is custom, so s3.sse.key and s3.sse.md5 (both base64) must be set.",
            reason=Reason.UNSUPPORTED_ENCRYPTION,
        )
    names = f"{prefix}SSECustomer"
    return {
        f"{names}Algorithm": "AES256",
        f"{names}Key": properties["s3.sse.key"],
        f"{names}KeyMD5": properties["s3.sse.md5"],
    }


def request_payer(properties: Mapping[str, str]) -> dict[str, str]:
    """Consent to pay for requests: `s3.requester-pays=true` (Trino's name; Iceberg and PyIceberg have none)."""
    return {"RequestPayer": "requester"} if _true(properties, "s3.requester-pays") else {}


# --- the client ---


def checksum_environment() -> dict[str, str]:
    """Let the S3 clients of this process (boto3, Arrow, Java) send only the checksums that S3 requires.

    All of them send more since 2025, in trailers, which many S3-compatible stores refuse. What the user has set holds.
    Call it before a client is made or a process started. Returns the variables, for executors.
    """
    return {name: os.environ.setdefault(name, "when_required") for name in CHECKSUM_VARIABLES}


@dataclass(frozen=True, slots=True)
class Signing:
    """Who signs requests; `anonymous`: nobody."""

    access_key: str | None
    secret_key: str | None = field(repr=False)
    session_token: str | None = field(repr=False)
    profile: str | None
    role: str | None
    role_session: str | None
    anonymous: bool

    @property
    def keys(self) -> dict[str, str | None]:
        """As boto3 names them."""
        return {
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "aws_session_token": self.session_token,
        }


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of a client; equal settings share one client.

    `options`, `s3_options`: of botocore's `Config`, and of S3 there; what is not in them has boto's default.
    """

    endpoint: str | None
    region: str | None
    signing: Signing
    proxy: str | None = field(repr=False)
    attempts: int
    options: tuple[tuple[str, Any], ...]
    s3_options: tuple[tuple[str, Any], ...]

    @property
    def without_keys(self) -> ClientSettings:
        """The same store and way to it, without a credential."""
        return replace(self, signing=replace(self.signing, access_key=None, secret_key=None, session_token=None))


def client_settings(properties: Mapping[str, str]) -> ClientSettings:
    """The client settings in a table's or catalog's properties. Pure.

    Raises:
        GiveUpError: reason `bad_setting`; a timeout is not a number.
    """
    endpoint = properties.get("s3.endpoint") or None
    if endpoint and "://" not in endpoint:
        endpoint = f"https://{endpoint}"
    retries = whole_number(properties.get("s3.retry.num-retries", ""))
    options = {
        "connect_timeout": _seconds(properties, "s3.connect-timeout"),
        "read_timeout": _seconds(properties, "s3.request-timeout"),
        "use_dualstack_endpoint": (_true(properties, "s3.dualstack-enabled") and endpoint is None) or None,
    }
    s3_options = {
        "addressing_style": _addressing(properties, endpoint),
        "use_accelerate_endpoint": _true(properties, "s3.acceleration-enabled") and endpoint is None,
        "use_arn_region": _true(properties, "s3.use-arn-region-enabled"),
    }
    return ClientSettings(
        endpoint=endpoint,
        region=_first(properties, "s3.region", "client.region"),
        signing=_signing(properties),
        proxy=properties.get("s3.proxy-uri") or None,
        attempts=5 if retries is None else 1 + retries,
        options=tuple((name, value) for name, value in options.items() if value is not None),
        s3_options=tuple(s3_options.items()),
    )


def _signing(properties: Mapping[str, str]) -> Signing:
    names = ("s3.role-session-name", "client.role-session-name", "client.assume-role.session-name")
    return Signing(
        access_key=_first(properties, "s3.access-key-id", "client.access-key-id"),
        secret_key=_first(properties, "s3.secret-access-key", "client.secret-access-key"),
        session_token=_first(properties, "s3.session-token", "client.session-token"),
        profile=_first(properties, "s3.profile-name", "client.profile-name"),
        role=_first(properties, "s3.role-arn", "client.role-arn", "client.assume-role.arn"),
        role_session=_first(properties, *names),
        anonymous=_true(properties, "s3.anonymous"),
    )


def _addressing(properties: Mapping[str, str], endpoint: str | None) -> str:
    if _true(properties, "s3.force-virtual-addressing"):
        return "virtual"
    if "s3.path-style-access" in properties:
        return "path" if _true(properties, "s3.path-style-access") else "virtual"
    return "path" if endpoint else "auto"


class S3Connections:
    """The S3 clients that stores share, and which stores can copy ranges. Thread-safe, as the clients are.

    `clients_kept`: the least recently used clients above this number are dropped.
    """

    def __init__(self, clients_kept: int = CLIENTS_KEPT) -> None:
        self._clients_kept = clients_kept
        self._clients: OrderedDict[tuple[int, ClientSettings, VendedCredential | None], Any] = OrderedDict()
        self._copies: dict[ClientSettings, bool] = {}
        self._lock = threading.Lock()

    def client(self, properties: Mapping[str, str], vended: VendedCredential | None = None) -> Any:
        """The boto3 client for these properties.

        Args:
            properties: A table's or catalog's.
            vended: Signs the requests instead of a credential in the properties: the client stays when it changes.

        Raises:
            GiveUpError: reason `access_denied`; the profile does not exist.
        """
        settings = client_settings(properties)
        if vended is not None:
            settings = settings.without_keys
        key = (os.getpid(), settings, vended)  # a forked child must not share its parent's connections
        with self._lock:
            if key not in self._clients:
                self._clients[key] = _new_client(settings, vended)
            self._clients.move_to_end(key)
            while len(self._clients) > self._clients_kept:
                self._clients.popitem(last=False)
            return self._clients[key]

    def can_copy(self, properties: Mapping[str, str]) -> bool | None:
        """Whether this store can copy ranges; None before the first attempt."""
        return self._copies.get(client_settings(properties).without_keys)

    def note_copying(self, properties: Mapping[str, str], *, possible: bool) -> None:
        """Remember whether this store can copy ranges."""
        self._copies[client_settings(properties).without_keys] = possible


PROCESS_CONNECTIONS: Final = S3Connections()
"""Shared by all stores of this process that are not given their own: Spark runs many tasks in one Python worker."""


def _new_client(settings: ClientSettings, vended: VendedCredential | None = None) -> Any:
    import boto3  # noqa: PLC0415 - takes 0.3 s, and only tables on S3 need it
    from botocore import UNSIGNED  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415
    from botocore.exceptions import ProfileNotFound  # noqa: PLC0415

    checksum_environment()
    signing = settings.signing
    config = Config(
        s3=dict(settings.s3_options),
        retries={"mode": "standard", "total_max_attempts": settings.attempts},
        max_pool_connections=2 * THREADS_MAX,
        proxies={"http": settings.proxy, "https": settings.proxy} if settings.proxy else None,
        signature_version=UNSIGNED if signing.anonymous else None,
        **dict(settings.options),
    )
    try:
        session = boto3.Session(profile_name=signing.profile, region_name=settings.region)
    except ProfileNotFound as error:
        raise GiveUpError(
            f"{error}: check s3.profile-name and the AWS configuration files of the machine that runs firnline.",
            reason=Reason.ACCESS_DENIED,
        ) from error
    keys = signing.keys
    if vended is not None:
        session = _session_with(VendedKeys(vended), settings.region or session.region_name)
    elif signing.role and not signing.anonymous:
        session, keys = _assumed(session, signing, settings.region), {}
    return session.client("s3", endpoint_url=settings.endpoint, config=config, **keys)


def _assumed(session: Any, signing: Signing, region: str | None) -> Any:
    """A session with the role's credentials, which are requested when needed and renewed before they expire."""
    import boto3  # noqa: PLC0415
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials  # noqa: PLC0415

    source = session
    if any(signing.keys.values()):
        source = boto3.Session(profile_name=signing.profile, region_name=region, **signing.keys)
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=source._session.create_client,  # noqa: SLF001 - as boto's own AssumeRoleProvider does
        source_credentials=source.get_credentials(),
        role_arn=signing.role,
        extra_args={"RoleSessionName": signing.role_session} if signing.role_session else None,
    )
    credentials = DeferredRefreshableCredentials(fetcher.fetch_credentials, method="assume-role")
    return _session_with(credentials, region or session.region_name)


def _session_with(credentials: Any, region: str | None) -> Any:
    import boto3  # noqa: PLC0415
    from botocore.session import get_session  # noqa: PLC0415

    inner = get_session()
    inner._credentials = credentials  # noqa: SLF001 - botocore has no public way to set them
    return boto3.Session(botocore_session=inner, region_name=region)


class VendedKeys:
    """What botocore signs requests with: the present credential. It asks before each request.

    botocore's own `RefreshableCredentials` cannot be renewed after a refusal, and needs an end.
    """

    method = "vended"
    account_id = None

    def __init__(self, vended: VendedCredential) -> None:
        self._vended = vended

    def get_frozen_credentials(self) -> Any:
        from botocore.credentials import ReadOnlyCredentials  # noqa: PLC0415

        signing = _signing(dict(self._vended.current().properties))
        return ReadOnlyCredentials(signing.access_key, signing.secret_key, signing.session_token)

    def get_deferred_property(self, property_name: str) -> Any:
        """As botocore's class: for endpoints that contain the account."""
        return lambda: getattr(self.get_frozen_credentials(), property_name)


def _first(properties: Mapping[str, str], *names: str) -> str | None:
    return next((properties[name] for name in names if properties.get(name)), None)


def _true(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name, "").strip().lower() == "true"


def _seconds(properties: Mapping[str, str], name: str) -> float | None:
    text = properties.get(name, "")
    try:
        return float(text) if text else None
    except ValueError as error:
        raise GiveUpError(f"{name}={text!r} is not a number of seconds.", reason=Reason.BAD_SETTING) from error
