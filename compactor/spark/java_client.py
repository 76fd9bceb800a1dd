"""Iceberg's Java client of one catalog and its store, in a JVM of its own: what commits, tried without Spark."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError, Py4JJavaError

from compactor.errors import FirnlineError, InputError, RetryError
from compactor.iceberg.tables import TableView
from compactor.reasons import Reason
from compactor.settings.tree import Settings
from compactor.spark.java import java_home, pyspark_jars
from compactor.spark.java_table import SILENCE, denial, first_line
from compactor.spark.session import out_of_environment, session_conf
from compactor.storage.byte_store import checksum_remedy

TO_STDERR: Final = ("-XX:+DisplayVMOutputToStderr", "-Xlog:disable", "-Xlog:all=error:stderr")
"""The JVM prints nothing before the port, which Py4J reads first."""
HADOOP_FILE_IO: Final = "org.apache.iceberg.hadoop.HadoopFileIO"


@dataclass(frozen=True)
class JavaClient:
    """The client of one catalog, with the properties that Spark gives it.

    Every method raises InputError where a property or permission is at fault, RetryError where nothing answers.
    """

    gateway: JavaGateway
    name: str
    conf: Mapping[str, str]

    def table_io(self, view: TableView) -> Any:
        """Load a table as a commit does; returns its FileIO."""
        jvm: Any = self.gateway.jvm
        levels = self.gateway.new_array(jvm.java.lang.String, len(view.name.namespace))
        for index, level in enumerate(view.name.namespace):
            levels[index] = level
        catalog = jvm.org.apache.iceberg.catalog
        with _named("it cannot load a table"):
            identifier = catalog.TableIdentifier.of(catalog.Namespace.of(levels), view.name.name)
            return self._opened().loadTable(identifier).io()

    def store_io(self) -> Any:
        """Ask a catalog without tables for its namespaces; returns the FileIO of its properties."""
        with _named("it cannot list namespaces"):
            self._opened().listNamespaces()
        options = self._options
        with _named("its client of the store cannot be made"):
            return self.gateway.jvm.org.apache.iceberg.CatalogUtil.loadFileIO(
                options.get("io-impl") or HADOOP_FILE_IO, options, self._hadoop
            )

    def read(self, io: Any, location: str) -> bytes:
        with _named(f"it cannot read {location}"):
            file = io.newInputFile(location)
            stream = file.newStream()
            try:
                return bytes(stream.readNBytes(int(file.getLength())))
            finally:
                stream.close()

    def write(self, io: Any, location: str, data: bytes) -> None:
        with _named(f"it cannot write {location}"):
            stream = io.newOutputFile(location).create()
            stream.write(data)
            stream.close()

    def delete(self, io: Any, location: str) -> None:
        with _named(f"it cannot delete {location}"):
            io.deleteFile(location)

    def _opened(self) -> Any:
        iceberg: Any = self.gateway.jvm.org.apache.iceberg
        return iceberg.CatalogUtil.buildIcebergCatalog(self.name, self._options, self._hadoop)

    @property
    def _options(self) -> Any:
        prefix, options = f"spark.sql.catalog.{self.name}.", self.gateway.jvm.java.util.HashMap()
        for key, value in self.conf.items():
            if key.startswith(prefix):
                options.put(key.removeprefix(prefix), value)
        return options

    @property
    def _hadoop(self) -> Any:
        hadoop: Any = self.gateway.jvm.org.apache.hadoop.conf.Configuration()
        for prefix in ("spark.hadoop.", f"spark.sql.catalog.{self.name}.hadoop."):
            for key, value in self.conf.items():
                if key.startswith(prefix):
                    hadoop.set(key.removeprefix(prefix), value)
        return hadoop


@contextmanager
def java_gateway(settings: Settings) -> Iterator[tuple[JavaGateway, Mapping[str, str]]]:
    """A JVM with the jars and options of the settings, and Spark's configuration. It ends with the block.

    Raises:
        InputError: there is no Java, or the JVM does not start with these options.
    """
    conf = session_conf(settings)
    options = shlex.split(f"{conf['spark.driver.defaultJavaOptions']} {conf.get('spark.driver.extraJavaOptions', '')}")
    with out_of_environment(settings):
        try:
            port, token, process = launch_gateway(
                jarpath=str(next(pyspark_jars().glob("py4j-*.jar"))),
                classpath=os.pathsep.join([*conf.get("spark.jars", "").split(","), f"{pyspark_jars()}/*"]),
                javaopts=[f"-Xmx{conf.get('spark.driver.memory', '1g')}", *options, *TO_STDERR],
                java_path=str(java_home() / "bin" / "java"),
                die_on_exit=True,
                enable_auth=True,
                return_proc=True,
            )
        except (Py4JError, ValueError) as error:
            raise InputError(
                "a JVM does not start with the options of spark.conf (memory, extraJavaOptions)",
                reason=Reason.BAD_SETTING,
            ) from error
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    try:
        yield gateway, conf
    finally:
        gateway.shutdown()
        process.kill()
        process.wait()


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Name errors of Java by their last cause, which tells what is at fault."""
    try:
        yield
    except Py4JJavaError as error:
        causes = [
            line.removeprefix("Caused by: ") for line in str(error).splitlines() if line.startswith("Caused by: ")
        ]
        cause = denial(error) or (causes[-1] if causes else first_line(error))
        silent = any(sign in str(error) for sign in SILENCE if "SdkClientException" not in sign)
        kind: type[FirnlineError] = RetryError if silent else InputError
        raise kind(f"{what}: {cause}{checksum_remedy(cause)}") from error
