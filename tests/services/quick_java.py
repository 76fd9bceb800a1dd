"""JVM options for processes that live for minutes: compile with the first compiler only, collect garbage in one thread.

The second compiler takes about half of the CPU time of a short Spark process, and pays off only later. Loading classes
takes half of what is left at the start of Spark: `make test` puts them in an archive (java_archive.py). Without it,
tests only take longer. The JVM checks the archive against its own version and the jars, and ignores one that does not
match.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final, TypeVar

OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
"""With the first compiler only, the JVM reserves a fifth of the usual space for code. A process that works for an hour
fills it; then nothing is compiled any more."""
ARCHIVE: Final = Path(sys.prefix) / "java-classes.jsa"
WITHOUT_WARNINGS: Final = "-Xlog:cds=off -Xlog:class+path=off"
WITH_ARCHIVE: Final = f" -XX:SharedArchiveFile={ARCHIVE} {WITHOUT_WARNINGS}" if ARCHIVE.exists() else ""
SPARK_CONF: Final = {"spark.driver.extraJavaOptions": OPTIONS + WITH_ARCHIVE}
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
