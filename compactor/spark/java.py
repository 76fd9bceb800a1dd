"""Versions of Java and of all jars. No other module names them.

These versions resolve together, and the tests run on them: Spark 4.0 with Iceberg 1.11. Newer patch releases of Spark's
Kafka token-provider module are not in every repository; 4.0.0 works with every 4.0.x.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from compactor.errors import GiveUpError, InputError
from compactor.locations import user_folder
from compactor.reasons import Reason
from compactor.spark.jar_digests import check_jars, checked

SUPPORTED_JAVA = (17, 21)


@dataclass(frozen=True)
class JarSet:
    """Maven coordinates that are fetched together into one folder.

    Attributes:
        name: Part of the folder's name.
        coordinates: `group:artifact:version`, or `group:artifact:version:classifier` for that jar alone.
        transitive: Whether to fetch their dependencies too. A coordinate with a classifier brings none.
    """

    name: str
    coordinates: tuple[str, ...]
    transitive: bool


SPARK_JARS = JarSet(
    "spark",
    (
        "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.0",
        "org.apache.commons:commons-pool2:2.12.0",
        "org.xerial:sqlite-jdbc:3.50.3.0",
    ),
    transitive=False,
)
AWS_JARS = JarSet("aws", ("org.apache.iceberg:iceberg-aws-bundle:1.11.0",), transitive=False)
GCP_JARS = JarSet("gcp", ("org.apache.iceberg:iceberg-gcp-bundle:1.11.0",), transitive=False)
AZURE_JARS = JarSet("azure", ("org.apache.iceberg:iceberg-azure-bundle:1.11.0",), transitive=False)
KAFKA_BROKER_JARS = JarSet(
    "kafka-broker", ("org.apache.kafka:kafka_2.13:4.1.1", "org.slf4j:slf4j-simple:1.7.36"), transitive=True
)
# For the tests and `make demo-rest-s3`. The catalog also needs Hadoop's client jars, which pyspark ships
# (`pyspark_jars`).
S3PROXY_JARS = JarSet("s3proxy", ("org.gaul:s3proxy:4.1.0:jar-with-dependencies",), transitive=False)
REST_CATALOG_JARS = JarSet(
    "rest-catalog",
    (
        "org.apache.iceberg:iceberg-open-api:1.11.0:test-fixtures",
        "org.apache.iceberg:iceberg-core:1.11.0",
        "org.apache.iceberg:iceberg-core:1.11.0:tests",
        "org.apache.iceberg:iceberg-aws:1.11.0",
        "org.apache.iceberg:iceberg-aws-bundle:1.11.0",
        "org.eclipse.jetty.ee10:jetty-ee10-servlet:12.1.14",
        "org.eclipse.jetty.compression:jetty-compression-server:12.1.14",
        "org.eclipse.jetty.compression:jetty-compression-gzip:12.1.14",
        "jakarta.servlet:jakarta.servlet-api:6.0.0",
        "org.xerial:sqlite-jdbc:3.50.3.0",
        "org.slf4j:slf4j-simple:2.0.17",
    ),
    transitive=True,
)
JAR_SETS = (SPARK_JARS, AWS_JARS, GCP_JARS, AZURE_JARS, KAFKA_BROKER_JARS, S3PROXY_JARS, REST_CATALOG_JARS)


def java_home() -> Path:
    """Home folder of Java 17 or 21: `JAVA_HOME`, else `java` on the path, else the usual folders.

    Raises:
        InputError: none is installed; the message says how to install it.
    """
    for home in _candidate_homes():
        if _major_version(home) in SUPPORTED_JAVA:
            return home
    raise InputError(
        "Spark 4.0 needs Java 17 or 21, and none was found: install one "
        "(Debian/Ubuntu: apt-get install openjdk-17-jre-headless; Fedora: dnf install java-21-openjdk-headless; "
        "macOS: brew install openjdk@21) or set JAVA_HOME",
        reason=Reason.NO_JAVA,
    )


def _candidate_homes() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve().parent.parent
    for folder in (
        "/usr/lib/jvm",
        "/Library/Java/JavaVirtualMachines",
        "/opt/homebrew/opt",
        "/usr/local/opt",
        "/opt/java",
    ):
        if Path(folder).is_dir():
            for home in sorted(Path(folder).iterdir()):
                yield home
                yield home / "Contents" / "Home"


def _major_version(home: Path) -> int | None:
    program = home / "bin" / "java"
    if not program.exists():
        return None
    printed = subprocess.run([str(program), "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', printed)
    return int(found.group(1)) if found else None


def jar_name(coordinate: str) -> str:
    """File name of the jar of a coordinate."""
    _, artifact, version, *classifier = coordinate.split(":")
    return "-".join([artifact, version, *classifier]) + ".jar"


def jars_folder(jar_set: JarSet) -> Path:
    """Folder of a jar set: in the Python environment if that is writable, else in the user's cache."""
    digest = hashlib.sha256(" ".join(jar_set.coordinates).encode()).hexdigest()[:12]
    name = f"{jar_set.name}-{digest}"
    inside = Path(sys.prefix) / "share" / "firnline" / "jars"
    if (inside / name).is_dir() or os.access(sys.prefix, os.W_OK):
        return inside / name
    return user_folder("XDG_CACHE_HOME", ".cache") / "firnline" / "jars" / name


