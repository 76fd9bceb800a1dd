"""Build dist/firnline-iceberg-reporter-VERSION.jar, Iceberg's metrics reporter for Java writers (`make reporter`).

The jar holds the classes of src/main/java, and kafka-clients below `io/firnline/iceberg/kafka-clients/`, where only the
reporter's own class loader finds them (NestedKafka.java). Two builds with the same compiler make the same bytes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from compactor.errors import FirnlineError, GiveUpError, InputError
from compactor.reasons import Reason
from compactor.spark.java import SPARK_JARS, fetch_jars, java_home, pyspark_jars

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "src" / "main" / "java"
NESTED = "io/firnline/iceberg/kafka-clients/"
RELEASE = "11"  # oldest Java of writers: Flink 1.20 with Iceberg 1.10
OLDEST_COMPILER = 17  # Iceberg 1.11 has classes of Java 17
LEFT_OUT = ("META-INF/MANIFEST.MF", "common/message/")  # of kafka-clients; the second describes its protocol for tools
DATE = (1980, 1, 1, 0, 0, 0)
NO_COMPILER = (
    "the reporter needs a JDK of Java 17 or later, and no javac was found: install one "
    "(Debian/Ubuntu: apt-get install openjdk-17-jdk-headless; Fedora: dnf install java-21-openjdk-devel; "
    "macOS: brew install openjdk@21) or set JAVA_HOME"
)


def build(folder: Path) -> Path:
    """Write the jar to `folder`; its path.

    Raises:
        InputError: no compiler is installed.
        GiveUpError: the jars cannot be fetched, or the compiler fails; the message has its output.
    """
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    jars = fetch_jars(SPARK_JARS)
    compiler = find_compiler()
    with tempfile.TemporaryDirectory() as classes:
        compile_sources(compiler, SOURCES, jars, Path(classes))
        files = dict(entries(version, Path(classes), next(jar for jar in jars if jar.name.startswith("kafka-clients"))))
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"firnline-iceberg-reporter-{version}.jar"
    write(target, files)
    return target


def find_compiler() -> Path:
    """`javac` of JAVA_HOME, of the Java that firnline uses, or on the path.

    Raises:
        InputError: there is none of Java 17 or later; the message says what to install.
    """
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    found = [*(home / "bin" / "javac" for home in (*homes, java_home())), Path(shutil.which("javac") or "")]
    for program in found:
        if program.is_file() and _major_version(program) >= OLDEST_COMPILER:
            return program
    raise InputError(NO_COMPILER, reason=Reason.NO_JAVA)


def _major_version(compiler: Path) -> int:
    printed = subprocess.run([str(compiler), "-version"], capture_output=True, text=True, check=False)
    found = re.search(r"javac (\d+)", printed.stdout + printed.stderr)
    return int(found.group(1)) if found else 0


def compile_sources(compiler: Path, sources: Path, jars: Sequence[Path], classes: Path) -> None:
    """Compile one file, or all of a folder, against `jars` and Spark's slf4j-api.

    Raises:
        GiveUpError: the compiler fails.
    """
    files = sorted(map(str, sources.rglob("*.java"))) if sources.is_dir() else [str(sources)]
    class_path = os.pathsep.join(map(str, (*jars, *pyspark_jars().glob("slf4j-api-*.jar"))))
    options = ("--release", RELEASE, "-Xlint:all,-classfile,-options", "-proc:none", "-encoding", "UTF-8")
    command = [str(compiler), *options, "-cp", class_path, "-d", str(classes), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise GiveUpError(f"{compiler} failed:\n{done.stdout}{done.stderr}")


def entries(version: str, classes: Path, kafka_clients: Path) -> Iterator[tuple[str, bytes]]:
    """The jar's files by name; the manifest comes first, as Java's own tools expect it."""
    manifest = f"Manifest-Version: 1.0\r\nImplementation-Title: firnline\r\nImplementation-Version: {version}\r\n\r\n"
    yield "META-INF/MANIFEST.MF", manifest.encode()
    yield "META-INF/LICENSE", (ROOT / "LICENSE").read_bytes()
    for path in sorted(classes.rglob("*.class")):
        yield path.relative_to(classes).as_posix(), path.read_bytes()
    with zipfile.ZipFile(kafka_clients) as jar:
        for name in sorted(jar.namelist()):
            if not name.endswith("/") and not name.startswith(LEFT_OUT):
                yield NESTED + name, jar.read(name)


def write(target: Path, files: dict[str, bytes]) -> None:
    """Write the files in their order, all with the same date and permissions."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as jar:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            jar.writestr(entry, content)


def main() -> None:
    """Build into the folder that is named, else into dist/."""
    try:
        target = build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
    except FirnlineError as error:
        sys.exit(f"reporter: {error}")
    sys.stdout.write(f"{target}: {target.stat().st_size / 1e6:.1f} MB\n")


if __name__ == "__main__":
    main()
