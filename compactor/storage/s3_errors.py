"""Errors of S3 → errors of this project, with a reason of byte_store.py and the remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from compactor.errors import GiveUpError, RetryError
from compactor.reasons import Reason
from compactor.storage.byte_store import RENEWING, checksum_remedy

_REMEDY: Final = (
    "check the credentials, and that they allow s3:GetObject, s3:PutObject, s3:ListBucket and s3:AbortMultipartUpload "
    "there (and kms:Decrypt, kms:GenerateDataKey where a KMS key is used)"
)
_DENIED_CODES: Final = frozenset({"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AllAccessDisabled"})
CLOCK_DIFFERS: Final = "RequestTimeTooSkewed"
_PASSING_CODES: Final = frozenset(  # errors of class 4xx that may not occur again when the request is repeated
    {
        "400",  # any of these in response to HEAD, which has no body
        "BadDigest",
        "ConditionalRequestConflict",
        "IncompleteBody",
        "NoSuchUpload",
        "OperationAborted",
        CLOCK_DIFFERS,
        "RequestTimeout",
        "SlowDown",
    }
)
_EXPIRED_CODES: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_WITH_ANOTHER: Final = frozenset({400, 401, 403})
"""Status of refusals that another credential may change; an answer to HEAD says no more, and stores differ."""
_PASSING: Final = frozenset({408, 409, 429})
_FULL_CODES: Final = frozenset({"InsufficientStorage", "QuotaExceeded", "XMinioStorageFull"})
_NOT_IMPLEMENTED: Final = frozenset({405, 501})
NOT_FOUND: Final = 404
_REASONS: Final = {
    401: Reason.ACCESS_DENIED,
    403: Reason.ACCESS_DENIED,
    404: Reason.INPUT_MISSING,
    412: Reason.INPUT_CHANGED,
    416: Reason.INPUT_TRUNCATED,
    507: Reason.NO_SPACE,
}
_RETRIED: Final = frozenset({Reason.UNAVAILABLE, Reason.NO_SPACE, Reason.INPUT_CHANGED, Reason.CREDENTIALS_EXPIRED})
_SENTENCES: Final = {
    Reason.ACCESS_DENIED: f"Access denied while {{action}} {{location}}: {{error}}; {_REMEDY}.",
    Reason.CREDENTIALS_EXPIRED: (
        f"The store refuses an expired credential while {{action}} {{location}}: {{error}}; {RENEWING}."
    ),
    Reason.INPUT_MISSING: "{location} does not exist any more ({action} it).",
    Reason.INPUT_CHANGED: "{location} was replaced while it was in use.",
    Reason.INPUT_TRUNCATED: "{location} is shorter than its metadata says ({action} it).",
    Reason.NO_SPACE: "No space left while {action} {location}: free some space; the run is tried again.",
    Reason.STORE_REFUSES: "S3 refuses {action} {location}: {error}",
    Reason.UNAVAILABLE: "S3 failed while {action} {location}: {kind}: {error}",
}


def error_code(error: Exception) -> tuple[int, str]:
    """HTTP status and error code of S3's response; (0, "") without a response."""
    response: Mapping[str, Any] = getattr(error, "response", None) or {}
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return int(status), str(response.get("Error", {}).get("Code", ""))


def translated(error: Exception, location: str, action: str) -> GiveUpError | RetryError:
    """The error to raise when `action` ("reading", "copying from", ...) failed at `location`."""
    denied = isinstance(error, NoCredentialsError | PartialCredentialsError)
    reason = Reason.ACCESS_DENIED if denied else _reason(*error_code(error))
    sentence = _SENTENCES[reason].format(location=location, action=action, error=error, kind=type(error).__name__)
    sentence += checksum_remedy(str(error))
    if error_code(error)[1] == CLOCK_DIFFERS:
        sentence += " (the clock of this host and that of the store differ by more than 15 minutes: set this clock)"
    if error_code(error)[1] == "400":
        sentence += " (an answer to HEAD has no reason in it; an expired session token is the most frequent one)"
    return RetryError(sentence, reason=reason) if reason in _RETRIED else GiveUpError(sentence, reason=reason)


def _reason(status: int, code: str) -> Reason:
    """The reason of byte_store.py for an error response; `unavailable` for class 5xx and without a response."""
    if code in _EXPIRED_CODES:
        return Reason.CREDENTIALS_EXPIRED
    if code in _PASSING_CODES or status in _PASSING:
        return Reason.UNAVAILABLE
    if code in _DENIED_CODES or code.startswith("KMS."):
        return Reason.ACCESS_DENIED
    if code in _FULL_CODES:
        return Reason.NO_SPACE
    refused = status in _NOT_IMPLEMENTED or 300 <= status < 500  # noqa: PLR2004 - redirects and bad requests
    return _REASONS.get(status, Reason.STORE_REFUSES if refused else Reason.UNAVAILABLE)


def is_expired(error: Exception) -> bool:
    """Whether the store says that the request's credential has expired."""
    return error_code(error)[1] in _EXPIRED_CODES


def may_be_expired(error: Exception) -> bool:
    """Whether the store may have refused the request because its credential has expired."""
    status, code = error_code(error)
    return code in _EXPIRED_CODES or (status in _WITH_ANOTHER and code not in _PASSING_CODES - {"400"})


@contextmanager
def errors_named(location: str, action: str) -> Iterator[None]:
    """Translate boto's errors into errors of this project."""
    try:
        yield
    except (BotoCoreError, ClientError, OSError) as error:
        raise translated(error, location, action) from error


def is_not_implemented(error: Exception) -> bool:
    """Whether S3 responded that it does not support the operation."""
    status, code = error_code(error)
    return status in _NOT_IMPLEMENTED or code in {"NotImplemented", "MethodNotAllowed"}
