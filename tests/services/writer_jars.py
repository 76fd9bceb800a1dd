"""Jars of writers that tests run beside firnline: Kafka Connect, Iceberg's sink for it, and Flink. No user needs them.

`writer_jars.sha256` pins them, as compactor/spark/jars.sha256 pins the jars of firnline. After a change of versions,
`python -m tests.services.writer_jars` fetches them anew and writes it; read the difference.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from compactor.errors import InputError
from compactor.reasons import Reason
from compactor.spark.jar_digests import digest_of
from compactor.spark.java import AWS_JARS, JarSet, fetch_jars, jars_folder, pyspark_jars, retrieve

DIGESTS: Final = Path(__file__).with_name("writer_jars.sha256")
LOGGER = "org.slf4j:slf4j-simple:1.7.36"
CONNECT_JARS = JarSet(
    "kafka-connect",
    ("org.apache.kafka:connect-runtime:4.1.1", "org.apache.kafka:connect-json:4.1.1", LOGGER),
    transitive=True,
)
# The POM of iceberg-kafka-connect names neither file formats nor the HTTP client of the REST catalog.
SINK_JARS = JarSet(
    "iceberg-sink",
    (
        "org.apache.iceberg:iceberg-kafka-connect:1.11.0",
        "org.apache.iceberg:iceberg-parquet:1.11.0",
        "org.apache.iceberg:iceberg-orc:1.11.0",
        "org.apache.iceberg:iceberg-aws:1.11.0",
        "dev.failsafe:failsafe:3.3.2",
    ),
    transitive=True,
)
FLINK_JARS = JarSet(
    "flink",
    (
        "org.apache.flink:flink-clients:2.1.1",
        "org.apache.flink:flink-streaming-java:2.1.1",
        "org.apache.flink:flink-table-api-java-bridge:2.1.1",
        "org.apache.flink:flink-table-planner-loader:2.1.1",
        "org.apache.flink:flink-table-runtime:2.1.1",
        "org.apache.flink:flink-connector-datagen:2.1.1",
        "org.apache.iceberg:iceberg-flink-runtime-2.1:1.11.0",
        LOGGER,
    ),
    transitive=True,
)
JAR_SETS = (CONNECT_JARS, SINK_JARS, FLINK_JARS)


def writer_jars(jar_set: JarSet) -> list[Path]:
    """The jars of one of these sets, fetched by the first call.

    Raises:
        GiveUpError: the jars could not be fetched.
        InputError: a jar is not the one that is pinned.
    """
    folder = jars_folder(jar_set)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            retrieve(jar_set, Path(scratch))
            check((Path(scratch) / "jars").glob("*.jar"))
            (Path(scratch) / "jars").rename(folder)
    jars = sorted(folder.glob("*.jar"))
    check(jars)
    return jars


def storage_jars() -> list[Path]:
    """What Iceberg's writers need besides for tables on S3: Amazon's client, and Hadoop's classes."""
    return [*fetch_jars(AWS_JARS), *sorted(pyspark_jars().glob("hadoop-client-*.jar"))]


def check(jars: Iterable[Path]) -> None:
    """Compare jars with their digests.

    Raises:
        InputError: one differs, or none is known.
    """
    pinned = {name: digest for digest, _, name in (line.partition("  ") for line in DIGESTS.read_text().splitlines())}
    for jar in jars:
        found = digest_of(jar)
        if pinned.get(jar.name) != found:
            raise InputError(
                f"{jar} is not the jar that {DIGESTS.name} pins: expected SHA-256 {pinned.get(jar.name, '(none)')}, "
                f"found {found}; delete {jar.parent}, and fetch the jars from a repository that you trust",
                reason=Reason.JAR_DIFFERS,
            )


def main() -> None:
    """Fetch all sets anew and write their digests."""
    digests: dict[str, str] = {}
    for jar_set in JAR_SETS:
        with tempfile.TemporaryDirectory() as scratch:
            retrieve(jar_set, Path(scratch))
            digests |= {jar.name: digest_of(jar) for jar in (Path(scratch) / "jars").glob("*.jar")}
    DIGESTS.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items())))
    print(f"{DIGESTS}: {len(digests)} jars")


if __name__ == "__main__":
    main()