def fetch_jars(jar_set: JarSet) -> list[Path]:
    """The jars of a set. The first call fetches them with the Ivy that pyspark ships; later calls use no network.

    Raises:
        GiveUpError: the jars could not be fetched; the message has the last lines of Ivy's output.
        InputError: a jar is not the one whose digest is pinned (jar_digests.py), or the folder cannot be written.
    """
    folder = jars_folder(jar_set)
    if not folder.is_dir():
        with _written(folder), tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            retrieve(jar_set, Path(scratch))
            check_jars((Path(scratch) / "jars").glob("*.jar"))
            try:
                (Path(scratch) / "jars").rename(folder)
            except OSError:
                if not folder.is_dir():  # another process has fetched the same set
                    raise
    return list(checked(tuple(sorted(folder.glob("*.jar")))))


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    """Make the parent of a folder of jars. Errors of writing there name it and the remedy."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise InputError(
            f"jars cannot be written to {folder.parent}: {error}; run `firnline jars` as a user who may write there, "
            "or set XDG_CACHE_HOME to another folder"
        ) from error


def pyspark_jars() -> Path:
    """Folder of the jars that pyspark ships: Ivy, Hadoop's clients, Spark."""
    import pyspark  # noqa: PLC0415 - slow to import, and needed only to fetch jars or start a process

    return Path(pyspark.__file__).parent / "jars"


def _ivy_module(jar_set: JarSet) -> str:
    """The set as an Ivy module file: one dependency per module, with named artifacts where one has a classifier."""
    classifiers: dict[tuple[str, str, str], list[str]] = {}
    for coordinate in jar_set.coordinates:
        group, artifact, version, *classifier = coordinate.split(":")
        classifiers.setdefault((group, artifact, version), []).append("".join(classifier))
    dependencies = "".join(
        _dependency(*module, found, jar_set.transitive and "" in found) for module, found in classifiers.items()
    )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="firnline" module="jars"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{dependencies}</dependencies>'
        "</ivy-module>"
    )


def _dependency(group: str, artifact: str, version: str, classifiers: list[str], transitive: bool) -> str:
    artifacts = "".join(
        f'<artifact name="{artifact}" type="jar" ext="jar"' + (f' m:classifier="{found}"/>' if found else "/>")
        for found in classifiers
        if any(classifiers)
    )
    wanted = "master,runtime,compile" if transitive else "master"
    return (
        f'<dependency org="{group}" name="{artifact}" rev="{version}" transitive="{str(transitive).lower()}" '
        f'conf="default->{wanted}">{artifacts}</dependency>'
    )


def retrieve(jar_set: JarSet, scratch: Path) -> None:
    """Fetch the jars of a set into `scratch`/jars, unchecked: a repository's own checksums come from the repository.

    Raises:
        GiveUpError: as `fetch_jars`.
    """
    (scratch / "ivy.xml").write_text(_ivy_module(jar_set))
    command = [
        str(java_home() / "bin" / "java"), "-cp", f"{pyspark_jars()}/*",
        "org.apache.ivy.Main", "-ivy", str(scratch / "ivy.xml"), "-confs", "default",
        "-cache", str(scratch / "cache"), "-types", "jar", "bundle",
        "-retrieve", str(scratch / "jars" / "[artifact]-[revision](-[classifier]).[ext]"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = len(list((scratch / "jars").glob("*.jar"))) if (scratch / "jars").is_dir() else 0
    if done.returncode != 0 or found < len(jar_set.coordinates) or "FAILED" in done.stdout:
        raise GiveUpError(
            f"the {jar_set.name} jars could not be fetched; check the network or a Maven mirror, then try "
            f"`firnline jars {jar_set.name}`:\n" + "\n".join((done.stdout + done.stderr).splitlines()[-15:]),
            reason=Reason.JARS_UNAVAILABLE,
        )
