"""Until when a credential is valid, and when it is time for another."""

from __future__ import annotations

import pytest

from compactor.credentials.credential import MARGIN_SECONDS, Credential, means_expired

KEYS = {"s3.access-key-id": "AKID", "s3.secret-access-key": "very-secret", "s3.session-token": "session"}
NOW = 1_000_000.0


def vended(seconds: float | None, **more: str) -> Credential:
    end = {} if seconds is None else {"s3.session-token-expires-at-ms": str(int((NOW + seconds) * 1000))}
    found = Credential.of({**KEYS, **end, **more, "s3.endpoint": "http://h"}, NOW)
    assert found is not None
    return found


def test_only_what_grants_access_is_part_of_it() -> None:
    assert dict(vended(None).properties) == KEYS
    assert Credential.of({"s3.endpoint": "http://h", "s3.region": "r"}, NOW) is None
    assert Credential.of({"s3.session-token-expires-at-ms": "5"}, NOW) is None
    assert Credential.of({"gcs.oauth2.token": "t", "gcs.oauth2.token-expires-at": "2000000000000"}, NOW) is not None
    azure = {"adls.sas-token.account.dfs.core.windows.net": "t"}
    azure["adls.sas-token-expires-at-ms.account.dfs.core.windows.net"] = str(int((NOW + 60) * 1000))
    found = Credential.of(azure, NOW)
    assert found is not None
    assert found.valid_until == NOW + 60


@pytest.mark.parametrize(("lifetime", "due_after"), [(3600, 3600 - MARGIN_SECONDS), (900, 600), (60, 40), (3, 2)])
def test_it_is_due_before_it_is_over(lifetime: float, due_after: float) -> None:
    credential = vended(lifetime)
    assert not credential.is_due(NOW + due_after - 0.1)
    assert credential.is_due(NOW + due_after)
    assert not credential.is_over(NOW + lifetime - 0.1)
    assert credential.is_over(NOW + lifetime)


def test_without_an_end_only_the_store_says_that_it_is_over() -> None:
    for credential in (vended(None), vended(None, **{"s3.session-token-expires-at-ms": "soon"})):
        assert not credential.is_due(NOW + 1e9)
        assert not credential.is_over(NOW + 1e9)


def test_a_clock_that_is_ahead_does_not_end_each_new_one() -> None:
    assert vended(-60).valid_until is None
    assert not vended(-60).is_due(NOW)


def test_the_newer_one_is_valid_for_longer() -> None:
    assert vended(20).is_newer(vended(10))
    assert not vended(10).is_newer(vended(10))
    later = Credential.of(KEYS, NOW + 1)
    assert later is not None
    assert later.is_newer(vended(None))
    assert not vended(None).is_newer(later)


def test_its_text_shows_no_secret() -> None:
    assert "very-secret" not in repr(vended(10))
    assert set(vended(10).secrets) == set(KEYS.values())


@pytest.mark.parametrize(
    ("error", "vended_by_catalog", "expired"),
    [
        (
            "AWS Error UNKNOWN (HTTP status 400) ... Unable to parse ExceptionName: ExpiredToken Message: ...",
            False,
            True,
        ),
        ("The provided token has expired. (Service: S3, Status Code: 400, Request ID: 1)", False, True),
        ("org.apache.iceberg.exceptions.NotAuthorizedException: Not authorized: expired", False, True),
        ("AWS Error UNKNOWN (HTTP status 400) during HeadObject operation: No response body.", False, False),
        ("AWS Error UNKNOWN (HTTP status 400) during HeadObject operation: No response body.", True, True),
        ("Access Denied (Service: S3, Status Code: 403)", False, False),
        ("java.net.SocketException: Connection reset", True, False),
    ],
)
def test_errors_of_clients_that_may_mean_an_expired_credential(
    error: str, vended_by_catalog: bool, expired: bool
) -> None:
    assert means_expired(error, vended=vended_by_catalog) is expired
