"""Makes the archive of the Java classes that Spark loads, in the environment, once after each set-up (about 30 s).

`python -m tests.services.java_archive`; quick_java.py says what it is for.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from compactor.settings.tree import Settings
from compactor.spark.session import spark_session
from tests.services.quick_java import ARCHIVE, OPTIONS, WITHOUT_WARNINGS

SET_UP: Final = Path(sys.prefix) / ".set-up"


def is_current() -> bool:
    return ARCHIVE.exists() and (not SET_UP.exists() or ARCHIVE.stat().st_mtime >= SET_UP.stat().st_mtime)


def make_archive() -> None:
    """Use what most tests use, in a JVM that writes the archive when it ends.

    A killed JVM must not leave half an archive for the tests: only a complete one gets the name they look for.
    """
    part = ARCHIVE.with_suffix(".part")
    part.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        conf = {"spark.driver.extraJavaOptions": f"{OPTIONS} -XX:ArchiveClassesAtExit={part} {WITHOUT_WARNINGS}"}
        settings = Settings(catalogs={"lake": catalog}, spark={"master": "local[2]", "conf": conf})
        session = spark_session(settings, "class-archive")
        try:
            _use(session, Path(folder))
        finally:
            code = _end(session)
        if code == 0:
            part.rename(ARCHIVE)


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


def _end(session: Any) -> int:
    """End the JVM, which writes the archive, and return its exit code; SparkSession.stop alone leaves it running."""
    gateway = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    return int(gateway.proc.wait())


if __name__ == "__main__" and not is_current():
    make_archive()
