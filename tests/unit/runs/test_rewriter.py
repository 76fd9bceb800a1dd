"""How a run ends for its caller, by what ended it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors.exceptions.captured import CapturedException

from compactor.errors import FirnlineError, GiveUpError, RetryError
from compactor.runs.rewriter import _failure
from compactor.table_names import TableName

PLAN = cast("Any", SimpleNamespace(table=SimpleNamespace(name=TableName("lake", ("db",), "t"))))


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
        (OfJava("a bug"), GiveUpError, "unexpected"),
        (KeyError("a bug"), GiveUpError, "unexpected"),
    ],
)
def test_the_end_of_spark_is_no_fault_of_the_table(error: Exception, kind: type[FirnlineError], reason: str) -> None:
    """Given up, a request would be dropped, and the next life of the service would not know it."""
    found = _failure(PLAN, error)
    assert type(found) is kind
    assert found.reason == reason
    assert "lake.db.t" in str(found)
