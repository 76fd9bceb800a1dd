"""JVM options for processes that live for minutes: compile with the first compiler only, collect garbage in one thread.

The second compiler takes about half of the CPU time of a short Spark process, and pays off only later.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final, TypeVar

from tests.services.java_archive import OPTIONS, archive_options

SPARK_CONF: Final = {"spark.driver.extraJavaOptions": OPTIONS + archive_options()}
VARIABLE: Final = "JDK_JAVA_OPTIONS"  # read by the `java` command

Started = TypeVar("Started")


@contextmanager
def quick_java(server: AbstractContextManager[Started]) -> Iterator[Started]:
    """Run `server`; Java processes that it starts take the options."""
    with ExitStack() as running:
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = f"{before or ''} {OPTIONS}".strip()
        try:
            started = running.enter_context(server)
        finally:
            if before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = before
        yield started
