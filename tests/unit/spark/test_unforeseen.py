"""What an error that no code expects means for its caller."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors.exceptions.captured import CapturedException

from compactor.errors import FirnlineError, GiveUpError, RetryError
from compactor.spark.java_table import unforeseen


class OfJava(CapturedException):
    """An error of Java that PySpark has taken for its own."""

    def __init__(self, text: str) -> None:
        self._desc, self._origin = text, None

    def __str__(self) -> str:
        return self._desc


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), RetryError, "spark_lost"),
        (OfJava("Job 7 cancelled because SparkContext was shut down"), RetryError, "spark_lost"),
        (OfJava("Cannot call methods on a stopped SparkContext."), RetryError, "spark_lost"),
        (
            OfJava("Failed to create\nCaused by: java.io.IOException: Mkdirs failed to create file:/t"),
            GiveUpError,
            "access_denied",
        ),
        (OfJava("Access Denied (Service: S3, Status Code: 403, Request ID: 1)"), GiveUpError, "access_denied"),
        (OfJava("Status code 403, AuthorizationPermissionMismatch"), GiveUpError, "access_denied"),
        (OfJava("java.nio.file.AccessDeniedException: /t/a"), GiveUpError, "access_denied"),
        (OfJava("java.io.FileNotFoundException: /t/a (Permission denied)"), GiveUpError, "access_denied"),
        (OfJava("java.io.IOException: Read-only file system"), GiveUpError, "access_denied"),
        (OfJava("org.apache.hadoop.security.AccessControlException: user"), GiveUpError, "access_denied"),
        (OfJava("com.google.cloud.storage.StorageException: 403 Forbidden"), GiveUpError, "access_denied"),
        (OfJava("a bug"), GiveUpError, "unexpected"),
        (KeyError("a bug"), GiveUpError, "unexpected"),
    ],
)
def test_the_end_of_spark_is_no_fault_of_the_table(error: Exception, kind: type[FirnlineError], reason: str) -> None:
    """Given up, a request would be dropped, and the next life of the service would not know it."""
    found = unforeseen("rewriting lake.db.t", error)
    assert type(found) is kind
    assert found.reason == reason
    assert "lake.db.t" in str(found)
