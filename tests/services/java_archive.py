"""An archive of the Java classes that Spark loads: with it, a Spark process of the tests starts in half the CPU time.

`python -m tests.services.java_archive` makes it in the environment, once after each set-up. Without it, tests only take
longer. The JVM checks the archive against its own version and the jars, and ignores one that does not match.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from compactor.settings.tree import Settings
from compactor.spark.session import spark_session

OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ARCHIVE: Final = Path(sys.prefix) / "java-classes.jsa"
SET_UP: Final = Path(sys.prefix) / ".set-up"
WITHOUT_WARNINGS: Final = "-Xlog:cds=off -Xlog:class+path=off"


def archive_options() -> str:
    """Options of the `java` command; empty where there is no archive."""
    if not ARCHIVE.exists() or " " in str(ARCHIVE):
        return ""
    return f" -XX:SharedArchiveFile={ARCHIVE} {WITHOUT_WARNINGS}"


def is_current() -> bool:
    return ARCHIVE.exists() and (not SET_UP.exists() or ARCHIVE.stat().st_mtime >= SET_UP.stat().st_mtime)


def make_archive() -> None:
    """Use what most tests use, in a JVM that writes the archive when it ends (about 30 s)."""
    ARCHIVE.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        conf = {"spark.driver.extraJavaOptions": f"{OPTIONS} -XX:ArchiveClassesAtExit={ARCHIVE} {WITHOUT_WARNINGS}"}
        settings = Settings(catalogs={"lake": catalog}, spark={"master": "local[2]", "conf": conf})
        session = spark_session(settings, "class-archive")
        try:
            _use(session, Path(folder))
        finally:
            _end(session)


def _use(session: Any, folder: Path) -> None:
    session.sql("CREATE NAMESPACE lake.db")
    session.sql("CREATE TABLE lake.db.t (id INT, s STRING) USING iceberg PARTITIONED BY (bucket(2, id))")
    session.sql("INSERT INTO lake.db.t SELECT CAST(id AS INT), 's' FROM range(100)")
    session.sql("DELETE FROM lake.db.t WHERE id = 1")
    session.sql("SELECT COUNT(*) FROM lake.db.t.files").collect()
    session.sql("SELECT s, COUNT(*) FROM lake.db.t GROUP BY s ORDER BY s").collect()
    stream = session.readStream.format("rate").load().writeStream.option("checkpointLocation", str(folder / "stream"))
    query = stream.foreachBatch(lambda batch, _: batch.collect()).start()
    while query.isActive and query.lastProgress is None:
        query.awaitTermination(1)
    query.stop()


def _end(session: Any) -> None:
    """End the JVM, which writes the archive; SparkSession.stop alone leaves it running."""
    gateway = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__" and not is_current():
    make_archive()
