"""A credential of a store that a catalog vends: which properties it consists of, and until when it is valid. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from compactor.whole_numbers import whole_number

MARGIN_SECONDS: Final = 300.0
"""Before its end, in which a credential is renewed; as Iceberg's Java client does. A third of a short lifetime."""

_GRANTING: Final = frozenset(
    {
        "s3.access-key-id",
        "s3.secret-access-key",
        "s3.session-token",
        "s3.session-token-expires-at-ms",
        "gcs.oauth2.token",
        "gcs.oauth2.token-expires-at",
    }
)
_SHARED_ACCESS: Final = "adls.sas-token"
"""Begins the names of Azure's tokens and of their ends: Java has one for each account."""
_EXPIRES_AT: Final = ("s3.session-token-expires-at-ms", "gcs.oauth2.token-expires-at", "adls.sas-token-expires-at-ms")


@dataclass(frozen=True, slots=True)
class Credential:
    """Properties of a FileIO that grant access. Times are seconds since the epoch.

    `valid_until`: None if the catalog does not say; then only the store's refusal shows the end. `received`: when the
    catalog vended it.
    """

    properties: tuple[tuple[str, str], ...] = field(repr=False)
    valid_until: float | None
    received: float

    @classmethod
    def of(cls, properties: Mapping[str, str], now: float) -> Credential | None:
        """The credential in the properties that a catalog has just vended; None if they grant nothing.

        A new one that seems to be over means that the clocks differ: then its end is not known.
        """
        granted = tuple(sorted((name, value) for name, value in properties.items() if _grants(name)))
        if all(name.startswith(_EXPIRES_AT) for name, _ in granted):
            return None
        times = (whole_number(value) for name, value in granted if name.startswith(_EXPIRES_AT))
        valid_until = min((time / 1000 for time in times if time is not None), default=None)
        return cls(granted, valid_until if valid_until is not None and valid_until > now else None, now)

    def is_due(self, now: float) -> bool:
        """Whether it is time to renew it."""
        if self.valid_until is None:
            return False
        return now >= self.valid_until - min(MARGIN_SECONDS, (self.valid_until - self.received) / 3)

    def is_over(self, now: float) -> bool:
        """Whether the store refuses it by now."""
        return self.valid_until is not None and now >= self.valid_until

    def is_newer(self, other: Credential) -> bool:
        """Whether it is valid for longer than the other; whether it was vended later, if one of both has no end."""
        if self.valid_until is None or other.valid_until is None:
            return self.received > other.received
        return self.valid_until > other.valid_until

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no log may show."""
        return tuple(value for name, value in self.properties if not name.startswith(_EXPIRES_AT))


def _grants(name: str) -> bool:
    return name in _GRANTING or name.startswith(_SHARED_ACCESS)


_SIGNS: Final = (
    "ExpiredToken", "TokenRefreshRequired", "token has expired", "token is expired", "token included in the request is",
    "NotAuthorizedException", "Status Code: 401", "status 401", "invalid_token", "Invalid Credentials",
    "not valid in the specified time frame", "InvalidAccessKeyId", "InvalidToken", "InvalidClientTokenId",
)  # fmt: skip
"""In errors of S3, of GCS, of Azure, of REST catalogs, by any client."""
_WITHOUT_BODY: Final = ("HTTP status 400", "Status Code: 400", "HTTP status 403", "Status Code: 403")
"""Answers to HEAD have no body, so they do not say what is wrong."""


def means_expired(error: str, *, vended: bool = True) -> bool:
    """Whether an error of a store or catalog may come from a credential that has ended.

    Args:
        error: The error's text, with its causes.
        vended: Whether the credential is one that a catalog vends: then an unclear refusal is worth a new one.
    """
    return any(sign in error for sign in _SIGNS) or (vended and any(sign in error for sign in _WITHOUT_BODY))
