"""firnline's modules on executors: sent with the session, and checked there together with the packages they need.

Executors need an interpreter of the driver's Python version with firnline's Python dependencies, but no copy of
firnline: its packages are sent as an archive, so that they are always those of the driver.
"""

from __future__ import annotations

import importlib
import importlib.util
import platform
import socket
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from compactor.errors import InputError
from compactor.reasons import Reason

if TYPE_CHECKING:
    from pyspark import SparkContext

PACKAGES = ("compactor", "metrics", "streaming")
NEEDED = (
    "pyarrow", "pyiceberg", "pyiceberg_core", "datafusion", "pyroaring", "xxhash", "numpy", "pandas", "fastavro",
    "boto3", "pydantic", "yaml",
)  # fmt: skip
"""Modules that tasks import: rewrites, decoding of manifests and of events."""

UNUSABLE = (
    "PYTHON_VERSION_MISMATCH", "Cannot run program", "ModuleNotFoundError: ", "ImportError: ", "SyntaxError: ",
    "No port number in pyspark.daemon", "Bad data in pyspark.daemon",
)  # fmt: skip
"""In the errors of Spark jobs whose interpreter is not there, or is not one for firnline."""
REMEDY = (
    "In local mode, remove spark.pyspark.python from spark.conf. For a cluster, install firnline's Python dependencies "
    f"for Python {'.'.join(platform.python_version_tuple()[:2])} on every host (`pip install firnline` brings them), "
    "and name that interpreter there"
)


def send_modules(context: SparkContext) -> None:
    """Send firnline's packages to the executors of a cluster. Call it before the first job."""
    # The driver serves the file itself while the context lives; PySpark removes this folder with the context.
    archive = Path(context._temp_dir) / "firnline-modules.zip"  # noqa: SLF001
    write_archive(archive)
    context.addPyFile(str(archive))


def write_archive(archive: Path) -> None:
    """Write the installed packages as an archive that Python imports from."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name in PACKAGES:
            spec = importlib.util.find_spec(name)
            for folder in spec.submodule_search_locations or () if spec is not None else ():
                for source in sorted(Path(folder).rglob("*.py")):
                    file.write(source, str(Path(name) / source.relative_to(folder)))


def check_executors(context: SparkContext, tasks: int) -> None:
    """Look for what tasks need, in `tasks` tasks on the executors that there are. Waits for the first executor.

    Raises:
        InputError: something cannot be imported; the message names the host, what is missing, and the remedy.
    """
    context.setJobGroup("firnline-check", "check the Python packages of executors")
    try:
        found = set(context.parallelize(range(tasks), tasks).mapPartitions(_missing).collect())
    except Py4JJavaError as error:
        cause = unusable(error)
        if cause is None:
            raise
        raise InputError(
            f"Spark's Python workers cannot use the interpreter {context.pythonExec}: {cause}. {REMEDY}",
            reason=Reason.BAD_SETTING,
        ) from error
    if found:
        raise InputError(explanation(found), reason=Reason.BAD_SETTING)


def unusable(error: Exception) -> str | None:
    """The line of a Spark job's error which says that the interpreter of its Python workers cannot be used."""
    return next((line.strip() for line in str(error).splitlines() if any(sign in line for sign in UNUSABLE)), None)


def explanation(found: Iterable[tuple[str, str, str, str]]) -> str:
    """What is missing where. `found`: host, interpreter, its version, error."""
    lines = [f"{host}, {python} (Python {version}): {error}" for host, python, version, error in sorted(found)]
    return f"executors cannot import what rewrites need: {'; '.join(lines)}. {REMEDY}"


def _missing(_partition: Iterable[int]) -> Iterator[tuple[str, str, str, str]]:
    """Runs on an executor. Imports what every rewrite imports anyway, and looks for the rest: that takes no time."""
    for name in (*NEEDED, "compactor.rewrite.tasks.output_task"):
        try:
            if name.startswith("compactor"):
                importlib.import_module(name)
            elif importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(f"No module named {name!r}")  # noqa: TRY301 - said like the import's own
        except Exception as error:  # noqa: BLE001 - a broken package can raise anything
            yield socket.gethostname(), sys.executable, platform.python_version(), f"{type(error).__name__}: {error}"
