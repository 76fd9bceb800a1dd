"""Leaves out of an installed firnline what it never loads, so that the image stays small: `slim.py PREFIX`.

Run in the image's build stage. Every entry names something that is there, or the build fails: a new version of a
package that moves its files is noticed here and not by the size of the image.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

# Jars of pyspark, by what they are for. Hive's: PyIceberg's own client for it is not among firnline's dependencies.
UNUSED_JARS = {
    "Spark Connect and its shell": ("connect-repl", "spark-connect_*"),
    "cryptography of HDFS' encryption zones": ("bcprov-*",),
    "machine learning and graphs": (
        "spark-mllib*", "spark-graphx*", "breeze*", "spire*", "cats-kernel*", "algebra*", "JTransforms*",
        "JLargeArrays*", "arpack*", "blas-*", "lapack-*",
    ),
    "stores of state, which no query of firnline has, and DStreams": (
        "rocksdbjni*", "leveldbjni*", "spark-streaming_*",
    ),
    "kinds of Kubernetes objects that Spark neither makes nor reads": tuple(
        f"kubernetes-model-{kind}-*"
        for kind in (
            "admissionregistration", "apiextensions", "autoscaling", "flowcontrol", "gatewayapi", "resource",
            "storageclass",
        )
    ),
    "the Scala shell": ("spark-repl*", "scala-compiler*", "jline*"),
    "YARN, and a standalone master's election": ("spark-yarn*", "curator-*", "zookeeper*"),
    "Hive, but for what Spark's own ORC reader takes of it": (
        "spark-hive*", "hive-[!s]*", "hive-se*", "hive-shims*", "derby*", "datanucleus-*", "HikariCP*", "javax.jdo*",
        "jdo-api*", "libfb303*", "libthrift*",
    ),
}  # fmt: skip

# Of site-packages. Tests of packages are dropped wherever they are.
UNUSED_FILES = {
    "Arrow Flight, and what compiles against Arrow": (
        "pyarrow/libarrow_flight*", "pyarrow/libarrow_python_flight*", "pyarrow/_flight*", "pyarrow/include",
        "pyarrow/includes", "pyarrow/src", "pyarrow/*.pyx", "pyarrow/*.pxi",
    ),
    "Spark's examples, a second copy of itself, and its APIs for other work": (
        "pyspark/examples", "pyspark/data", "pyspark/python/lib/pyspark.zip", "pyspark/ml", "pyspark/mllib",
        "pyspark/pandas", "pyspark/sql/connect",
    ),
    "what type checkers and test suites read": ("**/*.pyi", "sqlalchemy/testing"),
    "Hive's client": ("hive_metastore",),
    "compilers' parts of NumPy": ("numpy/distutils", "numpy/f2py", "numpy/_core/include", "numpy/*/lib/*.a"),
    "time zones, which the system has too": ("tzdata/zoneinfo",),
    "the syntax of 500 languages, for colours": ("pygments/lexers/_[!_m]*.py", "pygments/lexers/[!_p]*.py"),
}  # fmt: skip

# What catalogs and their credentials are asked of AWS; the descriptions of 400 other services are 25 MB.
AWS_SERVICES = {"dynamodb", "glue", "kms", "lakeformation", "s3", "s3tables", "signin", "sso", "sso-oidc", "sts"}

# Parts of jars, by folder: YARN; what elects Hadoop's masters; AWS services that Iceberg calls for nothing but S3
# Access Grants; what languages, zones, units and currencies are called in 200 languages (Spark compares strings with
# ICU, and formats nothing).
UNUSED_PARTS = {
    "hadoop-client-api-*.jar": ("org/apache/hadoop/yarn/",),
    "hadoop-client-runtime-*.jar": tuple(
        f"org/apache/hadoop/shaded/org/{server}/" for server in ("apache/curator", "jline")
    ),
    "iceberg-aws-bundle-*.jar": tuple(
        f"software/amazon/awssdk/services/{service}/" for service in ("cloudwatch", "iam", "s3control")
    ),
    "icu4j-*.jar": tuple(
        f"com/ibm/icu/impl/data/icudata/{names}/"
        for names in ("curr", "lang", "rbnf", "region", "translit", "unit", "zone")
    ),
}

# Native libraries inside jars: jar → the folder or file that this platform loads, by machine.
NATIVE = {
    "zstd-jni-*.jar": {"x86_64": "linux/amd64/", "aarch64": "linux/aarch64/"},
    "sqlite-jdbc-*.jar": {
        "x86_64": "org/sqlite/native/Linux/x86_64/",
        "aarch64": "org/sqlite/native/Linux/aarch64/",
    },
    "snappy-java-*.jar": {
        "x86_64": "org/xerial/snappy/native/Linux/x86_64/",
        "aarch64": "org/xerial/snappy/native/Linux/aarch64/",
    },
    "iceberg-aws-bundle-*.jar": {"x86_64": "linux/x86_64/glibc/", "aarch64": "linux/armv8/glibc/"},
}
NATIVE_SUFFIXES = (".so", ".dll", ".jnilib", ".dylib", ".a")
IMPORTS = """
import importlib, pkgutil
import compactor, metrics, streaming
for package in compactor, metrics, streaming:
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
for lazily in (
    "botocore.signers", "pyiceberg.catalog.glue", "pyiceberg.catalog.rest", "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow", "pyspark.daemon", "pyspark.sql.pandas.group_ops", "sqlalchemy.dialects.sqlite",
):
    importlib.import_module(lazily)
