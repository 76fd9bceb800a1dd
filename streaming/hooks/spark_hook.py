"""A refresh hook that runs a statement in the service's own Spark session, within a time limit of its own.

A statement that takes too long is cancelled, and its call fails. Spark can only cancel jobs. A statement that waits in
the driver, for a catalog or a database, goes on in its thread. Until it ends, further calls fail at once, so that there
is never more than one such thread for each hook.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import Future, wait
from typing import Any

from pyspark.sql import SparkSession


class SparkStatements:
    """Runs one statement at a time. `seconds`: most time for each."""

    def __init__(self, session: SparkSession, seconds: float) -> None:
        self._session = session
        self._seconds = seconds
        self._last: Future[Any] | None = None

    def run(self, text: str) -> None:
        """Run a statement to its end.

        Raises:
            TimeoutError: it took too long, or an earlier one that took too long has not ended.
        """
        if self._last is not None and not self._last.done():
            raise TimeoutError("an earlier statement took too long and has not ended")
        tag, future = f"firnline-hook-{uuid.uuid4().hex}", Future[Any]()
        self._last = future
        threading.Thread(target=self._collect, args=(text, tag, future), name="hook-statement", daemon=True).start()
        if not wait([future], self._seconds).done:
            self._session.sparkContext.cancelJobsWithTag(tag)
            raise TimeoutError(f"the statement took longer than hooks[].timeout_seconds ({self._seconds:g} s)")
        future.result()

    def _collect(self, text: str, tag: str, future: Future[Any]) -> None:
        try:
            self._session.sparkContext.addJobTag(tag)
            future.set_result(self._session.sql(text).collect())
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            future.set_exception(error)
