"""Statements of refresh hooks in Spark end within their time, whether Spark can cancel them or not."""

from __future__ import annotations

import pytest

from streaming.hooks.spark_hook import SparkStatements
from tests.conftest import Lake
from tests.integration.service_process import wait_for

pytestmark = pytest.mark.spark
ENDLESS = "SELECT count(*) FROM range(100000000000000) WHERE id % 7 = 9"
ASLEEP = "SELECT java_method('java.lang.Thread', 'sleep', {milliseconds}L)"


def test_a_statement_whose_job_takes_too_long_is_cancelled(lake: Lake) -> None:
    statements, tracker = SparkStatements(lake.session, 1.0), lake.session.sparkContext.statusTracker()
    before = set(tracker.getActiveJobsIds())
    with pytest.raises(TimeoutError, match="timeout_seconds"):
        statements.run(ENDLESS)
    wait_for("the job to end", lambda: not set(tracker.getActiveJobsIds()) - before)
    SparkStatements(lake.session, 60.0).run("SELECT 1")


def test_a_statement_that_waits_in_the_driver_costs_one_thread_and_the_next_call_fails_at_once(lake: Lake) -> None:
    statements = SparkStatements(lake.session, 0.5)
    with pytest.raises(TimeoutError, match="timeout_seconds"):
        statements.run(ASLEEP.format(milliseconds=8000))
    with pytest.raises(TimeoutError, match="earlier statement"):
        statements.run("SELECT 1")

    def works() -> bool:
        try:
            SparkStatements.run(statements, "SELECT 1")
        except TimeoutError:
            return False
        return True

    wait_for("the earlier statement to end", works)


def test_an_error_of_a_statement_is_raised(lake: Lake) -> None:
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        SparkStatements(lake.session, 60.0).run("REFRESH TABLE lake.db.there_is_none")