"""
NETTY_NATIVE = {"x86_64": "linux-x86_64", "aarch64": "linux-aarch_64"}


def main(prefix: Path) -> None:
    """Slim the virtual environment at `prefix`, in place."""
    packages = next(prefix.glob("lib/python3.*/site-packages"))
    jars = packages / "pyspark" / "jars"
    for why, patterns in UNUSED_JARS.items():
        drop(jars, patterns, why)
    for why, patterns in UNUSED_FILES.items():
        drop(packages, patterns, why)
    drop_tests(packages)
    keep_only(packages / "botocore" / "data", AWS_SERVICES)
    folders = [jars, *prefix.glob("share/firnline/jars/*")]
    drop_foreign_natives(jars)
    for pattern, natives in NATIVE.items():
        for jar in matching(folders, pattern):
            rewrite(jar, unless=NATIVE_SUFFIXES, within=natives[platform.machine()])
    for pattern, parts in UNUSED_PARTS.items():
        for jar in matching(folders, pattern):
            rewrite(jar, without=parts)
    pin_again(packages, prefix.glob("share/firnline/jars/*/*.jar"))
    link_duplicates(packages / "pyarrow")
    strip_symbols(packages)
    check_imports(prefix)


def drop(folder: Path, patterns: Iterable[str], why: str) -> None:
    """Remove what the patterns match.

    Raises:
        SystemExit: a pattern matches nothing.
    """
    for pattern in patterns:
        found = list(folder.glob(pattern))
        if not found:
            sys.exit(f"slim: {pattern} ({why}) is not in {folder}; look where it went and correct slim.py")
        for path in found:
            remove(path)


def remove(path: Path) -> None:
    """A file or a whole folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def drop_tests(packages: Path) -> None:
    """Packages' own tests."""
    for folder in sorted(packages.glob("**/tests")):
        if folder.is_dir() and not folder.is_relative_to(packages / "pyspark"):
            remove(folder)


def keep_only(folder: Path, names: set[str]) -> None:
    """Of the folders in `folder`, only those named; its files stay."""
    missing = names - {path.name for path in folder.iterdir()}
    if missing:
        sys.exit(f"slim: {folder} has no {', '.join(sorted(missing))}; correct slim.py")
    for path in folder.iterdir():
        if path.is_dir() and path.name not in names:
            remove(path)


def drop_foreign_natives(jars: Path) -> None:
    """Netty's native libraries for other systems and processors, each a jar of its own."""
    kept = NETTY_NATIVE[platform.machine()]
    for pattern in ("netty-transport-native-[!u]*.jar", "netty-tcnative-boringssl-*.jar"):
        for path in jars.glob(pattern):
            if kept not in path.name:
                remove(path)


def matching(folders: list[Path], pattern: str) -> list[Path]:
    """The jars of that name, wherever they are: there is one at least."""
    found = [path for folder in folders for path in folder.glob(pattern)]
    if not found:
        sys.exit(f"slim: no {pattern}; correct slim.py")
    return found


def rewrite(jar: Path, *, unless: tuple[str, ...] = (), within: str = "", without: tuple[str, ...] = ()) -> None:
    """Write a jar anew: no files that end in `unless` but those below `within`, and nothing below `without`."""
    slim = jar.with_suffix(".slim")
    with zipfile.ZipFile(jar) as old, zipfile.ZipFile(slim, "w", zipfile.ZIP_DEFLATED) as new:
        entries = {entry.filename: entry for entry in old.infolist()}  # some jars hold a licence twice
        for prefix in (*without, *([within] if within else [])):
            if not any(name.startswith(prefix) for name in entries):
                sys.exit(f"slim: {jar.name} has no {prefix}; correct slim.py")
        for name, entry in entries.items():
            foreign = name.endswith(unless) and not name.startswith(within)
            if not foreign and not (without and name.startswith(without)):
                new.writestr(entry, old.read(entry))
    slim.replace(jar)


def pin_again(packages: Path, jars: Iterable[Path]) -> None:
    """The digests of the jars as they are now. They were checked when fetched, and are checked at each start."""
    file = packages / "compactor" / "spark" / "jars.sha256"
    known = {name: digest for digest, _, name in (line.partition("  ") for line in file.read_text().splitlines())}
    now = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in jars}
    if not now or not now.keys() <= known.keys():
        sys.exit(f"slim: {sorted(now.keys() - known.keys())} have no digest in {file}, or there are no jars")
    file.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted((known | now).items())))


def link_duplicates(folder: Path) -> None:
    """Wheels cannot hold links: the same library is there under each of its names."""
    for path in folder.glob("*.so"):
        longest = max(folder.glob(f"{path.name}*"), key=lambda one: len(one.name))
        for name in folder.glob(f"{path.name}*"):
            if name != longest and name.read_bytes() == longest.read_bytes():
                name.unlink()
                name.symlink_to(longest.name)


def strip_symbols(packages: Path) -> None:
    """Debugging symbols. Not of libraries that auditwheel moved into `*.libs`: those do not survive it."""
    libraries = [
        path
        for path in packages.glob("**/*.so")
        if not path.is_symlink() and not path.parent.name.endswith(".libs") and os.access(path, os.R_OK)
    ]
    subprocess.run(["strip", "--strip-unneeded", *map(str, libraries)], check=True)


def check_imports(prefix: Path) -> None:
    """Nothing that firnline imports was left out. No byte code is written: 35 MB, for four seconds of a start."""
    subprocess.run([str(prefix / "bin" / "python"), "-B", "-c", IMPORTS], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
